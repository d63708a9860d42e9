"""The backends of an op write the same bytes and read each other's."""

from dataclasses import replace

import pytest
import torch

from tests.ops.backends import BACKENDS, assert_equal, device_of, on
from tests.ops.interpreter import fast_interpreter, interpreter_for
from tests.ops.record_launches import encode_frame
from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Identity, Rowwise
from trec_qcomm.codecs.base import KernelCodec
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.errors import CorruptFrameError, UnencodableError
from trec_qcomm.core.registry import decoder
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ops.batch.rank_sum import rank_sum
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.testing import datasets, encode
from trec_qcomm.wire import frame

MOST = torch.finfo(torch.float32).max
SEEDS = (2**62 + 12345, 2**63 - 1)  # with the last one, the numbers that are hashed wrap


def codecs() -> list[Codec]:
    """Return a codec of each wire id, in each way to round, and what else has kernels of its own.

    Left out: codecs of extensions, which have no kernels (tests/ext).
    """
    registered = [codec for wire_id in range(1, 240) if (codec := decoder(wire_id)) is not None]
    registered = [codec for codec in registered if isinstance(codec, KernelCodec)]
    stochastic = [replace(c, rounding="stochastic") for c in registered if hasattr(c, "rounding")]
    bounds = ErrorBounded(1e-6, mode="abs"), ErrorBounded(0.3), ErrorBounded(0.01, encoder="rans")
    return [*registered, *stochastic, *bounds]


def dims(codec: Codec) -> tuple[int, ...]:
    if isinstance(codec, ErrorBounded):
        return (1,) if codec.encoder == "rans" else (1, 7)
    return (2, 7, 33) if getattr(codec, "rounding", "") == "stochastic" else (1, 3, 7, 16, 64)


def segment_bytes(encoded: Encoded) -> list[list[int]]:
    places = zip(encoded.at.tolist(), encoded.nbytes.tolist(), strict=True)
    return [encoded.payload[at : at + nbytes].tolist() for at, nbytes in places]


def check_parity(codec: Codec, values: torch.Tensor, segments: Segments, seed: int = 0) -> None:
    """Check that all backends write the same bytes and decode them to the same values."""
    sizes = codec.max_nbytes(segments)
    at, encodings, decoded = exclusive_cumsum(sizes)[:-1], [], []
    for fill, backend in enumerate(BACKENDS):
        rows = values.to(device_of(backend))
        payload = torch.full((int(sizes.sum()),), fill, dtype=torch.uint8, device=rows.device)
        with default_backend(backend), interpreter_for(segments):
            encoded = codec.encode(rows, segments, payload, at, seed=seed)
        encodings.append(replace(encoded, payload=encoded.payload.cpu()))
    first = encodings[0]
    for encoded in encodings[1:]:
        assert segment_bytes(encoded) == segment_bytes(first)
    for backend in BACKENDS:
        out = torch.full_like(values, 9.0, device=device_of(backend))
        encoded = replace(first, payload=first.payload.to(out.device))
        with default_backend(backend), interpreter_for(segments):
            codec.decode(encoded, segments, out)
        decoded.append(out.view(torch.int32))
    assert_equal(decoded)


def check_frame(codec: Codec, values: torch.Tensor, segments: Segments, seed: int = 0) -> None:
    """Check that kernels seal the frame that a CPU reads, and find a flipped bit."""
    with default_backend("gpu"), fast_interpreter():
        encoded, fields = encode_frame(codec, values.to(device_of("gpu")), segments, seed)
        on_cpu, count = encoded.payload.cpu(), segments.num_segments
        size = frame.payload_nbytes(encoded.nbytes, [count])[0] + frame.overhead_nbytes(count)
        assert not on_cpu[size:].any()
        received, _ = frame.unseal(on_cpu[:size], [size], [count], ranks=[0], **fields)
        expected = on("cpu", encode, codec, values, segments, seed=seed)
        assert segment_bytes(received) == segment_bytes(expected)
        out, first = torch.empty_like(values, device=encoded.payload.device), encoded.frames.first
        for byte, word in ((0, -1), (9, 1), (35, 3), (size - 1, 3)):
            encoded.payload[byte] ^= 16 * (word >= 0)
            codec.decode(encoded, segments, out)
            assert first.item() == word
            encoded.payload[byte] ^= 16 * (word >= 0)
            first.fill_(-1)


@pytest.mark.triton
@pytest.mark.parametrize(
    ("codec", "dim"), [(codec, dim) for codec in codecs() for dim in dims(codec)], ids=repr
)
def test_all_backends_write_the_same_bytes_and_read_them(codec, dim):
    for values, segments in datasets(dim):
        check_parity(codec, values, segments, seed=SEEDS[dim % 2])
    if codec.takes_frames:
        check_frame(codec, *datasets(dim)[4], seed=SEEDS[dim % 2])


