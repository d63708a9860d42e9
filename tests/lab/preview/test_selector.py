"""The model is its formula, the choice its maximum, and ratios are those of real bytes."""

import math

import pytest
import torch

from trec_qcomm.codecs import Cast, Identity, Rowwise
from trec_qcomm.core.segments import Segments
from trec_qcomm.ext.planner.cost_model import Throughput
from trec_qcomm.lab.preview.selector import Measurement, measure, select

FREE = Throughput(encode_gb_s=math.inf, decode_gb_s=math.inf)


def measurement(ratio: float, encode_gb_s: float, decode_gb_s: float) -> Measurement:
    throughput = Throughput(encode_gb_s=encode_gb_s, decode_gb_s=decode_gb_s)
    return Measurement(compression_ratio=ratio, throughput=throughput)


FAST = measurement(4.0, 4.0, 4.0)
SMALL = measurement(8.0, 0.5, 2.0)


def test_a_free_codec_gains_its_ratio() -> None:
    assert Measurement(compression_ratio=5, throughput=FREE).speed_up(100.0) == 5


@pytest.mark.parametrize("link_gb_s", [0.01, 1, 12.5])
def test_the_speed_up_is_time_over_time(link_gb_s) -> None:
    gigabytes = 3.0
    sent_raw_s = gigabytes / link_gb_s
    coded_s = gigabytes / 8 / link_gb_s + gigabytes / 0.5 + gigabytes / 2
    assert SMALL.speed_up(link_gb_s) == pytest.approx(sent_raw_s / coded_s, rel=1e-14)


def test_a_slow_link_wants_the_ratio_and_a_fast_one_the_throughput() -> None:
    candidates = {"fast": FAST, "small": SMALL}
    at_break_even = (1 / 4 - 1 / 8) / (1 / 0.5 + 1 / 2 - 1 / 4 - 1 / 4)
    assert select(candidates, link_gb_s=at_break_even * 0.99).name == "small"
    selection = select(candidates, link_gb_s=at_break_even * 1.01)
    assert selection.name == "fast"
    assert selection.speed_up == selection.speed_ups["fast"] > selection.speed_ups["small"]
    assert list(selection.speed_ups) == ["fast", "small"]


def test_where_nothing_pays_doing_nothing_is_chosen() -> None:
    raw = Measurement(compression_ratio=1, throughput=FREE)
    selection = select({"fast": FAST, "raw": raw}, link_gb_s=25)
    assert (selection.name, selection.speed_up) == ("raw", 1)
    assert selection.speed_ups["fast"] < 1


def test_of_equal_ones_the_first_is_chosen() -> None:
    assert select({"b": FAST, "a": FAST}, link_gb_s=1).name == "b"


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


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "2"])
def test_numbers_are_above_zero_and_finite(value) -> None:
    with pytest.raises(ValueError, match=r"link_gb_s: .* is not a finite number > 0"):
        select({"fast": FAST}, link_gb_s=value)
    with pytest.raises(ValueError, match=r"compression_ratio: .* is not a finite number > 0"):
        Measurement(compression_ratio=value, throughput=FREE)


def test_there_is_something_to_choose_from() -> None:
    with pytest.raises(ValueError, match="candidates: expected one or more"):
        select({}, link_gb_s=1)


@pytest.mark.parametrize(
    "batches",
    [
        [],
        [torch.zeros(0, 4)],
        [torch.zeros(4)],
        [torch.zeros(2, 4), torch.zeros(2, 5)],
        [torch.zeros(2, 4, dtype=torch.float64)],
    ],
)
def test_bad_batches_are_refused(batches) -> None:
    with pytest.raises(ValueError, match="batches: expected one or more of"):
        measure(Identity(), batches)
