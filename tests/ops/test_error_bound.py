"""error_bound: cpu writes the bytes of reference and keeps the rule of the contract exactly.

What the Triton kernels do is in test_error_bound_gpu.py.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.backends import on
from tests.ops.error_bound_kernels import codec_of
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ops.bitpack import cpu as bitpack
from trec_qcomm.ops.dispatch import default_backend
from trec_qcomm.ops.error_bound import cpu, reference

ULP = 2.0**-23


def encode(values, segments, bounds, relative, backend="cpu", encoder="bitpack"):
    codec = codec_of(relative, encoder)
    max_sizes = codec.max_nbytes(segments)
    payload = torch.full((int(max_sizes.sum()),), 0xA5, dtype=torch.uint8)
    bounds = torch.as_tensor(bounds, dtype=torch.float64).expand(segments.num_segments).clone()
    at = exclusive_cumsum(max_sizes)[:-1]
    with default_backend(backend):
        return codec.encode(values, segments, payload, at, tolerances=bounds)


def check(values, segments, bounds, relative, encoder="bitpack"):
    """Check that cpu and reference write the same bytes, and decode them to the same bits.

    Returns: encoded and decoded rows.
    """
    ours, theirs = (
        encode(values, segments, bounds, relative, b, encoder) for b in ("cpu", "reference")
    )
    assert ours.nbytes.tolist() == theirs.nbytes.tolist()
    for at, nbytes in zip(ours.at.tolist(), ours.nbytes.tolist(), strict=True):
        assert torch.equal(ours.payload[at : at + nbytes], theirs.payload[at : at + nbytes])
        assert nbytes % 8 == 0
    decoded = []
    for backend in ("cpu", "reference"):
        out = torch.full_like(values, 9.0)
        on(backend, codec_of().decode, ours, segments, out)
        decoded.append(out)
    assert torch.equal(*(out.view(torch.int32) for out in decoded))
    return ours, decoded[0]


def check_rule(rows: torch.Tensor, bound: float, relative: bool = False) -> list[bool]:
    """Check each value against the contract, in rational numbers.

    A verbatim value arrives bit by bit; others are index times step, within the bound.

    Returns: which values are verbatim.
    """
    segments = Segments.packed([len(rows)], rows.shape[1])
    encoded, decoded = check(rows, segments, bound, relative)
    x, y = rows.view(-1), decoded.view(-1)
    finite = x[x.isfinite()].double()
    limit = bound * float(finite.max() - finite.min()) if relative and len(finite) else bound
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        if math.isfinite(a):
            assert abs(Fraction(a) - Fraction(b)) <= Fraction(limit)
    special = ~x.isfinite()
    assert torch.equal(x[special].view(torch.int32), y[special].view(torch.int32))
    num_verbatim = int(encoded.payload[4:8].clone().view(torch.int32)) >> 7
    places = encoded.payload[int(encoded.nbytes[0]) - 8 * num_verbatim :].clone()
    verbatim = [False] * len(x)
    for place in places[: 4 * num_verbatim].view(torch.int32).tolist():
        verbatim[place] = True
    return verbatim


def kind_of(encoded: Encoded, segment: int = 0) -> int:
    return int(encoded.payload[int(encoded.at[segment]) + 4]) & 15


@settings(deadline=None, max_examples=50)
@given(
    num_rows=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    dim=st.integers(1, 70),
    gap=st.integers(0, 5),
    exponent=st.floats(-8, 0.5),
    relative=st.booleans(),
    specials=st.lists(st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 3e38, 1e-42])),
    seed=st.integers(0, 2**20),
)
def test_parity_over_shapes(num_rows, dim, gap, exponent, relative, specials, seed):
    generator = torch.Generator().manual_seed(seed)
    offsets = exclusive_cumsum(torch.tensor(num_rows))
    width = len(num_rows) * (dim + gap)
    values = torch.randn(max(num_rows) + 1, width, generator=generator)
    for place, special in enumerate(specials):
        values.view(-1)[(place * 7919) % values.numel()] = special
    start = torch.arange(len(num_rows)) * (dim + gap)
    segments = Segments(offsets, dim, start, torch.full_like(start, width))
    encoded, decoded = check(values, segments, 10.0**exponent, relative)
    assert bool((encoded.nbytes <= codec_of().max_nbytes(segments)).all())
    outside = torch.ones_like(values, dtype=torch.bool)
    for s in range(len(num_rows)):
        segments.block(outside, s).fill_(False)
    assert bool((decoded[outside] == 9).all())


def test_ties_and_their_neighbours():
    """Values at (k + 1/2) step and up to three ulps around: verbatim only beyond the bound."""
    bound = 0.1
    step = torch.tensor(2 * np.float32(0.1))
    ties = (torch.arange(-400, 400, dtype=torch.float64) + 0.5) * float(step)
    x = ties.to(torch.float32)
    neighbours = [x]
    for direction in (-math.inf, math.inf):
        near = x
        for _ in range(3):
            near = torch.nextafter(near, torch.tensor(direction))
            neighbours.append(near)
    verbatim = check_rule(torch.stack(neighbours, 1), bound)
    assert 0 < sum(verbatim) < len(verbatim)


def test_a_bound_that_is_a_power_of_two_has_its_ties_within():
    """For a tie x - decoded is the bound itself, which is allowed: nothing is verbatim.

    One ulp below the tie of q = 1 float32 rounds the difference down to the bound.
    """
    x = torch.arange(-64, 64)[:, None] + torch.tensor([[0.5, -0.5]])
    assert not any(check_rule(x, 0.5))
    for bound in (2.0**-30, 0.5, 2.0**40):
        tie = torch.tensor([[bound, bound * (1 - ULP / 2), -bound * (1 - ULP / 2), 8 * bound]])
        check_rule(tie, bound)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("ulps", [0.5, 0.999, 1, 1.5, 2, 3.7, 100])
def test_bounds_at_an_ulp_of_the_data(ulps, scale):
    rows = torch.randn(40, 8, generator=torch.Generator().manual_seed(0)) * scale
    check_rule(rows, float(np.float64(scale) * ULP * ulps))


@pytest.mark.parametrize("bound", [1e-320, 1e-46, 1e-40, 2**-127, 2**-126, 1e38, 2e38, 1e39, 1e300])
def test_bounds_beyond_float32_are_lossless_or_hold(bound):
    rows = torch.cat([torch.randn(4, 8), torch.randn(4, 8) * 1e-40, torch.randn(4, 8) * 1e38])
    check_rule(rows, float(bound))
    step = 2 * float(reference.round_down(float(bound)))
    tiny = torch.finfo(torch.float32).tiny
    if not tiny <= step <= 2**126:
        encoded, decoded = check(rows, Segments.packed([12], 8), bound, relative=False)
        assert kind_of(encoded) == cpu.RAW
        assert torch.equal(decoded, rows)


def test_ranges_that_are_zero_subnormal_or_overflow_float32():
    huge = torch.finfo(torch.float32).max
    for rows in [
        torch.tensor([[huge, -huge, 1.0, 0.0]] * 8),
        torch.tensor([[1e-45, 3e-45, 0.0, -1e-45]] * 8),
        torch.tensor([[0.0, -0.0, 0.0, -0.0]] * 8),
        torch.tensor([[0.3, 0.3, 0.3, math.nan]] * 8),
        torch.tensor([[math.nan, math.inf, -math.inf, math.nan]] * 8),
    ]:
        for bound in (1e-3, 0.3):
            check_rule(rows, bound, relative=True)
            check_rule(rows, bound)


def test_no_range_is_exact_and_small():
    """All finite values equal: the bits of each value arrive, even -0.0 and a NaN's payload."""
    rows = torch.full((50, 16), 0.3)
    segments = Segments.packed([50], 16)
    encoded, decoded = check(rows, segments, 0.01, relative=True)
    assert encoded.nbytes.tolist() == [8]
    assert torch.equal(decoded, rows)
    rows.view(torch.int32)[3, 5] = 0x7FC12345
    encoded, decoded = check(rows, segments, 0.01, relative=False)
    assert encoded.nbytes.tolist() == [16]
    assert torch.equal(decoded.view(torch.int32), rows.view(torch.int32))
    zeros = torch.zeros(50, 16)
    zeros[7] = -0.0
    _, decoded = check(zeros, segments, 0.01, relative=True)
    assert torch.equal(decoded.view(torch.int32), zeros.view(torch.int32))


