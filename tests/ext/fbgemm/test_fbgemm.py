"""Codec fbgemm is FBGEMM's operators, row for row and bit for bit, and says what they refuse.

What an operator makes of rows is taken from a call of it on one segment's contiguous rows.
"""

import sys
from typing import get_args

import pytest
import torch

from tests.ext.fbgemm.fbgemm_round_trips import (
    coded_by_fbgemm,
    decoded_by_fbgemm,
    fbgemm_round_trip,
)
from tests.virtual.dry_run import GPU, dry_run
from trec_qcomm import Contract, Fbgemm, GradientRule, UnencodableError
from trec_qcomm.config import codec_from_dict
from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.ext import fbgemm
from trec_qcomm.ext.fbgemm import operators
from trec_qcomm.ext.fbgemm.codec import Precision
from trec_qcomm.testing import check_codec, check_frame, encode, interleaved_segments, round_trip

PRECISIONS = get_args(Precision)
MULTIPLE = {name: layout.multiple for name, layout in fbgemm.LAYOUTS.items()}
every_precision = pytest.mark.parametrize("precision", PRECISIONS)
INF, NAN = torch.inf, torch.nan
DIMS = (*range(1, 73), 96, 100, 127, 128, 256, 500, 512)


@every_precision
def test_conformance(precision):
    codec = Fbgemm(precision)
    assert codec.contract is Contract.BIASED
    dims = [dim for dim in (1, 4, 7, 8, 16, 24, 64) if dim % MULTIPLE[precision] == 0]
    check_codec(codec, dims=dims)


