"""Sizes of segments: measured on rows, known of a codec, or kept in a record."""

import math

import pytest
import torch

from trec_qcomm import ErrorBounded, Rowwise
from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.ext.dct import ForwardMask
from trec_qcomm.ext.planner.sizes import FixedSizes, RecordedSizes, SampledSizes, SizeCurve

DIM = 16


def rows(num_rows, seed):
    return torch.randn(num_rows, DIM, generator=torch.Generator().manual_seed(seed))


def really_encoded(codec, block, bound=None):
    segments = Segments.packed([len(block)], block.shape[1])
    room = codec.max_nbytes(segments)
    payload, at = torch.empty(int(room), dtype=torch.uint8), exclusive_cumsum(room)[:-1]
    bounds = None if bound is None else torch.tensor([bound], dtype=torch.float64)
    encoded = codec.encode(block.contiguous().view(-1), segments, payload, at, tolerances=bounds)
    return int(encoded.nbytes)


def test_a_curve_is_a_power_between_points_and_proportional_below() -> None:
    curve = SizeCurve((1.0, 100.0), (32.0, 3200.0 / 2))
    assert (curve.at(1), curve.at(100)) == pytest.approx((32, 1600))
    assert (curve.at(0.25), curve.at(0)) == (8, 0)
    assert curve.at(10) == pytest.approx(math.sqrt(32 * 1600))
    assert curve.at(10_000) == pytest.approx(1600 * 1600 / 32)  # the same power beyond
    assert SizeCurve((4.0,), (8.0,)).at(12) == 24
    for num_rows, nbytes in (((), ()), ((2.0, 1.0), (1.0, 2.0)), ((1.0,), (0.0,)), ((1.0,), ())):
        with pytest.raises(ValueError, match=r"(num_rows|nbytes): expected"):
            SizeCurve(num_rows, nbytes)


def test_whole_blocks_have_the_size_that_they_encode_to() -> None:
    """Segments of fewer rows, of fewer columns and of a share of the bound are near enough."""
    codec, blocks = ErrorBounded(0.01, encoder="bitpack"), [rows(300, 0), rows(300, 1)]
    sizes = SampledSizes(codec, blocks)
    mean = sum(really_encoded(codec, block) for block in blocks) / 2
    assert sizes.nbytes(300, DIM) == pytest.approx(mean)
    # A bound of a quarter takes two bits more a value, and rows are sent beside others as before.
    quarter = sum(really_encoded(codec, block, 0.01 / 4) for block in blocks) / 2
    assert sizes.nbytes(300, DIM, num_terms=4) == pytest.approx(quarter)
    assert quarter - mean == pytest.approx(300 * DIM * 2 / 8, rel=0.2)
    halves = [really_encoded(codec, block[:, :8]) for block in blocks]
    assert sizes.nbytes(300, DIM // 2) == pytest.approx(sum(halves) / 2, rel=0.05)
    fewer = [really_encoded(codec, block[:100]) for block in blocks]
    assert sizes.nbytes(100, DIM) == pytest.approx(sum(fewer) / 2, rel=0.05)
    assert sizes.nbytes(300, 2 * DIM) == pytest.approx(2 * sizes.nbytes(300, DIM))


def test_a_fixed_size_needs_no_rows() -> None:
    sizes = FixedSizes(Rowwise(8))
    seven, eight = Rowwise(8).max_nbytes(Segments.packed([7, 8], DIM)).tolist()
    assert sizes.nbytes(7, DIM) == seven
    assert sizes.nbytes(7.25, DIM, num_terms=4) == seven + 0.25 * (eight - seven)


def test_what_was_recorded_is_found_again_and_the_rest_taken_from_what_is_near() -> None:
    sampled = SampledSizes(ErrorBounded(0.01, encoder="bitpack"), [rows(300, 0)])
    recorded = RecordedSizes(sampled.recorded())
    for dim, terms in ((DIM, 1), (DIM, 2), (DIM, 4), (DIM, 8), (DIM // 2, 1), (DIM // 4, 1)):
        assert recorded.nbytes(50, dim, num_terms=terms) == sampled.nbytes(50, dim, num_terms=terms)
    for terms in (3, 16, 64):  # by the logarithm
        near = sampled.nbytes(300, DIM, num_terms=terms)
        assert recorded.nbytes(300, DIM, num_terms=terms) == pytest.approx(near, rel=0.05)
    assert recorded.nbytes(50, 2 * DIM) == 2 * recorded.nbytes(50, DIM)


def test_rows_that_cannot_be_measured_are_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks: expected one or more of \[n > 0, D\]"):
        SampledSizes(ErrorBounded(0.01), [torch.empty(0, DIM)])
    with pytest.raises(ValueError, match="codec: forward_mask reads masks"):
        SampledSizes(ForwardMask(), [rows(4, 0)])
