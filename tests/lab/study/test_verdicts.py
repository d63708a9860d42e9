"""Verdicts from the records of a study: which seeds count, which metrics, and which limits."""

from dataclasses import replace

import pytest

from tests.lab.report import sample_records as samples
from trec_qcomm.lab.records import Limits, SeedEvaluation, SeedTraining, StudyRecord
from trec_qcomm.lab.study.verdicts import Rules, judge, shown_changes

LIMITS = Limits(mean=0.02, upper=0.05, seeds=12)
EARLY = Rules({"loss": LIMITS}, {}, looks=(5, 12))
CRITEO = Rules.from_record(samples.study("fp32", 0, 1.0))


def record(name: str, seed: int, loss: float, **changes) -> StudyRecord:
    """A seed whose metrics have another name than those of Criteo."""
    training = SeedTraining(metrics={"loss": loss, "auc": 0.5 + loss})
    return StudyRecord(
        configuration=name, seed=seed, num_ranks=1, **{"training": training} | changes
    )


def test_looks_take_seeds_in_their_order_up_to_the_first_that_is_missing():
    """Other processes may be ahead: what they have done counts when the gap is closed."""
    base = [record("fp32", seed, 1.0) for seed in range(12)]
    ours = [record("a", seed, 1.0) for seed in (8, 7, 6, 5, 3, 2, 1, 0)]
    open_verdict = judge(ours, base, EARLY, "training")
    assert open_verdict.text == "open (4 of at most 12 seeds)"
    late = judge([*ours, record("a", 4, 2.0)], base, EARLY, "training")
    assert (late.is_open, late.num_seeds, late.changes["loss"].n) == (True, 9, 5)
    assert late.changes["loss"].mean == pytest.approx(20)  # seeds 0 to 4, one of them 100 % worse
    closed = judge([*ours, record("a", 4, 1.0)], base, EARLY, "training")
    assert (closed.text, closed.num_seeds) == ("PASS", 5)


def test_planned_seeds_tell_of_a_gap_that_the_baseline_has_too():
    base = [record("fp32", seed, 1.0) for seed in (0, 1, 3, 4, 5)]
    ours = [record("a", seed, 1.0) for seed in (0, 1, 3, 4, 5)]
    assert judge(ours, base, EARLY, "training", range(12)).num_seeds == 2
    assert judge(ours, base, EARLY, "training").num_seeds == 5


def test_the_null_run_never_stops():
    base = [record("fp32", seed, 1.0) for seed in range(12)]
    null = [record("null", seed, 1.0) for seed in range(12)]
    assert judge(null, base, EARLY.rules_for("null"), "training").num_seeds == 12
    assert judge(null, base, EARLY.rules_for("a"), "training").num_seeds == 5


def test_records_without_limits_are_judged_by_the_gate_of_criteo():
    """In such a record the progressive log loss is a field of its own."""
    base = [samples.study("fp32", seed, 1.0) for seed in range(50)]
    ours = [samples.study("a", seed, 1.0) for seed in range(50)]
    assert judge(ours, base, CRITEO, "training").passed
    assert CRITEO.looks == ()
    for seed, one in enumerate(ours):
        worse = replace(one.training, progressive_logloss=1.001 + 1e-6 * (seed % 2))
        ours[seed] = replace(one, training=worse)
    verdict = judge(ours, base, CRITEO, "training")
    assert verdict.text.startswith("not shown (progressive_logloss mean > 0.02")
    assert set(verdict.changes) == {"logloss", "progressive_logloss"}


def test_changes_are_paired_by_seed():
    base = [samples.study("fp32", seed, 0.5 + seed) for seed in range(3)]
    evaluation = SeedEvaluation(metrics={"ne": 0.816}, metrics_exact={"ne": 0.8})
    ours = [
        samples.study("a", seed, (0.5 + seed) * 1.01, evaluation=evaluation) for seed in (2, 0, 7)
    ]
    for twice in (ours, [*ours, *ours]):  # the same runs once more
        training = judge(twice, base, CRITEO, "training")
        assert training.changes["logloss"].n == training.changes["progressive_logloss"].n == 2
        assert training.changes["logloss"].mean == pytest.approx(1.0)
        evaluated = judge(twice, base, CRITEO, "eval-only")
        assert evaluated.changes["ne"].n == 2
        assert evaluated.changes["ne"].mean == pytest.approx(2.0)
    rules = replace(CRITEO, training={**CRITEO.training, "auc": None})
    shown = shown_changes(ours, base, rules)
    assert shown["auc"].mean == 0
    assert shown["logloss, codecs off"].mean == pytest.approx(1.0)


def test_a_metric_that_is_missing_is_named():
    base, ours = [record("fp32", 3, 1.0)], [samples.study("a", 3, 1.0)]
    with pytest.raises(ValueError, match="metric loss: missing in seed 3 of the configuration"):
        judge(ours, base, EARLY, "training")
    with pytest.raises(ValueError, match="metric loss: seed 3 of fp32 is 0"):
        judge([record("a", 3, 1.0)], [record("fp32", 3, 0.0)], EARLY, "training")


def test_nothing_to_judge():
    assert judge([], [record("fp32", 0, 1.0)], EARLY, "training") is None
    assert judge([record("a", 0, 1.0)], [], EARLY, "training") is None
    assert judge([record("a", 0, 1.0)], [record("fp32", 0, 1.0)], EARLY, "eval-only") is None
