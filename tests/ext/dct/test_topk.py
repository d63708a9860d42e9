import math
from dataclasses import dataclass

import pytest
import torch

from tests.ext.dct import by_hand
from trec_qcomm.codecs import Identity, Rowwise
from trec_qcomm.config import HopCodecs, TableRule
from trec_qcomm.core.segments import Segments
from trec_qcomm.ext.dct import ForwardMask, TopK
from trec_qcomm.ext.dct.masks import Masks
from trec_qcomm.testing import check_codec, check_frame, encode, round_trip

VALUES = ("fp32", "fp16", "int8")
KEEPS_ALL = [TopK(density=1.0, values=v) for v in VALUES]
BY_THRESHOLD = [TopK(threshold=t, values=v) for v in VALUES for t in (0.0, 0.3)]
BY_DENSITY = [TopK(density=d, values=v) for v in VALUES for d in (0.05, 0.25)]


@dataclass(frozen=True)
class AllColumns(ForwardMask):
    """Codec forward_mask with masks of all columns, so that the kit, without any, can test it."""

    def max_nbytes(self, segments):
        return super().max_nbytes(with_all_columns(segments))

    def encode(self, values, segments, *args, **options):
        return super().encode(values, with_all_columns(segments), *args, **options)

    def decode(self, encoded, segments, out):
        super().decode(encoded, with_all_columns(segments), out)


def with_all_columns(segments: Segments) -> Segments:
    dims = torch.full_like(segments.num_rows, segments.dim)
    return segments.with_notes(Masks.of_all_columns(segments.num_rows, dims))


@pytest.mark.parametrize("codec", KEEPS_ALL + BY_THRESHOLD, ids=repr)
def test_conformance(codec):
    check_codec(codec)


@pytest.mark.parametrize("values", VALUES)
def test_conformance_of_forward_mask(values):
    check_codec(AllColumns(values))


@pytest.mark.parametrize("codec", [KEEPS_ALL[0], BY_THRESHOLD[3], BY_DENSITY[-1]], ids=repr)
def test_damaged_frames(codec):
    check_frame(codec, dim=20)


def test_damaged_frames_of_forward_mask():
    check_frame(AllColumns("int8"))


def kept_columns(codec, rows):
    """Return the columns that arrive of one row, which has no zeros."""
    decoded = round_trip(codec, rows[None], Segments.packed([1], len(rows)))
    return decoded[0].nonzero().view(-1).tolist()


@pytest.mark.parametrize("dim", [1, 16, 300])
@pytest.mark.parametrize("codec", BY_DENSITY, ids=repr)
def test_density(codec, dim):
    """In each row k values arrive; sizes are exact. test_bytes.py has which, and their bytes."""
    row = torch.randn(dim, generator=torch.Generator().manual_seed(dim))
    k = max(1, math.ceil(round(codec.density * dim, 9)))
    assert codec.top_k(dim) == k
    assert kept_columns(codec, row) == by_hand.largest(row, k)
    segments = Segments.packed([3, 0, 1, 4], dim)
    encoded = encode(codec, row.repeat(8, 1), segments)
    assert torch.equal(encoded.nbytes, codec.max_nbytes(segments))


@pytest.mark.parametrize(("density", "dim", "k"), [
    (0.07, 100, 7), (0.05, 20, 1), (0.05, 21, 2), (1e-9, 64, 1), (1, 5, 5), (0.1, 30, 3),
    (0.29, 100, 29),
])  # fmt: skip
def test_density_is_taken_as_written(density, dim, k):
    """In binary 0.07 * 100 is above 7."""
    assert TopK(density=density).top_k(dim) == k


@pytest.mark.parametrize("threshold", [0.0, 0.3, 100.0])
def test_threshold(threshold):
    row, codec = torch.tensor([0.3, -0.4, 0.2, 7.0]), TopK(threshold=threshold, values="fp32")
    assert kept_columns(codec, row) == by_hand.above(row, threshold)
    assert codec.tolerance == threshold
    assert not codec.fixed_size


def test_small_gradients_keep_their_precision_in_fp16():
    """Unscaled, 1e-8 is below half of binary16's smallest number."""
    rows = 1e-8 * torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    decoded = round_trip(TopK(density=0.25), rows, Segments.packed([64], 64))
    kept = decoded != 0
    assert int(kept.sum()) == 64 * 16
    assert bool(((decoded - rows).abs()[kept] <= rows.abs()[kept] * 2**-11).all())


def test_forward_mask_cannot_work_alone():
    segments = Segments.packed([3], 4)
    codec = ForwardMask()
    payload, at = torch.zeros(256, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="there are none"):
        codec.encode(torch.ones(3, 4), segments, payload, at)
    encoded = AllColumns().encode(torch.ones(3, 4), segments, payload, at)
    with pytest.raises(ValueError, match="there are none"):
        codec.decode(encoded, segments, torch.ones(3, 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one of density"),
        ({"density": 0.1, "threshold": 0.1}, "give one of density"),
        ({"density": 0.0}, "topk.density: 0.0 is not"),
        ({"density": 1.5}, "topk.density: 1.5 is not"),
        ({"density": math.nan}, "topk.density: nan is not"),
        ({"density": "0.1"}, "topk.density: '0.1' is not"),
        ({"density": True}, "topk.density: True is not"),
        ({"threshold": -1.0}, "topk.threshold: -1.0 is not"),
        ({"threshold": math.inf}, "topk.threshold: inf is not"),
        ({"threshold": 10**400}, "topk.threshold: 1000"),
        ({"density": 0.1, "values": "bf16"}, r"topk.values: 'bf16' is not one of \('fp32', "),
    ],
)
def test_bad_fields_name_what_is_allowed(options, message):
    with pytest.raises(ValueError, match=message):
        TopK(**options)


def test_bad_values_of_forward_mask():
    with pytest.raises(ValueError, match=r"forward_mask.values: 'fp8' is not one of"):
        ForwardMask("fp8")


@pytest.mark.parametrize("pair", [HopCodecs, lambda **codecs: TableRule(tables=("*",), **codecs)])
def test_forward_mask_needs_topk_forward(pair):
    pair(forward=TopK(density=0.1), backward=ForwardMask())
    pair(forward=TopK(density=0.1), backward=Rowwise(4))
    with pytest.raises(ValueError, match="forward must be topk, not identity"):
        pair(forward=Identity(), backward=ForwardMask())
    with pytest.raises(ValueError, match="forward_mask is for backward only"):
        pair(forward=ForwardMask(), backward=Identity())
