import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from trec_qcomm.codecs import Identity, Rowwise
from trec_qcomm.config import HopCodecs, TableRule, codec_from_dict, codec_to_dict
from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.ext.dct import ForwardMask, TopK
from trec_qcomm.ext.dct.masks import Masks
from trec_qcomm.testing import (
    awkward_rows,
    check_codec,
    check_frame,
    encode,
    interleaved_segments,
    round_trip,
)

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


def largest(rows: Tensor, k: int) -> Tensor:
    """Return [n, D] bool by the words of the docs: sort by magnitude, then by column."""
    keep = torch.zeros(rows.shape, dtype=torch.bool)
    for row, kept in zip(rows.tolist(), keep, strict=True):
        magnitudes = [math.inf if math.isnan(x) else abs(x) for x in row]
        order = sorted(range(len(row)), key=lambda d: (not math.isnan(row[d]), -magnitudes[d], d))
        kept[order[:k]] = True
    return keep


def allowed_error(x: Tensor, values: str) -> Tensor:
    """Return the error that ext.dct.values allows the values of one segment, plus the rounding of a
    product that is subnormal (2^-150)."""
    top = x.double().abs().max()
    if values == "fp32":
        return torch.zeros_like(x, dtype=torch.float64)
    if values == "fp16":
        return torch.maximum(x.double().abs() * 2**-11, top * 2**-38) + 2**-150
    return torch.full_like(x, float(max(top / 126, 2**-126) / 2), dtype=torch.float64) * (
        1 + 2**-22
    )


@pytest.mark.parametrize("codec", KEEPS_ALL + BY_THRESHOLD, ids=repr)
def test_conformance(codec):
    check_codec(codec)


@pytest.mark.parametrize("values", VALUES)
def test_conformance_of_forward_mask(values):
    check_codec(AllColumns(values))


@pytest.mark.parametrize("codec", KEEPS_ALL + BY_THRESHOLD + BY_DENSITY, ids=repr)
def test_damaged_frames(codec):
    check_frame(codec, dim=20)


@pytest.mark.parametrize("values", VALUES)
def test_damaged_frames_of_forward_mask(values):
    check_frame(AllColumns(values))


@pytest.mark.parametrize("dim", [1, 7, 16, 64, 100, 300])
@pytest.mark.parametrize("codec", BY_DENSITY, ids=repr)
def test_density(codec, dim):
    """In each row k values arrive in their columns, and the rest as +0; sizes are exact."""
    k = max(1, math.ceil(round(codec.density * dim, 9)))
    assert codec.top_k(dim) == k
    noise = torch.randn(24, dim, generator=torch.Generator().manual_seed(dim))
    for rows in (noise, noise * 1e-30, noise.round(), awkward_rows(dim)):
        for sizes in ([len(rows)], [3, 0, 1, len(rows) - 4]):
            segments = Segments.packed(sizes, dim)
            decoded = round_trip(codec, rows, segments)
            keep = largest(rows, k)
            assert torch.equal(
                decoded[~keep].view(torch.int32), torch.zeros(int((~keep).sum())).int()
            )
            assert torch.equal(decoded.isnan(), rows.isnan() & keep)
            infinite = rows.isinf() & keep
            assert torch.equal(decoded[infinite], rows[infinite])
            for s in range(len(sizes)):
                block, out = segments.block(rows, s), segments.block(decoded, s)
                finite = block.isfinite() & segments.block(keep.float(), s).bool()
                x, y = block[finite], out[finite]
                if x.numel():
                    error = (x.double() - y.double()).abs()
                    assert bool((error <= allowed_error(x, codec.values)).all())
            assert torch.equal(encode(codec, rows, segments).nbytes, codec.max_nbytes(segments))


@pytest.mark.parametrize("density", [0.05, 0.5])
def test_density_among_other_tables(density):
    codec = TopK(density=density, values="fp32")
    matrix = torch.randn(9, 3 * (20 + 3), generator=torch.Generator().manual_seed(0))
    segments = interleaved_segments(9, 3, 20)
    decoded = round_trip(codec, matrix, segments)
    inside = torch.zeros_like(matrix, dtype=torch.bool)
    for s in range(3):
        x = segments.block(matrix, s)
        expected = torch.where(largest(x, codec.top_k(20)), x, 0)
        assert torch.equal(segments.block(decoded, s), expected)
        segments.block(inside, s).fill_(True)
    assert bool(decoded[~inside].isnan().all())


@pytest.mark.parametrize(("density", "dim", "k"), [
    (0.07, 100, 7), (0.05, 20, 1), (0.05, 21, 2), (1e-9, 64, 1), (1, 5, 5), (0.1, 30, 3),
    (0.29, 100, 29),
])  # fmt: skip
def test_density_is_taken_as_written(density, dim, k):
    """In binary 0.07 * 100 is above 7."""
    assert TopK(density=density).top_k(dim) == k


def test_threshold():
    rows = torch.randn(50, 20, generator=torch.Generator().manual_seed(0))
    rows[3] = 0
    segments = Segments.packed([50], 20)
    for threshold in (0.0, 0.3, 2.0, 100.0):
        codec = TopK(threshold=threshold, values="fp32")
        expected = torch.where(rows.abs() >= threshold, rows, 0)
        assert torch.equal(round_trip(codec, rows, segments), expected)
        assert codec.tolerance == threshold
        assert not codec.fixed_size


