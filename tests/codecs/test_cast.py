from dataclasses import replace

import pytest
import torch

from tests.ops.backends import device_of
from trec_qcomm.codecs import Cast, Identity, Rowwise
from trec_qcomm.core.errors import UnencodableError
from trec_qcomm.core.segments import Segments
from trec_qcomm.ops.cast import cpu
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.ops.rowwise import cpu as rowwise_cpu
from trec_qcomm.testing import check_codec, round_trip

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_torch(dtype):
    bits = torch.randint(-(2**31), 2**31, (4096, 7), generator=torch.Generator().manual_seed(0))
    rows = bits.to(torch.int32).view(torch.float32)
    decoded = round_trip(Cast(dtype), rows, Segments.packed([4000, 0, 96], 7))
    expected = rows.to(DTYPES[dtype]).float()
    torch.testing.assert_close(decoded, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kit is on CPU")
def test_conformance_of_identity_on_a_gpu():
    with default_backend("gpu"):
        check_codec(Identity())


at_the_edge = pytest.mark.parametrize(("dtype", "fits", "overflows"), [
    ("fp16", 65519.99, 65520.0),
    ("bf16", 2.0**127 * (2 - 2.0**-8 - 2.0**-23), 2.0**127 * (2 - 2.0**-8)),
])  # fmt: skip


@at_the_edge
def test_overflow_is_inf_or_an_error(dtype, fits, overflows):
    segments = Segments.packed([1, 1], 2)
    good = torch.tensor([[1.0, torch.inf], [torch.nan, -fits]])
    bad = torch.tensor([[1.0, torch.inf], [torch.nan, -overflows]])
    decoded = round_trip(Cast(dtype, overflow="raise"), good, segments)
    assert decoded[1, 1].isfinite()
    assert round_trip(Cast(dtype), bad, segments)[1, 1] == -torch.inf
    with pytest.raises(UnencodableError, match=f"range of {dtype}") as raised:
        round_trip(Cast(dtype, overflow="raise"), bad, segments)
    assert raised.value.segment == 1


class UnreadFlag:
    """A flag that nothing has waited for."""

    def __int__(self):
        raise TimeoutError


@pytest.mark.parametrize(
    ("kernels", "codec", "raising"),
    [(cpu, Cast("fp16"), {"overflow": "raise"}), (rowwise_cpu, Rowwise(4), {"nonfinite": "raise"})],
)
def test_the_flag_is_read_only_where_it_matters(kernels, codec, raising, monkeypatch):
    encode = kernels.encode
    monkeypatch.setattr(
        kernels, "encode", lambda *a, **options: (UnreadFlag(), encode(*a, **options)[1])
    )
    rows, segments = torch.full((1, 2), 1e9), Segments.packed([1], 2)
    round_trip(codec, rows, segments)
    with pytest.raises(TimeoutError):
        round_trip(replace(codec, **raising), rows, segments)


@pytest.mark.triton
@at_the_edge
def test_overflow_on_a_gpu(dtype, fits, overflows):
    segments, at = Segments.packed([1, 1], 2), torch.tensor([0, 8])
    good = torch.tensor([[1.0, torch.inf], [torch.nan, -fits]], device=device_of("gpu"))
    bad = torch.tensor([[1.0, torch.inf], [torch.nan, -overflows]], device=good.device)
    payload = torch.zeros(16, dtype=torch.uint8, device=good.device)
    with default_backend("gpu"):
        Cast(dtype, overflow="raise").encode(good, segments, payload, at)
        Cast(dtype).encode(bad, segments, payload, at)
        with pytest.raises(UnencodableError, match=f"range of {dtype}") as raised:
            Cast(dtype, overflow="raise").encode(bad, segments, payload, at)
    assert raised.value.segment == 1


@pytest.mark.parametrize("bad", [{"dtype": "fp8"}, {"dtype": "fp16", "overflow": "clamp"}])
def test_bad_fields_name_the_choices(bad):
    with pytest.raises(ValueError, match=r"cast\.\w+: '\w+' is not one of \("):
        Cast(**bad)