@pytest.mark.triton
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "codec", [Rowwise(4, nonfinite="raise"), Cast("fp16", overflow="raise")], ids=repr
)
def test_the_first_segment_that_cannot_be_encoded_is_named(codec, backend):
    segments = Segments.packed([2, 0, 1, 1], 1)
    values = torch.tensor([[1.0], [2.0], [7e4], [8e4]], device=device_of(backend))
    if isinstance(codec, Rowwise):
        values[2:] = torch.tensor([[torch.inf], [torch.nan]])
    sizes = codec.max_nbytes(segments)
    payload = torch.zeros(int(sizes.sum()), dtype=torch.uint8, device=values.device)
    at = exclusive_cumsum(sizes)[:-1]
    with default_backend(backend):
        with pytest.raises(UnencodableError) as raised:
            codec.encode(values, segments, payload, at)
        assert raised.value.segment == 2
        values[2:] = 0
        codec.encode(values, segments, payload, at)


def check_sums(codec, values, segments, num_parts, held_at):
    """Assert that sums of the parts' rows are those of what is decoded, added up in rank order."""
    sizes = codec.max_nbytes(segments)
    part_nbytes = int(sizes.sum())
    at = (exclusive_cumsum(sizes)[:-1] + part_nbytes * torch.arange(num_parts)[:, None]).view(-1)
    payload = torch.zeros(num_parts * part_nbytes, dtype=torch.uint8)
    held = values.flip(0).contiguous() * 0.5
    terms = []
    for part, part_at in enumerate(at.view(num_parts, len(sizes))):
        rows = values.roll(part, 0)
        encoded = codec.encode(rows, segments, payload, part_at)
        terms.append(held.clone())
        codec.decode(encoded, segments, terms[-1])
    if held_at >= 0:
        terms.insert(held_at, held)
    sums, every = [held.clone()], held.clone()
    rank_sum(torch.stack([term.view(-1) for term in terms]), every)
    for s in range(segments.num_segments):
        segments.block(sums[0], s).copy_(segments.block(every, s))
    for backend in BACKENDS:
        out = held.clone().to(device_of(backend))
        encoded = Encoded(payload.to(out.device), at, sizes.repeat(num_parts))
        with default_backend(backend):
            codec.decode_sum(encoded, segments, out, held_at=held_at)
        sums.append(out)
    assert_equal((out.view(torch.int32) for out in sums), (num_parts, held_at))


@pytest.mark.triton
@pytest.mark.parametrize(
    ("codec", "dim"),
    [
        (Rowwise(8), 7),
        (Rowwise(4), 64),
        (Rowwise(2), 1),
        (Identity(), 7),
        (Cast("fp16"), 3),
        (Cast("bf16"), 8),
    ],
    ids=str,
)
def test_decoded_sums(codec, dim):
    cases = [(2, -1), (1, -1), (3, 0), (3, 2), (2, 2)]
    with fast_interpreter():
        for number, (values, segments) in enumerate(datasets(dim)):
            if number == 1:  # as many programs as segments
                segments = Segments.packed([11, 0, 9], dim)
            for case in cases if number == 2 else cases[:1]:
                check_sums(codec, values, segments, *case)


@pytest.mark.parametrize("codec", [Rowwise(8), Identity()], ids=repr)
def test_sums_of_no_whole_number_of_parts_are_refused(codec):
    segments, out = Segments.packed([1, 1], 4), torch.zeros(2, 4)
    payload, sizes = torch.zeros(64, dtype=torch.uint8), codec.max_nbytes(segments)
    for count, held_at, message in [(3, -1, "3 places for 2"), (0, -1, "0 places"), (2, 2, "held")]:
        encoded = Encoded(payload, 16 * torch.arange(count), sizes[:1].repeat(count))
        with pytest.raises(ValueError, match=message):
            codec.decode_sum(encoded, segments, out, held_at=held_at)


@pytest.mark.triton
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sum_names_the_first_bad_segment_of_all_parts(backend):
    segments, out = Segments.packed([1, 1], 4), torch.zeros(2, 4, device=device_of(backend))
    payload = torch.full((48,), 127, dtype=torch.uint8)
    payload[[27, 43]] = 26  # an exponent too small, in segments 3 and 5
    encoded = Encoded(payload.to(out.device), 8 * torch.arange(6), torch.full((6,), 8))
    with pytest.raises(CorruptFrameError, match="exponent") as caught, default_backend(backend):
        Rowwise(8).decode_sum(encoded, segments, out)
    assert caught.value.segment == 3


@pytest.mark.triton
@pytest.mark.parametrize("codec", [Rowwise(2, "stochastic"), Float6("e4m1", "stochastic")], ids=str)
def test_noise_depends_on_the_numbers_of_values_not_on_their_places(codec):
    rows = torch.randn(5, 7, generator=torch.Generator().manual_seed(3))
    numbers = torch.tensor([700, 2**32 - 7, 40])  # those of the second segment wrap
    packed = Segments.packed([1, 3, 1], 7)
    together = replace(packed, numbers=numbers)
    last_two = replace(Segments.packed([3, 1], 7), numbers=numbers[1:])
    encoded = []
    for backend in BACKENDS:
        values = rows.to(device_of(backend))
        with default_backend(backend):
            whole, counted, part = (
                encode(codec, values[-len_:], segments, seed=2**40 + 1).payload
                for len_, segments in ((5, together), (5, packed), (4, last_two))
            )
        assert torch.equal(whole[len(whole) - len(part) :], part)
        assert not torch.equal(whole, counted)
        encoded.append(whole)
    assert_equal(encoded)