@every_precision
def test_rows_that_lie_one_behind_the_other_are_not_gathered(precision, monkeypatch):
    values, codec = torch.randn(9, 8), Fbgemm(precision)
    rows, segments = values[2:8], Segments.packed([1, 0, 5], 8)
    offset = Segments(segments.offsets, 8, segments.start + 16, segments.stride)
    apart = torch.cat([values, torch.zeros(9, 1)], 1)
    gathered = Segments(segments.offsets, 8, segments.start // 8 * 9 + 18, segments.stride + 1)
    expected = encode(codec, apart, gathered).payload
    monkeypatch.setattr(torch.Tensor, "index_select", None)
    assert torch.equal(encode(codec, values, offset).payload, expected)
    assert torch.equal(encode(codec, rows.contiguous(), segments).payload, expected)


@pytest.mark.parametrize("precision", ["int8", "mx4"])
def test_damaged_frames(precision):
    check_frame(Fbgemm(precision), dim=8, num_mutations=100)


@every_precision
def test_every_dim_is_refused_or_equals_fbgemm(precision):
    """In segments of 2, 0 and 1 rows that lie apart."""
    codec, refused = Fbgemm(precision), []
    generator = torch.Generator().manual_seed(0)
    for dim in DIMS:
        try:
            codec.check_dim(dim)
        except ValueError:
            refused.append(dim)
            with pytest.raises(ValueError, match=f"precision {precision}: rows of {dim} values"):
                codec.max_nbytes(Segments.packed([1], dim))
            continue
        values = torch.randn(3, 2 * dim + 3, generator=generator)
        stride = torch.full((3,), 2 * dim + 3)
        segments = Segments(torch.tensor([0, 2, 2, 3]), dim, torch.tensor([0, 1, 2 + dim]), stride)
        encoded = encode(codec, values, segments)
        decoded = round_trip(codec, values, segments)
        for s, (at, nbytes) in enumerate(zip(encoded.at, encoded.nbytes, strict=True)):
            rows = segments.block(values, s).contiguous()
            coded = coded_by_fbgemm(precision, rows)
            assert torch.equal(encoded.payload[at:][: len(coded)], coded)
            assert not encoded.payload[at + len(coded) : at + nbytes].any()
            assert torch.equal(segments.block(decoded, s), fbgemm_round_trip(precision, rows))
    assert refused == [dim for dim in DIMS if dim % MULTIPLE[precision]]


@every_precision
def test_nonfinite_raise_names_the_first_segment(precision):
    dim = 3 if MULTIPLE[precision] == 1 else 8
    rows, segments = torch.randn(6, dim), Segments.packed([1, 0, 2, 3], dim)
    codec = Fbgemm(precision, nonfinite="raise")
    expected = round_trip(Fbgemm(precision), rows, segments)
    assert torch.equal(round_trip(codec, rows, segments), expected)
    rows[5, 1], rows[1, 0] = NAN, INF
    with pytest.raises(UnencodableError, match="NaN or inf") as raised:
        encode(codec, rows, segments)
    assert raised.value.segment == 2


@pytest.mark.parametrize("precision", ["fp8", "fp8_e5m2"])
def test_fp8_on_a_cpu_is_the_format_that_fbgemm_documents(precision):
    """FBGEMM has FP8 rows for GPUs only. Here torch's float8 types, which have other biases and
    the same values, stand for its format."""
    dtype, shift, largest = {
        "fp8": (torch.float8_e4m3fn, 8, 0.9375),
        "fp8_e5m2": (torch.float8_e5m2, 16, 0.875),
    }[precision]
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(500, 16, generator=generator) * 10.0 ** torch.linspace(-18, 37, 500)[:, None]
    rows[0], rows[1] = 0, rows[1] * 1e-5
    coded = coded_by_fbgemm(precision, rows).view(500, 24)
    most = rows.abs().amax(1, keepdim=True).clamp(min=1e-20)
    scale = torch.full((500, 1), largest) / most.add(1e-20)
    assert torch.equal(coded[:, 16:20].contiguous().view(torch.float32), scale)
    assert not coded[:, 20:].any()
    codes = (rows * scale * 2.0**shift).to(dtype)
    assert torch.equal(coded[:, :16], codes.view(torch.uint8))
    decoded = decoded_by_fbgemm(precision, coded.flatten(), 16)
    assert torch.equal(decoded, codes.float() * 2.0**-shift / scale)


def test_sizes():
    for precision, nbytes in zip(PRECISIONS, (72, 36, 20, 72, 72, 34, 128, 128), strict=True):
        segments = Segments.packed([8, 1], 64)
        assert Fbgemm(precision).max_nbytes(segments).tolist() == [8 * nbytes, -(-nbytes // 8) * 8]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"precision": "int6"}, "precision"),
        ({"precision": "int8", "nonfinite": "keep"}, "nonfinite"),
    ],
)
def test_bad_fields_are_named(fields, name):
    with pytest.raises(ValueError, match=f"fbgemm.{name}"):
        Fbgemm(**fields)


def test_a_block_that_fbgemm_does_not_take_is_refused():
    with pytest.raises(ValueError, match="block: codec fbgemm, precision int2: rows of 20 values"):
        GradientRule(codec=Fbgemm("int2"), block=20)


def test_too_many_values_for_32_bits_are_refused(monkeypatch):
    monkeypatch.setattr(operators, "LARGEST_CALL", 15)
    with pytest.raises(ValueError, match="16 values in one call; at most 15"):
        round_trip(Fbgemm("int8"), torch.ones(2, 8), Segments.packed([2], 8))


def test_without_fbgemm_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fbgemm_gpu", None)
    with pytest.raises(ValueError, match="forward: codec fbgemm: FBGEMM is not installed: pip"):
        codec_from_dict({"codec": "fbgemm", "precision": "int8"}, where="forward")


ON_A_GPU = {  # FBGEMM's operators there; casts are torch's: a clamp and two conversions
    "int8": {"FloatToFused8BitRowwiseQuantized", "Fused8BitRowwiseQuantizedToFloat"},
    "int4": {"FloatToFusedNBitRowwiseQuantizedSBHalf", "FusedNBitRowwiseQuantizedSBHalfToFloat"},
    "fp8": {"FloatToFP8RowwiseQuantized", "FP8RowwiseQuantizedToFloat"},
    "fp16": set(),
}
ON_A_GPU |= {"int2": ON_A_GPU["int4"], "fp8_e5m2": ON_A_GPU["fp8"], "bf16": set()}


@pytest.mark.triton
@pytest.mark.parametrize("num_tables", [1, 26])
@pytest.mark.parametrize("precision", ON_A_GPU)  # mx4 takes its Python for all but CUDA
def test_on_a_gpu_one_operator_codes_all_segments_and_nothing_waits(precision, num_tables):
    segments, codec = interleaved_segments(5, num_tables, 16), Fbgemm(precision)
    at = exclusive_cumsum(codec.max_nbytes(segments))
    with dry_run() as run:
        values, out = (torch.empty(5, num_tables * 19, device=GPU) for _ in range(2))
        payload = torch.empty(int(at[-1]), dtype=torch.uint8, device=GPU)
        with run:
            encoded = codec.encode(values, segments, payload, at[:-1])
            codec.decode(encoded, segments, out)
    counted = run.taken()
    assert {name.split("::")[1] for name in counted.names if "fbgemm::" in name} == ON_A_GPU[
        precision
    ]
    costs = counted.costs
    assert (costs.kernels, costs.uploads, costs.downloads, costs.waits) == (0, 5, 0, 0)
    assert costs.torch <= 31  # what FBGEMM launches, and copies of rows and bytes