def test_mean_far_above_the_range_and_far_scales():
    generator = torch.Generator().manual_seed(0)
    check_rule(1e6 + 1e-3 * torch.randn(40, 16, generator=generator), 0.01, relative=True)
    check_rule(1e6 + torch.randn(40, 16, generator=generator), 0.01, relative=True)
    mixed = torch.randn(40, 16, generator=generator)
    mixed[::2] *= 1e30
    mixed[1::2] *= 1e-30
    check_rule(mixed, 1e-3, relative=True)
    check_rule(mixed, 1e-31)


def test_indices_up_to_2_to_the_22_travel_and_beyond_are_verbatim():
    largest = 2.0**22
    x = torch.tensor([largest, -largest, largest + 1, -largest - 1, 1.0, 0.0] * 30)
    x[12:] = 0.0
    verbatim = check_rule(x.view(30, 6), 0.5)
    assert verbatim[:12] == [False, False, True, True, False, False] * 2
    assert not any(verbatim[12:])


def test_segments_of_other_encoders_decode_together():
    """A segment says its encoder, so one call decodes what several codecs wrote."""
    values = torch.randn(240, 16, generator=torch.Generator().manual_seed(0))
    values[80:120] = values[:4].repeat(10, 1)
    segments = Segments.packed([60, 60, 0, 60, 60], 16)
    names = ("rans", "vector_lz", "rans", "bitpack", "rans")
    by_name = {name: encode(values, segments, 0.02, True, encoder=name) for name in set(names)}
    mixed = by_name["bitpack"]
    for s, (name, at) in enumerate(zip(names, mixed.at.tolist(), strict=True)):
        size = int(by_name[name].nbytes[s])
        mixed.payload[at : at + size] = by_name[name].payload[at : at + size]
        mixed.nbytes[s] = size
    kinds = [kind_of(mixed, s) for s in (0, 1, 3, 4)]
    assert kinds == [cpu.RANS, cpu.VECTOR_LZ, cpu.BITPACK, cpu.RANS]
    expected = torch.empty_like(values)
    codec_of().decode(by_name["rans"], segments, expected)
    for backend in ("cpu", "reference"):
        decoded = torch.empty_like(values)
        on(backend, codec_of().decode, mixed, segments, decoded)
        assert torch.equal(decoded.view(torch.int32), expected.view(torch.int32))


