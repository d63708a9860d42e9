"""Bytes are those of real frames; throughputs are checked, measured once and plausible."""

import math

import pytest
import torch

from trec_qcomm.codecs import Cast, Identity, Rowwise
from trec_qcomm.core.segments import Segments
from trec_qcomm.ext.planner.cost_model import (
    Throughput,
    measure_throughput,
    wire_nbytes,
)
from trec_qcomm.wire.frame import lay_out

CODECS = [Identity(), Cast("bf16"), Rowwise(8), Rowwise(4), Rowwise(2)]


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize(("num_rows", "dim"), [((512,), 64), ((3, 0, 7), 5), ((1,), 1)])
def test_a_frame_is_as_large_as_it_is_laid_out(codec, num_rows, dim) -> None:
    segments = Segments.packed(num_rows, dim)
    assert segments.num_rows.tolist() == list(num_rows)
    _, frames = lay_out(codec.max_nbytes(segments), [len(num_rows)])
    assert [wire_nbytes(codec, num_rows, dim)] == frames


def test_segments_lie_one_after_the_other() -> None:
    values = torch.arange(8.0)
    segments = Segments.packed((1, 3), 2)
    assert segments.block(values, 1).tolist() == [[2, 3], [4, 5], [6, 7]]


def test_codec_time_adds_both_ends() -> None:
    speed = Throughput(encode_gb_s=2.0, decode_gb_s=math.inf)
    assert speed.codec_s(encoded_nbytes=4e9, decoded_nbytes=1e12) == 2.0
    assert Throughput(encode_gb_s=1, decode_gb_s=4).codec_s(encoded_nbytes=1e9, decoded_nbytes=4e9)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, True, "fast", None])
@pytest.mark.parametrize("field", ["encode_gb_s", "decode_gb_s"])
def test_a_throughput_is_a_number_above_zero(field, value) -> None:
    values = {"encode_gb_s": 1.0, "decode_gb_s": 1.0} | {field: value}
    with pytest.raises(ValueError, match=rf"throughput\.{field}: .* is not a number > 0"):
        Throughput(**values)


def test_a_codec_is_measured_once_a_process() -> None:
    measured = measure_throughput(Rowwise(4), 16)
    assert measure_throughput(Rowwise(4), 16) is measured
    assert 0.001 < measured.encode_gb_s < 1e3
    assert 0.001 < measured.decode_gb_s < 1e3