def test_tolerances_take_the_place_of_the_threshold():
    rows = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    segments, codec = Segments.packed([10, 20], 8), TopK(threshold=9.0, values="fp32")
    most = codec.max_nbytes(segments)
    payload = torch.empty(int(most.sum()), dtype=torch.uint8)
    where = (rows, segments, payload, exclusive_cumsum(most)[:-1])
    encoded = codec.encode(*where, tolerances=torch.tensor([0.5, 1.0], dtype=torch.float64))
    out = torch.empty_like(rows)
    codec.decode(encoded, segments, out)
    thresholds = torch.tensor([0.5] * 10 + [1.0] * 20)[:, None]
    assert torch.equal(out, torch.where(rows.abs() >= thresholds, rows, 0))
    with pytest.raises(ValueError, match="tolerances are thresholds"):
        TopK(density=0.5).encode(*where, tolerances=torch.ones(2, dtype=torch.float64))


def test_a_row_with_more_nan_than_places_keeps_some():
    rows = torch.zeros(2, 8)
    rows[0, 2:7], rows[1, 1], rows[1, 5] = math.nan, math.inf, math.nan
    decoded = round_trip(TopK(density=0.25), rows, Segments.packed([2], 8))
    assert decoded[0].isnan().tolist() == [d in (2, 3) for d in range(8)]
    assert decoded[1].isnan().tolist() == [d == 5 for d in range(8)]
    assert decoded[1, 1] == math.inf


def test_small_gradients_keep_their_precision_in_fp16():
    """Unscaled, 1e-8 is below half of binary16's smallest number."""
    rows = 1e-8 * torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    decoded = round_trip(TopK(density=0.25), rows, Segments.packed([64], 64))
    kept = decoded != 0
    assert int(kept.sum()) == 64 * 16
    assert bool(((decoded - rows).abs()[kept] <= rows.abs()[kept] * 2**-11).all())


@pytest.mark.parametrize("stored", VALUES)
def test_forward_mask_sends_what_topk_kept(stored):
    generator = torch.Generator().manual_seed(0)
    rows, gradients = (torch.randn(40, 20, generator=generator) for _ in range(2))
    codec, backward_codec = TopK(density=0.2, values=stored), ForwardMask(stored)
    segments = with_all_columns(Segments.packed([15, 25], 20))
    encode(codec, rows, segments)
    keep = largest(rows, 4)
    assert int(backward_codec.max_nbytes(segments).sum()) == sum(
        -(-(8 + n * 4 * size) // 8) * 8
        for n in (15, 25)
        for size in [{"fp32": 4, "fp16": 2, "int8": 1}[stored]]
    )
    decoded = round_trip(backward_codec, gradients, segments)
    assert torch.equal(decoded[~keep], torch.zeros(40 * 16))
    for s in range(2):
        x, y = segments.block(gradients, s), segments.block(decoded, s)
        kept = segments.block(keep.float(), s).bool()
        error = (x[kept].double() - y[kept].double()).abs()
        assert bool((error <= allowed_error(x[kept], stored)).all())


def test_forward_mask_cannot_work_alone():
    segments = Segments.packed([3], 4)
    codec = ForwardMask()
    payload, at = torch.zeros(256, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="there are none"):
        codec.encode(torch.ones(3, 4), segments, payload, at)
    encoded = AllColumns().encode(torch.ones(3, 4), segments, payload, at)
    with pytest.raises(ValueError, match="there are none"):
        codec.decode(encoded, segments, torch.ones(3, 4))


def test_ratio_of_dct():
    """A row of 128 values, 6 kept as fp16, takes 12 bytes and 6 x 7 bits; back, 12 bytes."""
    codec, segments = TopK(density=6 / 128), Segments.packed([2048], 128)
    forward, raw = int(codec.max_nbytes(segments)[0]), 2048 * 512
    assert forward == 8 * math.ceil((12 + 2048 * 12 + 2048 * 42 / 8) / 8)
    assert raw / forward >= 28
    segments = with_all_columns(segments)
    encode(codec, torch.randn(2048, 128, generator=torch.Generator().manual_seed(0)), segments)
    backward = int(ForwardMask().max_nbytes(segments)[0])
    assert backward == 8 + 2048 * 12
    assert round(raw / backward) >= 43  # 42.67 is all that 12 of 512 bytes can give


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


@pytest.mark.parametrize("codec", [*BY_DENSITY, *BY_THRESHOLD, ForwardMask("int8")], ids=repr)
def test_config_round_trip(codec):
    assert codec_from_dict(codec_to_dict(codec)) == codec


@pytest.mark.parametrize("pair", [HopCodecs, lambda **codecs: TableRule(tables=("*",), **codecs)])
def test_forward_mask_needs_topk_forward(pair):
    pair(forward=TopK(density=0.1), backward=ForwardMask())
    pair(forward=TopK(density=0.1), backward=Rowwise(4))
    with pytest.raises(ValueError, match="forward must be topk, not identity"):
        pair(forward=Identity(), backward=ForwardMask())
    with pytest.raises(ValueError, match="forward_mask is for backward only"):
        pair(forward=ForwardMask(), backward=Identity())