def test_long_segments_of_rans_that_are_decoded_together():
    """Segments of 16 states wait for one another, past others; the first bad one is told."""
    values = torch.randn(5600, 32, generator=torch.Generator().manual_seed(0))
    segments = Segments.packed([1030, 3, 1200, 1100, 0, 1250, 1017], 32)
    encoded = encode(values, segments, 0.01, True, encoder="rans")
    expected, decoded = torch.empty_like(values), torch.empty_like(values)
    codec_of().decode(encode(values, segments, 0.01, True), segments, expected)
    codec_of().decode(encoded, segments, decoded)
    assert torch.equal(decoded.view(torch.int32), expected.view(torch.int32))
    whole = encoded.payload.clone()
    for bad in [(6,), (5,), (3, 6), (2, 5), (0, 2), (1, 3), (2, 1)]:
        encoded.payload.copy_(whole)
        for s in bad:  # the last word
            end = int(encoded.at[s] + encoded.nbytes[s])
            encoded.payload[end - 12 : end] ^= 0x55
        with pytest.raises(CorruptFrameError) as raised:
            codec_of().decode(encoded, segments, decoded)
        assert raised.value.segment == min(bad)


@pytest.mark.parametrize(
    ("bound", "outlier", "gap"), [(0.01, 0, 0), (0.01, 0, 5), (0.001, 0, 0), (0.0001, 40, 0)]
)
def test_long_segments_of_rans_give_the_values_of_bitpack(bound, outlier, gap):
    """Segments of 4, 16 and 32 states, one stream and two; low bits and escapes; strided; NaN."""
    num_rows, dim = torch.tensor([1031, 2100, 90, 1200, 2057, 4200]), 32
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), num_rows.cumsum(0)])
    stride = torch.full_like(num_rows, dim + gap)
    segments = Segments(offsets, dim, offsets[:-1] * (dim + gap), stride)
    values = torch.randn(int(num_rows.sum()), dim + gap, generator=torch.Generator().manual_seed(0))
    values[::577, 3] += outlier
    values[5000, 7] = math.nan
    expected, decoded = torch.full_like(values, -7), torch.full_like(values, -7)
    codec_of().decode(encode(values, segments, bound, True), segments, expected)
    encoded = encode(values, segments, bound, True, encoder="rans")
    assert all(int(encoded.payload[at + 4]) & 15 == cpu.RANS for at in encoded.at.tolist())
    codec_of().decode(encoded, segments, decoded)
    assert torch.equal(decoded.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("encoder", ["vector_lz", "rans"])
@pytest.mark.parametrize("dim", [1, 7, 16])
def test_every_encoder_gives_the_values_of_bitpack(encoder, dim):
    """Repeated rows for vector_lz, few indices for rans, noise for neither; strided, with NaN."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3 * 60, dim + 3, generator=generator)
    values[20:60] = values[:10].repeat(4, 1)
    values[60:120] = (values[60:120] * 0.7).round()
    values[7, 0] = math.nan
    segments = Segments(
        torch.tensor([0, 60, 120, 180]),
        dim,
        torch.arange(3) * 60 * (dim + 3),
        torch.full((3,), dim + 3),
    )
    expected = check(values, segments, 0.02, True)[1]
    _, decoded = check(values, segments, 0.02, True, encoder)
    assert torch.equal(decoded.view(torch.int32), expected.view(torch.int32))


def test_forged_segments_are_refused_by_both_or_by_none():
    """Change every byte of the header, and random bytes anywhere."""
    rows = torch.randn(9, 7, generator=torch.Generator().manual_seed(0))
    rows[2, 3], rows[5, 1] = math.nan, 1e30
    segments = Segments.packed([9], 7)
    encoded = encode(rows, segments, 0.05, False)
    size = int(encoded.nbytes[0])
    generator = torch.Generator().manual_seed(1)
    places = [(i, v) for i in range(8) for v in range(256)]
    drawn = (torch.randint(end, (1500,), generator=generator).tolist() for end in (size, 256))
    places += zip(*drawn, strict=True)
    refused, accepted = 0, 0
    for place, value in places:
        payload = encoded.payload[:size].clone()
        payload[place] = value
        results = []
        for backend in ("cpu", "reference"):
            out = torch.zeros(9, 7)
            try:
                forged = Encoded(payload, encoded.at, encoded.nbytes)
                on(backend, codec_of().decode, forged, segments, out)
                results.append(out.view(torch.int32).tolist())
            except CorruptFrameError as error:
                results.append(None)
                refused += error.segment == 0
        assert results[0] == results[1]
        accepted += results[0] is not None
    assert accepted > 0
    assert refused == 2 * (len(places) - accepted) > 0


@pytest.mark.parametrize("kind", ["bitpack", "raw", "constant"])
def test_every_other_size_is_refused(kind):
    rows = {
        "bitpack": torch.randn(9, 7, generator=torch.Generator().manual_seed(0)),
        "raw": torch.randn(1, 7, generator=torch.Generator().manual_seed(0)),
        "constant": torch.ones(9, 7),
    }[kind]
    segments = Segments.packed([len(rows)], 7)
    encoded = encode(rows, segments, 0.01 if kind != "raw" else 1e-20, False)
    size = int(encoded.nbytes[0])
    wrong = [n for n in range(0, size + 24, 8) if n != size]
    for n in wrong:
        payload = torch.zeros(size + 24, dtype=torch.uint8)
        payload[:size] = encoded.payload[:size]
        for backend in ("cpu", "reference"):
            forged = Encoded(payload, encoded.at, torch.tensor([n]))
            with pytest.raises(CorruptFrameError) as raised:
                on(backend, codec_of().decode, forged, segments, torch.zeros(len(rows), 7))
            assert raised.value.segment == 0


@pytest.mark.parametrize("num_values", [1, 2, 3])
def test_rans_of_as_many_bytes_as_values_is_refused(num_values):
    """Fewer than four bytes have no header of rANS, so nothing would be written."""
    segments, out = Segments.packed([num_values], 1), torch.full((num_values, 1), 777.0)
    words = np.array([np.float32(1).view(np.int32), cpu.RANS | (8 - num_values) << 4, 0, 0])
    data = torch.from_numpy(words.astype(np.int32)).view(torch.uint8)
    forged = Encoded(data, torch.tensor([0]), torch.tensor([16]))
    with pytest.raises(CorruptFrameError):
        on("cpu", codec_of().decode, forged, segments, out)
    with pytest.raises(ValueError, match="rans: wrong size"):
        reference.decode_segment(data, num_values, 1)


def test_codecs_refuse_what_kernels_cannot_take():
    segments = Segments.packed([2], 4)
    values, payload, at = torch.zeros(2, 4), torch.zeros(64, dtype=torch.uint8), torch.tensor([0])
    good = torch.tensor([0.1], dtype=torch.float64)
    for bounds in (good.float(), torch.zeros(2, dtype=torch.float64), good[None]):
        with pytest.raises(ValueError, match=r"bounds: expected \[1\] float64"):
            codec_of(True).encode(values, segments, payload, at, tolerances=bounds)
    for bad in (math.nan, math.inf, -1e-9):
        bounds = torch.tensor([bad], dtype=torch.float64)
        with pytest.raises(ValueError, match=r"bounds: .* of segment 0"):
            codec_of(True).encode(values, segments, payload, at, tolerances=bounds)
    with pytest.raises(ValueError, match="do not hold the segments"):
        codec_of(True).encode(values, segments, payload[:32], at, tolerances=good)


def test_groups_near_the_end_of_the_buffer_write_nothing_beyond():
    """The payload is exactly max_nbytes, inside a larger buffer."""
    segments = Segments.packed([3, 40], 33)
    values = torch.randn(43, 33, generator=torch.Generator().manual_seed(0))
    max_sizes = codec_of().max_nbytes(segments)
    at = exclusive_cumsum(max_sizes)[:-1] + 8
    for bound in (0.01, 1e-6, 1e-9):
        payload = torch.full((int(max_sizes.sum()) + 16,), 0xA5, dtype=torch.uint8)
        bounds = torch.full((2,), bound, dtype=torch.float64)
        codec_of(True).encode(values, segments, payload, at, tolerances=bounds)
        assert bool((payload[:8] == 0xA5).all())
        assert bool((payload[-8:] == 0xA5).all())
    assert bitpack.GROUP == 1024
