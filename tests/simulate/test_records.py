"""Records of bench-net, and what is predicted against what they measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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


def test_a_prediction_by_hand() -> None:
    """On 2 hosts of 12.5 MB/s, where half of the time is waited: two turns."""
    runs, _ = load_runs(RECORDS)
    run = next(r for r in runs if r.gb_s is not None)
    payload = 1448 * 1000.0
    run = replace(run, hosts=2, gb_s=0.0125, sent=dict.fromkeys(KINDS, payload))
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


def test_the_committed_records_are_predicted() -> None:
    """At 2 hosts every run: within 20 % what the fit has not seen, almost exactly what it has."""
    runs, left_out = load_runs(RECORDS)
    assert left_out == []
    fit, predictions = validate(runs, FIT_WAYS)
    at_two = [p for p in predictions if p.run.hosts == 2]
    assert sum(p.fitted for p in at_two) == len(FIT_WAYS)
    assert len(at_two) >= 22
    assert all(p.holds for p in at_two)
    assert all(abs(p.ratio - 1) < 0.01 for p in at_two if p.fitted)
    # One direction after the other, the most that is possible, and part of the compute.
    assert 0.4 < fit.wait <= 0.5
    assert 0.1 < fit.overlap < 0.4


def test_without_what_is_fitted_the_prediction_fails() -> None:
    """So that the test above is not one that any numbers pass."""
    runs, _ = load_runs(RECORDS)
    _, predictions = validate(runs, FIT_WAYS)
    slow = next(p.run for p in predictions if (p.run.way, p.run.rate) == ("stock", "100mbit"))
    base_s = next(r.step_s for r in runs if (r.way, r.hosts, r.rate) == ("stock", 2, "none"))
    assert predict_s(slow, base_s, Fit(wait=0.0, overlap=0.0)) < 0.8 * slow.step_s


def test_ratios_are_those_of_the_records() -> None:
    runs, _ = load_runs(RECORDS)
    stock, half, int8, best = (
        find_way(name, runs) for name in ("stock", "stock_fp16", "int8", "best")
    )
    assert stock.forward == pytest.approx(1, abs=1e-3)
    assert half.forward == half.backward == pytest.approx(2, abs=0.01)
    assert (stock.distinct, int8.distinct, int8.ours, stock.ours) == (
        1,
        1,
        True,
        False,
    )
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    counted = next(r for r in records if r["way"] == "int8" and r["hosts"] == 2)["counted"]
    forward = counted["embedding_forward"]
    assert int8.forward == pytest.approx(max(forward["raw_nbytes"]) / max(forward["wire_nbytes"]))
    assert 0.2 < best.distinct < 0.3
    assert (best.sizes_first, int8.sizes_first) == (True, False)
    with pytest.raises(ValueError, match=r"ways: 'int16' was not measured; expected of .*int8"):
        find_way("int16", runs)


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    of = {r["way"]: r for r in records if r["hosts"] == 2 and r["rate"] == "100mbit"}
    delayed = of["int8"] | {"delay": "1ms"}
    lonely = of["stock"] | {"hosts": 3}
    runs, left_out = load_runs(write(tmp_path / "some.jsonl", [of["int4"], delayed, lonely]))
    assert [run.way for run in runs] == ["int4"]
    assert left_out == [
        "line 2: int8: a delay of 1ms",
        "stock, 3 hosts, 100mbit: no config beside it",
    ]
    with pytest.raises(ValueError, match="nothing to validate: expected runs with a limit"):
        validate(runs, FIT_WAYS)
    with pytest.raises(ValueError, match=r"records .*: no run that can be used"):
        load_runs(write(tmp_path / "none.jsonl", [lonely]))


def test_of_equal_runs_the_last_counts(tmp_path: Path) -> None:
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    first = next(r for r in records if r["way"] == "int4")
    again = first | {"step_s": {"p50": 7.0}}
    (run,), _ = load_runs(write(tmp_path / "two.jsonl", [first, again]))
    assert run.step_s == 7.0


def test_ratios_are_those_of_the_fewest_hosts_and_the_last_run(tmp_path: Path) -> None:
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    first = next(r for r in records if (r["way"], r["hosts"]) == ("int8", 2))
    forward = first["counted"]["embedding_forward"]
    found = []
    for hosts, rate, divisor in ((4, "none", 2), (2, "1gbit", 5), (2, "none", 3), (4, "1gbit", 7)):
        wire = [nbytes / divisor for nbytes in forward["raw_nbytes"]]
        counted = first["counted"] | {"embedding_forward": forward | {"wire_nbytes": wire}}
        found.append(first | {"hosts": hosts, "rate": rate, "counted": counted})
    runs, _ = load_runs(write(tmp_path / "four.jsonl", found))
    assert len(runs) == 4
    assert find_way("int8", runs).forward == pytest.approx(3)