@pytest.mark.triton
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("e", "step", "low", "expected"),
    [
        (128, 2047, 0, MOST), (128, 0, -2048, -MOST), (128, 0, 2047, 2047 * 2.0**117),
        (126, 2047, 0, 255 * 255 * 2.0**112), (126, 2047, 2047, MOST), (127, 0, -2048, -(2.0**127)),
    ],
)  # fmt: skip
def test_what_is_too_large_becomes_the_largest(e, step, low, expected, backend):
    """A row of code 255, or 0 with the least step, with a header that no encoder may write."""
    segments, device = Segments.packed([1], 1), device_of(backend)
    words = torch.tensor([step | (low & 0xFFF) << 12 | e + 127 << 24, 255 * (step > 0)])
    payload = words.to(torch.int32).view(torch.uint8).to(device)
    out = torch.zeros(1, 1, device=device)
    encoded = Encoded(payload, torch.tensor([0]), torch.tensor([8]))
    on(backend, Rowwise(8).decode, encoded, segments, out)
    assert float(out) == expected


@pytest.mark.triton
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_cast_reads_all_bits_of_16(dtype):
    payload = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.uint8)
    segments = Segments.packed([2**12, 2**16 - 2**12], 1)
    sizes = Cast(dtype).max_nbytes(segments)
    at = exclusive_cumsum(sizes)[:-1]
    decoded = []
    for backend in BACKENDS:
        out = torch.zeros(2**16, device=device_of(backend))
        encoded = Encoded(payload.to(out.device), at, sizes)
        on(backend, Cast(dtype).decode, encoded, segments, out)
        decoded.append(out.view(torch.int32))
    assert_equal(decoded)


@pytest.mark.slow
def test_the_reference_writes_the_same_bytes_where_torch_compiles():
    """Inductor takes a float32 that becomes float16 and float32 again for the float32 itself."""
    codec, segments, at = Rowwise(8), Segments.packed([8], 16), torch.tensor([0])
    values, payloads = torch.randn(8, 16), []
    for run in (codec.encode, torch.compile(codec.encode)):
        payloads.append(torch.zeros(int(codec.max_nbytes(segments)), dtype=torch.uint8))
        with default_backend("reference"):
            run(values, segments, payloads[-1], at)
    assert_equal(payloads)


def test_codecs_refuse_what_kernels_cannot_take():
    segments = Segments.packed([2], 4)
    values, payload, at = torch.zeros(2, 4), torch.zeros(64, dtype=torch.uint8), torch.tensor([0])
    good = (values, segments, payload, at)
    Rowwise(4).encode(*good)
    for bad, message in [
        ((values.double(), segments, payload, at), "contiguous float32"),
        ((values[:1], segments, payload, at), "holds 4 values, segments 8"),
        ((torch.zeros(4, 2).T, segments, payload, at), "contiguous float32"),
        ((values, segments, payload[:8], at), "8 bytes do not hold"),
        ((values, segments, payload, torch.tensor([4])), "multiples of 8"),
        ((values, segments, payload.int(), at), "uint8"),
    ]:
        with pytest.raises(ValueError, match=message):
            Rowwise(4).encode(*bad)
    with pytest.raises(ValueError, match="seed"):
        Rowwise(4, "stochastic").encode(*good, seed=-1)


@pytest.mark.triton
@pytest.mark.parametrize("size", [0, 1, 7, 4096, 10_000])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 8])
def test_rank_sum(num_parts, size):
    generator = torch.Generator().manual_seed(size)
    scales = 10.0 ** torch.randint(-44, 38, (num_parts, size), generator=generator)
    parts = torch.randn(num_parts, size, generator=generator) * scales
    if size > 1:  # several that are NaN in different ways, and a negative zero
        parts[0, 0], parts[-1, size // 2], parts[0, size // 2] = -torch.nan, torch.inf, -torch.inf
        parts[:, 1] = -0.0
    sums = [torch.full((size, 1), 9.0, device=device_of(backend)) for backend in BACKENDS]
    for out, backend in zip(sums, BACKENDS, strict=True):
        on(backend, rank_sum, parts.to(out.device), out)
    assert_equal(out.view(torch.int32) for out in sums)


def test_rank_sum_refuses_what_it_cannot_add():
    for bad, message in [
        (torch.zeros(2, 3).double(), "float32"),
        (torch.zeros(3), r"\[P, N\]"),
        (torch.zeros(3, 2).T, "contiguous"),
        (torch.zeros(0, 3), "at least one"),
    ]:
        with pytest.raises(ValueError, match=message):
            rank_sum(bad, torch.zeros(3))
    with pytest.raises(ValueError, match="out: expected 3 contiguous"):
        rank_sum(torch.zeros(2, 3), torch.zeros(4))
