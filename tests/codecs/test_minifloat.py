from dataclasses import replace

import pytest
import torch

from tests.ops.backends import BACKENDS, assert_equal, device_of, on
from trec_qcomm import Contract, Float6, Float8
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.testing import awkward_rows, check_unbiased, encode, round_trip

NEAREST = [Float6("e4m1"), Float6("e3m2"), Float8("e4m3"), Float8("e5m2")]
STOCHASTIC = [replace(codec, rounding="stochastic") for codec in NEAREST]
ALL = NEAREST + STOCHASTIC
ROUNDING = 1 + 2.0**-23  # t + u is rounded to float32


def spread_rows(dim: int) -> torch.Tensor:
    """Return [40, dim]: magnitudes from 2^-20 to 1 in each row, rows from the smallest to the
    largest."""
    generator = torch.Generator().manual_seed(dim)
    rows = torch.randn(40, dim, generator=generator)
    rows *= 2.0 ** torch.randint(-20, 1, rows.shape, generator=generator)
    return (rows * 10.0 ** torch.linspace(-44, 37, 40)[:, None]).clamp(-3.4e38, 3.4e38)


def parameters(codec) -> tuple[int, int]:
    """Return M and F of FORMAT.md."""
    return {12: (1, 15), 13: (2, 7), 24: (3, 15), 25: (2, 31)}[codec.wire_id]


def grid_of(codec) -> torch.Tensor:
    """Return all magnitudes that codes have under an exponent of 0, by the text of FORMAT.md."""
    mantissa, top = parameters(codec)
    parts = 2**mantissa
    small = [k * 2.0 ** (1 - top - mantissa) for k in range(parts)]
    normal = [(1 + k / parts) * 2.0 ** (f - top) for f in range(1, top) for k in range(parts)]
    return torch.tensor([*small, *normal, 1.0], dtype=torch.float64)


@pytest.mark.parametrize("codec", STOCHASTIC, ids=repr)
def test_stochastic_rounding_is_unbiased(codec):
    assert codec.contract is Contract.UNBIASED
    check_unbiased(codec)


@pytest.mark.parametrize("codec", NEAREST, ids=repr)
@pytest.mark.parametrize("dim", [1, 7, 128])
def test_nearest_is_the_nearest_of_the_grid(codec, dim):
    rows = spread_rows(dim)
    decoded = round_trip(codec, rows, Segments.packed([len(rows)], dim)).double()
    e = torch.frexp(rows.abs().amax(1, keepdim=True).double())[1].clamp(min=-126)
    grid = grid_of(codec) * torch.pow(2.0, e.double())
    away = (rows.double().abs()[:, :, None] - grid[:, None, :]).abs().amin(2)
    assert bool(((rows.double() - decoded).abs() <= away * ROUNDING).all())
    assert bool((decoded.sign() * rows.sign() >= 0).all())


@pytest.mark.parametrize("codec", ALL, ids=repr)
@pytest.mark.parametrize("dim", [1, 3, 64, 67])
def test_errors_are_within_a_part_of_each_value(codec, dim):
    mantissa, top = parameters(codec)
    for rows in (spread_rows(dim), awkward_rows(dim)):
        decoded = round_trip(codec, rows, Segments.packed([len(rows)], dim), seed=5).double()
        x = torch.where(rows.isfinite(), rows, 0).double()
        e = torch.frexp(x.abs().amax(1, keepdim=True))[1].clamp(min=-126)
        base = torch.maximum(x.abs(), torch.pow(2.0, (e + 1 - top).double()))
        part = 2.0 ** -(mantissa + (codec.rounding == "nearest"))
        error = torch.where(rows.isfinite(), (x - decoded).abs(), 0)
        between = 2.0**-150 if codec.format == "e5m2" else 0.0  # codes that lie so off subnormals
        assert bool((error <= part * base * ROUNDING + between).all())


@pytest.mark.parametrize("codec", NEAREST, ids=repr)
@pytest.mark.parametrize("e", [-126, -125, -110, 127, 128])
def test_rows_at_both_ends_of_float32_are_what_float64_says(codec, e):
    mantissa, top = parameters(codec)
    generator = torch.Generator().manual_seed(e + 126)
    rows = torch.rand(20, 33, generator=generator) + 1
    rows *= torch.randint(2, rows.shape, generator=generator) * 2 - 1
    rows = (
        rows.double() * 2.0 ** (e - 1 - torch.arange(33).double())
    ).float()  # subnormals lose bits
    decoded = round_trip(codec, rows, Segments.packed([20], 33))
    x = rows.double()
    below = torch.frexp(x)[1].clamp(min=e + 1 - top + 1) - 1  # of f = 1 or above
    steps = torch.pow(2.0, (below - mantissa).double())
    expected = x.sign() * (x.abs() / steps + 0.5).floor() * steps
    largest = torch.finfo(torch.float32).max
    assert torch.equal(decoded, expected.clamp(-largest, largest).float())


