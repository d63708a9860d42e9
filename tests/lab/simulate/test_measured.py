"""Measured steps, and what is predicted of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lab.simulate import sample_records
from tests.lab.simulate.sample_records import TRUE, network, timed, write
from trec_qcomm.lab.records import TRAFFIC_GROUPS
from trec_qcomm.lab.simulate.measured import hosts_text, load_steps
from trec_qcomm.lab.simulate.validation import (
    FIT_CONFIGURATIONS,
    Fit,
    holds,
    pairs,
    predict_s,
    validate,
)

RESULTS = Path(__file__).resolve().parents[3] / "examples" / "bench" / "results"
CLUSTERS = RESULTS / "clusters.jsonl"


def test_a_prediction_by_hand(tmp_path: Path) -> None:
    """On 2 hosts of 12.5 MB/s, where half of the time is waited: two turns."""
    (step,), _ = load_steps(write(tmp_path / "one.jsonl", [network("int8")]))
    payload = 1448 * 1000.0
    step = replace(step, sent=dict.fromkeys(TRAFFIC_GROUPS, payload))
    message_s, burst_s = 1514 * 1000 / 12.5e6, 262144 / 12.5e6
    rows_s = 2 * (message_s - burst_s) + message_s
    dense_s = message_s - burst_s
    assert predict_s(step, 0.3, Fit(wait=0.0, overlap=0.0)) == pytest.approx(0.3 + rows_s + dense_s)
    fitted = Fit(wait=0.5, overlap=0.1)
    assert predict_s(step, 0.3, fitted) == pytest.approx(0.3 + 2 * rows_s + dense_s - 0.03)
    # All three pairs of 4 hosts wait an eighth of the time.
    four = predict_s(replace(step, num_hosts=4), 0.3, fitted)
    assert four == pytest.approx(0.3 + rows_s / (1 - 1 / 8) + dense_s - 0.03)
    assert predict_s(replace(step, gb_s=None), 0.3, fitted) == 0.3


def test_a_known_fit_is_found_again(tmp_path: Path) -> None:
    """From two runs; and all others are predicted but for one that was disturbed."""
    path = tmp_path / "net.jsonl"
    records = sample_records.everything(path)
    steps, left_out = load_steps(write(path, records))
    assert left_out == []
    fit, predictions = validate(steps, FIT_CONFIGURATIONS)
    assert (fit.wait, fit.overlap) == (TRUE.wait, TRUE.overlap)
    assert len(predictions) == 5 * 2 * 2  # configurations, hosts, links
    for p in predictions:
        assert p.predicted_s == pytest.approx(p.measured_s)
    fitted = {(p.configuration, p.num_hosts, p.rate) for p in predictions if p.is_fitted}
    assert fitted == {(name, 2, "100mbit") for name in FIT_CONFIGURATIONS}

    disturbed = [
        timed(r, 1.3 * r.step_s.p50)
        if (r.configuration, r.num_hosts, r.rate) == ("best", 4, "1gbit") else r
        for r in records
    ]  # fmt: skip
    fit, predictions = validate(load_steps(write(path, disturbed))[0], FIT_CONFIGURATIONS)
    assert fit == TRUE
    (wrong,) = (p for p in predictions if not holds(p))
    assert (wrong.configuration, wrong.num_hosts, wrong.rate) == ("best", 4, "1gbit")
    assert wrong.predicted_s == pytest.approx(wrong.measured_s / 1.3)


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    delayed = replace(network("int8"), delay="1ms")
    lonely = network("stock", num_hosts=3)
    usable, old = network("unique_int4"), network("best")
    uncounted = [
        {kind: replace(nbytes, raw_nbytes=None) for kind, nbytes in host.items()}
        for host in old.traffic or ()
    ]
    old = replace(old, traffic=tuple(uncounted))
    steps, left_out = load_steps(write(tmp_path / "some.jsonl", [usable, delayed, lonely, old]))
    assert [step.configuration for step in steps] == ["unique_int4"]
    assert left_out == [
        "int8, table_wise, 2 hosts, 100mbit: a delay of 1ms",
        "best, table_wise, 2 hosts, 100mbit: rows of all bags were not counted",
        "stock, table_wise, 3 hosts, 100mbit: no config beside it",
    ]
    with pytest.raises(ValueError, match="nothing to validate: expected steps with a limit"):
        validate(steps, FIT_CONFIGURATIONS)
    with pytest.raises(ValueError, match=r"none.jsonl: no step that can be used"):
        load_steps(write(tmp_path / "none.jsonl", [lonely]))
    with pytest.raises(ValueError, match=r"none.jsonl, line 1: "):
        load_steps(write(tmp_path / "none.jsonl", [replace(network("int8"), config="a: [b")]))


def test_steps_of_another_setup_are_left_out_and_plans_kept_apart(tmp_path: Path) -> None:
    """A row-wise plan sends other bytes, and has a base of its own."""
    setup: dict[str, Any] = {"batch_size": 1024}
    other = replace(network("int8"), setup=setup)
    row_wise = [
        replace(
            network("int8", rate=rate, step_s=2.0), setup={"batch_size": 2048, "plan": "row_wise"}
        )
        for rate in ("100mbit", "none")
    ]
    records = [network("int8"), network("int8", rate="none"), other, *row_wise]
    steps, left_out = load_steps(write(tmp_path / "net.jsonl", records))
    assert [(step.plan, step.rate) for step in steps] == [
        *[("table_wise", "100mbit"), ("table_wise", "none")],
        *[("row_wise", "100mbit"), ("row_wise", "none")],
    ]
    where = "int8, table_wise, 2 hosts, 100mbit"
    assert left_out == [f"{where}: another setup, with batch_size 1024"]
    assert [base_s for _, base_s in pairs(steps)] == [1.0, 2.0]


def test_every_plan_of_the_committed_records_is_predicted() -> None:
    """Two numbers are fitted on two table-wise runs on 2 hosts; nearly all are within 20 %."""
    steps, left_out = load_steps(RESULTS / "links.jsonl", RESULTS / "links_4_hosts.jsonl")
    assert left_out == []
    fit, predictions = validate(steps, FIT_CONFIGURATIONS)
    fitted = {(p.configuration, p.plan, p.num_hosts, p.rate) for p in predictions if p.is_fitted}
    assert fitted == {(name, "table_wise", 2, "25mbit") for name in FIT_CONFIGURATIONS}
    assert 0 <= fit.wait <= 0.5
    plans = {(p.plan, p.num_hosts) for p in predictions}
    assert {("table_wise", 2), ("row_wise", 2), ("row_wise", 4), ("two_level", 4)} < plans
    assert sum(map(holds, predictions)) >= 0.95 * len(predictions)
    ours = [p for p in predictions if not str(p.configuration).startswith("stock")]
    assert ours
    assert all(map(holds, ours))


def test_steps_on_slow_links_are_predicted() -> None:
    """Check how many are within 20 %: with 8 ranks on 2 cores many are predicted too long."""
    steps, left_out = load_steps(CLUSTERS)
    assert left_out == []
    _, predicted = validate(steps, ("int8", "fast"))
    assert len(predicted) >= 24
    held: dict[str, list[bool]] = {}
    for p in predicted:
        if not p.is_fitted:
            held.setdefault(hosts_text(p), []).append(holds(p))
            assert 0.8 < p.predicted_s / p.measured_s < 1.5
    assert {hosts: (sum(held[hosts]), len(held[hosts])) for hosts in held} == {
        "2 x 2": (15, 16),
        "4 x 2": (3, 8),
        "8": (9, 14),
    }
