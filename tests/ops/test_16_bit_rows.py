"""Rows of float16 and bfloat16: cast and identity without a float32 copy; others; sums; places."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.ops.backends import BACKENDS, assert_equal, device_of, on
from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Float8, Identity, Rowwise
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ops.batch import rows
from trec_qcomm.ops.batch.rank_sum import rank_sum
from trec_qcomm.ops.dispatch import default_backend

HALF, BFLOAT = torch.float16, torch.bfloat16
DTYPES = (HALF, BFLOAT)
BY_ROW = (
    *(Rowwise(8), Rowwise(4, "stochastic"), Rowwise(2), Float6(), Float8("e5m2")),
    *(ErrorBounded(0.3), ErrorBounded(0.01, encoder="rans")),
)
CODECS = (Identity(), Cast("fp16"), Cast("bf16"))


class CountFloat32(TorchDispatchMode):
    """Counts float32 values that torch operators return."""

    def __init__(self):
        super().__init__()
        self.num_values = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float32:
            self.num_values += result.numel()
        return result


def every_value(dtype):
    """Return all 65536 values of a dtype, [1024, 64]."""
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).view(1024, 64)


def encode(codec, values, segments):
    at = exclusive_cumsum(codec.max_nbytes(segments))
    payload = torch.full((int(at[-1]),), 0xAA, dtype=torch.uint8, device=values.device)
    return codec.encode(values, segments, payload, at[:-1])


def bits(values):
    return values.view(torch.int16)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", CODECS)
def test_backends_agree_on_every_value(codec, dtype):
    values, codec = every_value(dtype), codec.for_values(dtype)
    segments = Segments(  # two segments side by side, one that is packed, one that is empty
        torch.tensor([0, 500, 1000, 1024, 1024]), 32, torch.tensor([0, 32, 64000, 0]),
        torch.tensor([64, 64, 32, 32]),
    )  # fmt: skip
    outs, payloads = [], []
    for backend in BACKENDS:
        with default_backend(backend):
            encoded = encode(codec, values.to(device_of(backend)), segments)
            payloads.append(encoded.payload)
            outs.append(torch.zeros_like(values, device=device_of(backend)))
            codec.decode(encoded, segments, outs[-1])
    assert_equal(payloads)
    assert_equal(map(bits, outs))
    for s in range(3):
        block, out = (segments.block(tensor, s) for tensor in (values, outs[1]))
        if codec.name == "identity" or dtype == {"fp16": HALF, "bf16": BFLOAT}[codec.dtype]:
            assert torch.equal(bits(block), bits(out))  # NaN payloads, too
        else:
            other = BFLOAT if dtype == HALF else HALF
            expected = block.to(other).to(dtype)
            assert torch.equal(out.isnan(), expected.isnan())
            assert torch.equal(out.nan_to_num(0, 1, 2), expected.nan_to_num(0, 1, 2))


def test_message_has_the_bytes_of_the_cast_of_float32_rows():
    segments, values = Segments.packed([5, 0, 3], 7), torch.randn(8, 7)
    for dtype, codec in ((HALF, Cast("fp16")), (BFLOAT, Cast("bf16"))):
        with_float32 = encode(codec, values, segments)
        for same in (codec, Identity().for_values(dtype)):
            encoded = encode(same, values.to(dtype), segments)
            assert torch.equal(encoded.payload, with_float32.payload)
            assert same.wire_id == codec.wire_id


@pytest.mark.triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", BY_ROW)
def test_messages_have_the_bytes_and_the_rounded_values_of_float32_rows(codec, dtype):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(40, 7, generator=generator).to(dtype)
    values[3], values[4, 2], values[5, 1:3], values[6] = 0, torch.nan, torch.inf, -3
    values[9, 0], values[9, 1] = torch.finfo(dtype).max, -torch.finfo(dtype).max
    values[20:] *= 2.0**-12
    segments = Segments(
        torch.tensor([0, 20, 20, 40]), 7, torch.tensor([0, 0, 140]), torch.tensor([7, 7, 7])
    )
    whole, expected = encode(codec, values.float(), segments), torch.empty(40, 7)
    codec.decode(whole, segments, expected)
    largest = torch.finfo(dtype).max
    expected = torch.where(expected.isfinite(), expected.clamp(-largest, largest), expected)
    for backend in BACKENDS:
        out = torch.empty_like(values, device=device_of(backend))
        with default_backend(backend):
            encoded = encode(codec, values.to(out.device), segments)
            codec.decode(encoded, segments, out)
        for begin, nbytes in zip(whole.at.tolist(), whole.nbytes.tolist(), strict=True):
            written = slice(begin, begin + nbytes)
            assert torch.equal(encoded.payload.cpu()[written], whole.payload[written])
        assert torch.equal(out.cpu().isnan(), expected.isnan())
        assert torch.equal(out.cpu().nan_to_num(0, 1, 2), expected.to(dtype).nan_to_num(0, 1, 2))
    if isinstance(codec, Rowwise):
        with pytest.raises(ValueError, match="NaN or inf"):
            encode(replace(codec, nonfinite="raise"), values, segments)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", CODECS)
def test_no_float32_copy_is_made(codec, dtype):
    values, segments = torch.randn(64, 16).to(dtype), Segments.packed([40, 24], 16)
    codec, out = codec.for_values(dtype), torch.empty(64, 16, dtype=dtype)
    with CountFloat32() as counted:
        codec.decode(encode(codec, values, segments), segments, out)
    assert counted.num_values == 0
    with CountFloat32() as counted:
        values.float()
    assert counted.num_values == values.numel()  # the count sees what it looks for


def test_bfloat16_beyond_float16_is_refused_if_so_configured():
    segments, values = Segments.packed([2, 2], 4), torch.zeros(4, 4, dtype=BFLOAT)
    values[3, 1] = 1e5
    with pytest.raises(ValueError, match="beyond the range of fp16") as raised:
        encode(Cast("fp16", overflow="raise"), values, segments)
    assert raised.value.segment == 1
    values[3, 1] = torch.inf
    encode(Cast("fp16", overflow="raise"), values, segments)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", BY_ROW)
def test_what_lies_beside_the_rows_keeps_its_bits(codec, dtype):
    segments, out = Segments.packed([1], 64), every_value(dtype)
    codec.decode(encode(codec, torch.ones(1, 64, dtype=dtype), segments), segments, out)
    assert (out[0] != every_value(dtype)[0]).all()
    assert torch.equal(bits(out[1:]), bits(every_value(dtype)[1:]))


def test_identity_refuses_rows_of_another_dtype():
    segments = Segments.packed([1], 4)
    with pytest.raises(ValueError, match=r"expected contiguous float32, got torch\.float16"):
        encode(Identity(), torch.zeros(1, 4, dtype=HALF), segments)
    with pytest.raises(ValueError, match=r"expected contiguous float16, got torch\.bfloat16"):
        encode(Identity().for_values(HALF), torch.zeros(1, 4, dtype=BFLOAT), segments)
    encoded = Encoded(torch.zeros(16, dtype=torch.uint8), torch.tensor([0]), torch.tensor([16]))
    for dtype in (torch.float64, torch.int8):
        with pytest.raises(ValueError, match=rf"expected contiguous float32, got {dtype}"):
            encode(ErrorBounded(0.01), torch.zeros(1, 4, dtype=dtype), segments)
    with pytest.raises(ValueError, match=r"expected contiguous float32, got torch\.bfloat16"):
        Identity().decode(encoded, segments, torch.zeros(1, 4, dtype=BFLOAT))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_taken_and_added_in_their_dtype(dtype):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(6, 5, generator=generator).to(dtype)
    position = torch.tensor([0, 10, 10, 25])
    chosen = rows.Rows(torch.tensor([4]), torch.tensor([5]), position)
    packed = torch.empty(20, dtype=dtype)
    rows.take(values, chosen, packed)
    assert torch.equal(packed.view(4, 5), values[[0, 2, 2, 5]])
    sums = {}
    for backend in ("reference", "cpu"):
        sums[backend] = values.clone()
        on(backend, rows.add, packed, chosen, sums[backend])
    expected = values.clone()
    for row, place in zip(packed.view(4, 5), (0, 2, 2, 5), strict=True):
        expected[place] += row
    assert torch.equal(sums["cpu"], expected)
    assert torch.equal(sums["reference"], expected)
    with pytest.raises(ValueError, match="where the values are"):
        rows.add(packed.float(), chosen, values)


@pytest.mark.triton
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_are_added_with_one_rounding_an_addition(dtype, backend):
    quarter = torch.finfo(dtype).eps / 4  # too small to change 1, unless three come at once
    parts = torch.tensor([[1.0], [quarter], [quarter], [quarter]], dtype=dtype)
    parts = torch.cat([parts, torch.randn(4, 6).to(dtype), torch.full((4, 1), torch.nan)], 1)
    parts = parts.to(dtype).to(device_of(backend))
    out = torch.empty_like(parts[0])
    on(backend, rank_sum, parts, out)
    expected = parts[0]
    for part in parts[1:]:
        expected = expected + part
    assert torch.equal(out[:7], expected[:7])
    assert out[7:].isnan().all()
    assert not torch.equal(out[:1], parts[:, :1].float().sum(0).to(dtype))