OCP = [(Float8("e4m3"), torch.float8_e4m3fn, 8), (Float8("e5m2"), torch.float8_e5m2, 16)]


@pytest.mark.parametrize(("codec", "dtype", "shift"), OCP, ids=["e4m3", "e5m2"])
def test_codes_of_8_bits_are_those_of_ocp(codec, dtype, shift):
    rows = spread_rows(64)[20:]  # float32 holds what they are scaled to, and none is a tie
    codes = encode(codec, rows, Segments.packed([20], 64)).payload[20:1300].view(20, 64)
    e = torch.frexp(rows.abs().amax(1, keepdim=True))[1]
    ocp = torch.ldexp(rows, shift - e).to(dtype).view(torch.uint8)
    assert len(codes.unique()) > 150
    assert torch.equal(codes, torch.where(ocp == 128, 0, ocp))  # no negative zero


def test_values_just_below_a_power_of_two_become_it_and_the_largest_stays():
    largest = torch.finfo(torch.float32).max
    rows = torch.tensor([[1.999, -1.999, 0.0], [largest, -largest, 2.0**127]])
    for codec in NEAREST:
        decoded = round_trip(codec, rows, Segments.packed([2], 3))
        assert decoded.tolist() == [[2, -2, 0], [largest, -largest, 2.0**127]]


def test_small_values_beside_large_ones_keep_their_size():
    row = torch.tensor([[1.0, -(2.0**-13), 3 * 2.0**-10]])
    assert torch.equal(round_trip(Float6("e4m1"), row, Segments.packed([1], 3)), row)
    assert round_trip(Float6("e3m2"), row, Segments.packed([1], 3))[0, 1] == 0


def test_128_values_take_97_or_129_bytes():
    segments = Segments.packed([8, 1], 128)
    assert Float6().max_nbytes(segments).tolist() == [776, 104]
    assert Float8().max_nbytes(segments).tolist() == [1032, 136]


@pytest.mark.parametrize("kind", [Float6, Float8])
@pytest.mark.parametrize("fields", [{"format": "e2m3"}, {"rounding": "up"}])
def test_bad_fields_are_named(fields, kind):
    (name,) = fields
    with pytest.raises(ValueError, match=f"{kind.name}.{name}"):
        kind(**fields)


def test_a_bad_seed_is_refused():
    where = (torch.zeros(1, 4), Segments.packed([1], 4), torch.zeros(8, dtype=torch.uint8))
    for seed in (-1, 2**63):
        with pytest.raises(ValueError, match="seed"):
            Float6().encode(*where, torch.tensor([0]), seed=seed)


@pytest.mark.triton
@pytest.mark.parametrize("codec", NEAREST, ids=repr)
@pytest.mark.parametrize("dim", [3, 8])
def test_any_codes_are_read_alike(dim, codec):
    """Every exponent but 0 is tried, with codes that no encoder writes and bits after the rows."""
    generator = torch.Generator().manual_seed(dim)
    segments = Segments.packed([253, 2], dim)
    sizes = codec.max_nbytes(segments)
    payload = torch.randint(256, (int(sizes.sum()),), generator=generator).to(torch.uint8)
    at, outs = exclusive_cumsum(sizes)[:-1], []
    payload[:253] = torch.arange(1, 254).to(torch.uint8)
    payload[int(at[1]) :][:2] = torch.tensor([254, 255]).to(torch.uint8)
    for backend in BACKENDS:
        outs.append(torch.zeros(255, dim, device=device_of(backend)))
        encoded = Encoded(payload.to(outs[-1].device), at, sizes)
        on(backend, codec.decode, encoded, segments, outs[-1])
    assert_equal(out.view(torch.int32) for out in outs)


@pytest.mark.triton
@pytest.mark.parametrize("codec", [Float6(), Float8()], ids=repr)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_exponent_of_zero_is_refused(backend, codec):
    device = device_of(backend)
    segments, sizes = Segments.packed([1, 0, 2], 3), torch.tensor([8, 0, 8])
    payload = torch.ones(16, dtype=torch.uint8)
    out = torch.zeros(3, 3, device=device)
    encoded = Encoded(payload.to(device), torch.tensor([0, 8, 8]), sizes)
    on(backend, codec.decode, encoded, segments, out)
    encoded.payload[9] = 0
    with pytest.raises(CorruptFrameError, match="an exponent of 0") as raised:
        on(backend, codec.decode, encoded, segments, out)
    assert raised.value.segment == 2
