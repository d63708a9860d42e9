"""Records of bench-net, and what is predicted against what they measured."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulate import made
from tests.simulate.made import BEST, DISTINCT, INT8, TRUE, record, write
from trec_qcomm.simulate.records import KINDS, find_way, load_runs, parse_rate
from trec_qcomm.simulate.validation import FIT_WAYS, Fit, predict_s, validate

RECORDS = Path(__file__).resolve().parents[2] / "examples" / "bench" / "results" / "net.jsonl"


def test_rates_are_those_of_tc() -> None:
    assert parse_rate("100mbit") == 0.0125
    assert parse_rate("1gbit") == 0.125
    assert parse_rate("2.5gbit") == 0.3125
    assert parse_rate("none") is None
    for wrong in ("100", "mbit", "fast", "-1gbit", "0gbit", "1.2.3bit"):
        with pytest.raises(ValueError, match=r"is not none or a number with bit, kbit"):
            parse_rate(wrong)


def test_a_prediction_by_hand(tmp_path: Path) -> None:
    """On 2 hosts of 12.5 MB/s, where half of the time is waited: two turns."""
    (run,), _ = load_runs(write(tmp_path / "one.jsonl", [record("int8")]))
    payload = 1448 * 1000.0
    run = replace(run, sent=dict.fromkeys(KINDS, payload))
    message_s, burst_s = 1514 * 1000 / 12.5e6, 262144 / 12.5e6
    rows_s = 2 * (message_s - burst_s) + message_s
    dense_s = message_s - burst_s
    assert predict_s(run, 0.3, Fit(wait=0.0, overlap=0.0)) == pytest.approx(0.3 + rows_s + dense_s)
    fitted = Fit(wait=0.5, overlap=0.1)
    assert predict_s(run, 0.3, fitted) == pytest.approx(0.3 + 2 * rows_s + dense_s - 0.03)
    # All three pairs of 4 hosts wait an eighth of the time.
    four = predict_s(replace(run, hosts=4), 0.3, fitted)
    assert four == pytest.approx(0.3 + rows_s / (1 - 1 / 8) + dense_s - 0.03)
    assert predict_s(replace(run, gb_s=None), 0.3, fitted) == 0.3


def test_a_known_fit_is_found_again(tmp_path: Path) -> None:
    """From two runs; and all others are predicted but for one that was disturbed."""
    path = tmp_path / "net.jsonl"
    records = made.everything(path)
    runs, left_out = load_runs(write(path, records))
    assert left_out == []
    fit, predictions = validate(runs, FIT_WAYS)
    assert (fit.wait, fit.overlap) == (TRUE.wait, TRUE.overlap)
    assert len(predictions) == 5 * 2 * 2  # ways, hosts, links
    assert [p.ratio for p in predictions] == pytest.approx([1] * len(predictions))
    fitted = {(p.run.way, p.run.hosts, p.run.rate) for p in predictions if p.fitted}
    assert fitted == {(way, 2, "100mbit") for way in FIT_WAYS}

    disturbed = next(
        r for r in records if (r["way"], r["hosts"], r["rate"]) == ("best", 4, "1gbit")
    )
    disturbed["step_s"]["p50"] *= 1.3
    fit, predictions = validate(load_runs(write(path, records))[0], FIT_WAYS)
    assert fit == TRUE
    (wrong,) = (p for p in predictions if not p.holds)
    assert (wrong.run.way, wrong.run.hosts, wrong.run.rate) == ("best", 4, "1gbit")
    assert wrong.ratio == pytest.approx(1 / 1.3)


def test_a_comment_does_not_part_a_run_from_its_base(tmp_path: Path) -> None:
    """But what the config means does, and options that make no difference do not."""
    path = tmp_path / "net.jsonl"
    records = made.everything(path)
    for r in records:
        if (r["way"], r["rate"]) == ("int8", "none"):
            r["config"] = "# another day\n" + r["config"].replace('["*"]', "['*']")
        if r["rate"] == "none":
            r["options"] = r["options"] | {"tensorboard": "runs/tensorboard", "out": "there"}
    assert len(validate(load_runs(write(path, records))[0], FIT_WAYS)[1]) == 5 * 2 * 2
    for r in records:
        if (r["way"], r["rate"]) == ("int8", "none"):
            r["config"] = r["config"].replace("bits: 8", "bits: 4")
    assert len(validate(load_runs(write(path, records))[0], FIT_WAYS)[1]) == 4 * 2 * 2


def test_ratios_are_those_of_the_records(tmp_path: Path) -> None:
    runs, _ = load_runs(write(tmp_path / "net.jsonl", made.everything(tmp_path / "net.jsonl")))
    stock, half, int8, best = (
        find_way(name, runs) for name in ("stock", "stock_fp16", "int8", "best")
    )
    assert (stock.forward, stock.backward, stock.dense) == pytest.approx((1, 1, 1))
    assert (half.forward, half.backward, half.dense) == pytest.approx((2, 2, 1))
    assert (int8.forward, int8.backward, int8.dense) == (4, 4, 1)
    assert (best.forward, best.backward, best.dense) == pytest.approx((10, 8, 2))
    assert (stock.distinct, half.distinct, int8.distinct, best.distinct) == (1, 1, 1, DISTINCT)
    assert (stock.ours, int8.ours) == (False, True)
    assert (best.sizes_first, int8.sizes_first) == (True, False)
    with pytest.raises(ValueError, match=r"ways: 'int16' was not measured; expected of .*int8"):
        find_way("int16", runs)


def test_bytes_of_all_bags_are_asked_for(tmp_path: Path) -> None:
    """Where every config merges equal bags nothing says how many bytes plain TorchRec sends."""
    path = tmp_path / "net.jsonl"
    merging = [record("unique_int4"), record("best")]
    missing = (
        r"records .*: stock, 100mbit: the bytes of all bags are not known: on 2 hosts only "
        r"unique_int4, best was measured, .*; expected a config with unique_bags: false"
    )
    with pytest.raises(ValueError, match=missing):
        load_runs(write(path, [*merging, record("stock")]))
    runs, _ = load_runs(write(path, merging))
    with pytest.raises(ValueError, match=r"ways: 'best': the bytes of all bags are not known"):
        find_way("best", runs)
    elsewhere, _ = load_runs(write(path, [*merging, record("int8", hosts=4)]))
    with pytest.raises(ValueError, match=r"ways: 'best': the bytes of all bags are not known"):
        find_way("best", elsewhere)


@pytest.mark.parametrize("part", ["embedding_forward", "embedding_backward", "dense"])
def test_a_ratio_of_nothing_is_refused(tmp_path: Path, part: str) -> None:
    nothing = record("int8")
    nothing["counted"][part] |= {"wire_nbytes": [0, 0]}
    runs, _ = load_runs(write(tmp_path / "net.jsonl", [nothing]))
    kind = part.removeprefix("embedding_")
    with pytest.raises(ValueError, match=rf"ways: 'int8' has no ratio of {kind}: .* expected both"):
        find_way("int8", runs)


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    delayed = record("int8") | {"delay": "1ms"}
    lonely = record("stock", hosts=3)
    usable = record("unique_int4")
    runs, left_out = load_runs(write(tmp_path / "some.jsonl", [usable, delayed, lonely]))
    assert [run.way for run in runs] == ["unique_int4"]
    assert left_out == [
        "line 2: int8: a delay of 1ms",
        "stock, 3 hosts, 100mbit: no config beside it",
    ]
    with pytest.raises(ValueError, match="nothing to validate: expected runs with a limit"):
        validate(runs, FIT_WAYS)
    with pytest.raises(ValueError, match=r"records .*: no run that can be used"):
        load_runs(write(tmp_path / "none.jsonl", [lonely]))
    with pytest.raises(ValueError, match=r"records .*, line 1: "):
        load_runs(write(tmp_path / "none.jsonl", [record("int8") | {"config": "a: [b"}]))


def test_of_equal_runs_the_last_counts(tmp_path: Path) -> None:
    again = record("int8", step_s=7.0) | {"config": f"# again\n{INT8}"}
    (run,), _ = load_runs(write(tmp_path / "two.jsonl", [record("int8"), again]))
    assert run.step_s == 7.0
    other = record("int8", step_s=9.0) | {"config": BEST}
    assert len(load_runs(write(tmp_path / "two.jsonl", [record("int8"), other]))[0]) == 2


def test_ratios_are_those_of_the_fewest_hosts_and_the_last_run(tmp_path: Path) -> None:
    found = []
    for hosts, rate, divisor in ((4, "none", 2), (2, "1gbit", 5), (2, "none", 3), (4, "1gbit", 7)):
        one = record("int8", hosts, rate)
        forward = one["counted"]["embedding_forward"]
        forward["wire_nbytes"] = [nbytes / divisor for nbytes in forward["raw_nbytes"]]
        found.append(one)
    runs, _ = load_runs(write(tmp_path / "four.jsonl", found))
    assert len(runs) == 4
    assert find_way("int8", runs).forward == pytest.approx(3)


def test_the_committed_records_can_be_read() -> None:
    """What any run of bench-net gives, whatever it measured."""
    runs, left_out = load_runs(RECORDS)
    assert left_out == []
    fit, predictions = validate(runs, FIT_WAYS)
    assert sum(p.fitted for p in predictions) == len(FIT_WAYS) < len(predictions)
    assert all(0 < p.ratio < math.inf for p in predictions)
    assert 0 <= fit.wait <= 0.5
    for name in {run.way for run in runs}:
        way = find_way(name, runs)
        assert 0 < way.distinct <= 1
        assert way.ours == (not name.startswith("stock"))
