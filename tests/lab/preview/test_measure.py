"""The speed-up is its formula, and ratios are those of real bytes."""

import math

import pytest
import torch

from trec_qcomm.codecs import Cast, Identity, Rowwise
from trec_qcomm.core.segments import Segments
from trec_qcomm.ext.planner.cost_model import Throughput
from trec_qcomm.lab.preview.measure import Measurement, measure


@pytest.mark.parametrize("link_gb_s", [0.01, 1, 12.5])
def test_the_speed_up_is_time_over_time(link_gb_s) -> None:
    speed = Throughput(encode_gb_s=0.5, decode_gb_s=2.0)
    gigabytes = 3.0
    coded_s = gigabytes / 8 / link_gb_s + gigabytes / 0.5 + gigabytes / 2
    measured = Measurement(compression_ratio=8.0, throughput=speed)
    assert measured.speed_up(link_gb_s) == pytest.approx(gigabytes / link_gb_s / coded_s, rel=1e-14)
    free = Throughput(encode_gb_s=math.inf, decode_gb_s=math.inf)
    assert Measurement(compression_ratio=5, throughput=free).speed_up(link_gb_s) == 5


@pytest.mark.parametrize("shapes", [[(7, 3)], [(5, 16), (1, 16)], [(2048, 64), (900, 64)]])
@pytest.mark.parametrize("codec", [Identity(), Cast("bf16"), Rowwise(4)], ids=repr)
def test_the_ratio_is_that_of_the_bytes(codec, shapes) -> None:
    batches = [torch.randn(*shape) for shape in shapes]
    raw = sum(4 * rows.numel() for rows in batches)
    encoded = codec.max_nbytes(Segments.packed([len(rows) for rows in batches], shapes[0][1]))
    measured = measure(codec, batches)
    assert measured.compression_ratio == raw / int(encoded.sum())
    assert 0.001 < measured.throughput.encode_gb_s < 1e3
    assert 0.001 < measured.throughput.decode_gb_s < 1e3
