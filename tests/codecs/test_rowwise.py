import math

import pytest
import torch

from trec_qcomm.codecs import Rowwise
from trec_qcomm.core.errors import UnencodableError
from trec_qcomm.core.segments import Segments
from trec_qcomm.testing import awkward_rows, check_unbiased, interleaved_segments, round_trip

ALL = [Rowwise(b, rounding=r) for b in (8, 4, 2) for r in ("nearest", "stochastic")]
NEAREST = [Rowwise(b) for b in (8, 4, 2)]
# Gaussian rows of 64 values have at least this many dB; the codec's docs have the table.
SNR_DB = {8: 45.0, 4: 20.0, 2: 6.0}


def row_step(rows: torch.Tensor, bits: int) -> torch.Tensor:
    """Return [n, 1] float64, an upper bound of each row's scale by its definition.

    low loses less than 2^-11 of the power of two above the row's magnitude, scale gains one part in
    2^7 at most and is 2^-(14 + bits) of that power of two at least.
    """
    x = rows.double()
    above = 2 * x.abs().amax(1)
    width = x.amax(1) - x.amin(1) + above * 2**-11
    return torch.maximum(width / (2**bits - 1) * (1 + 2**-7), above * 2.0 ** -(14 + bits))[:, None]


def snr_db(x: torch.Tensor, y: torch.Tensor) -> float:
    x, y = x.double(), y.double()
    return 10 * math.log10(float((x**2).sum() / ((x - y) ** 2).sum()))


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_stochastic_rounding_is_unbiased(bits):
    check_unbiased(Rowwise(bits, rounding="stochastic"))


@pytest.mark.parametrize("exponent", [-29, -20, -7, 0, 5, 20, 30, 37])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_same_quality_at_every_scale(bits, exponent):
    rows = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)) * 10.0**exponent
    decoded = round_trip(Rowwise(bits), rows, Segments.packed([256], 64))
    error = (rows.double() - decoded.double()).abs()
    assert bool((error <= 0.5 * row_step(rows, bits) * (1 + 2**-20)).all())
    assert snr_db(rows, decoded) >= SNR_DB[bits]


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_values_below_the_least_exponent_have_its_error(bits):
    """Rows below 2^-100 are quantized as one of 2^-100, so some decode to 0."""
    rows = torch.randn(99, 5, generator=torch.Generator().manual_seed(0)) * 2.0**-110
    rows[50:] *= 2.0**-39
    decoded = round_trip(Rowwise(bits), rows, Segments.packed([99], 5))
    width = rows.double().amax(1) - rows.double().amin(1) + 2.0**-111
    step = width / (2**bits - 1) * (1 + 2**-7)
    assert bool(((rows.double() - decoded).abs() <= step[:, None]).all())


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_a_small_table_beside_a_large_one(bits):
    """Tables of scales 1 and 1e-3 in one buffer are each coded as if they were alone."""
    matrix = torch.randn(64, 2 * (16 + 3), generator=torch.Generator().manual_seed(0))
    segments = interleaved_segments(64, 2, 16)
    segments.block(matrix, 1).mul_(1e-3)
    decoded = round_trip(Rowwise(bits), matrix, segments)
    for s in range(2):
        x, y = segments.block(matrix, s), segments.block(decoded, s)
        assert bool(((x - y).abs() <= 0.5 * row_step(x, bits) * (1 + 2**-20)).all())
        assert snr_db(x, y) >= SNR_DB[bits]


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_stochastic_error_is_below_one_step(bits):
    rows = torch.randn(512, 16, generator=torch.Generator().manual_seed(0))
    codec = Rowwise(bits, rounding="stochastic")
    error = (rows - round_trip(codec, rows, Segments.packed([512], 16), seed=5)).abs()
    assert bool((error <= row_step(rows, bits) * (1 + 2**-20)).all())
    again = round_trip(codec, rows, Segments.packed([512], 16), seed=6)
    assert not torch.equal(again, round_trip(codec, rows, Segments.packed([512], 16), seed=5))


@pytest.mark.parametrize("codec", ALL, ids=repr)
def test_zero_rows_are_exact_and_constants_nearly(codec):
    rows = torch.stack([torch.zeros(9), torch.full((9,), 0.1), torch.full((9,), -77.7)])
    decoded = round_trip(codec, rows, Segments.packed([3], 9))
    assert torch.equal(decoded[0], rows[0])
    # low is within 2^-10 of the constant, and scale carries the rest to within 2^-7 of it.
    assert (
        bool(((decoded - rows).abs() <= rows.abs() * 2**-17).all()) or codec.rounding != "nearest"
    )


@pytest.mark.parametrize("codec", ALL, ids=repr)
def test_neighbours_of_nonfinite_values_keep_their_range(codec):
    """A row with NaN or inf has 3 codes fewer; with 2 bits that leaves one, its range's middle."""
    rows = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
    rows[::2, 3], rows[::4, 7], rows[::8, 11] = math.nan, math.inf, -math.inf
    decoded = round_trip(codec, rows, Segments.packed([32], 16))
    finite = rows.isfinite()
    width = torch.where(finite, rows, -9).amax(1) - torch.where(finite, rows, 9).amin(1)
    levels = {8: 252, 4: 12, 2: 1}[codec.bits]
    error = torch.where(finite, rows - decoded, 0).abs().amax(1)
    assert bool((error[::2] <= (width * (1 + 2**-7) + 2**-8)[::2] / levels).all())
    assert bool((error[1::2] <= row_step(rows[1::2], codec.bits)[:, 0] * (1 + 2**-20)).all())


def test_nonfinite_can_raise():
    rows = torch.ones(4, 3)
    segments = Segments.packed([2, 2], 3)
    codec = Rowwise(4, nonfinite="raise")
    round_trip(codec, rows, segments)
    rows[3, 0] = math.nan
    with pytest.raises(UnencodableError, match="NaN or inf") as raised:
        round_trip(codec, rows, segments)
    assert raised.value.segment == 1


def test_largest_floats_stay_finite():
    rows = torch.full((2, 5), torch.finfo(torch.float32).max)
    rows[1, 2] *= -1
    for codec in ALL:
        assert bool(round_trip(codec, rows, Segments.packed([2], 5)).isfinite().all())


@pytest.mark.parametrize(("bits", "ratio"), [(8, 256 / 68), (4, 256 / 36), (2, 256 / 20)])
def test_size_at_dim_64(bits, ratio):
    nbytes = int(Rowwise(bits).max_nbytes(Segments.packed([2048], 64))[0])
    assert 2048 * 256 / nbytes == pytest.approx(ratio, rel=1e-3)


def test_awkward_rows_come_with_many_segments():
    """There are 10,000 one-row segments, which begin at any multiple of 8."""
    rows = awkward_rows(3).repeat(715, 1)[:10_000]
    decoded = round_trip(Rowwise(8), rows, Segments.packed([1] * 10_000, 3))
    assert torch.equal(decoded.isnan(), rows.isnan())


@pytest.mark.parametrize(
    "bad", [{"bits": 5}, {"bits": 4, "rounding": "up"}, {"bits": 4, "nonfinite": "zero"}]
)
def test_bad_fields_name_the_choices(bad):
    with pytest.raises(ValueError, match=r"rowwise\.\w+: .* is not one of \("):
        Rowwise(**bad)
