"""The gates of a study: after all seeds, and while it runs, with the noise of the recorded one."""

from statistics import fmean

import pytest

from tests.lab.study.simulated_studies import LOSSES, Recorded, count, recorded_study
from trec_qcomm.lab.records import Limits
from trec_qcomm.lab.study import gates
from trec_qcomm.lab.study.gates import EVALUATION, TRAINING, gate, looks_of, sequential_gate
from trec_qcomm.lab.study.paired import Change
from trec_qcomm.lab.study.student_t import t_quantile_of_tail
from trec_qcomm.lab.study.verdicts import Rules, judge

LOOKS = looks_of(50)


# All seeds at once. Quantiles are those of a table of Student's t, to 3 digits.


@pytest.mark.parametrize(
    ("p", "degrees", "expected"),
    [
        *((0.975, 4, 2.776), (0.95, 4, 2.132), (0.975, 9, 2.262), (0.95, 9, 1.833)),
        *((0.975, 29, 2.045), (0.95, 29, 1.699), (0.975, 49, 2.010), (0.95, 49, 1.677)),
    ],
)
def test_quantiles(p, degrees, expected):
    assert t_quantile_of_tail(1 - p, degrees) == pytest.approx(expected, abs=5e-4)


def test_interval_of_known_numbers():
    change = Change.from_percents([1.0, 2.0, 3.0, 4.0, 5.0])  # standard error sqrt(2.5 / 5)
    error = 0.5**0.5
    assert change.mean == 3.0
    assert change.low == pytest.approx(3 - 2.776 * error, abs=2e-3)
    assert change.high == pytest.approx(3 + 2.776 * error, abs=2e-3)
    assert change.upper == pytest.approx(3 + 2.132 * error, abs=2e-3)
    assert Change.from_percents([1.0, 2.0]) == Change(2, 1.5)
    with pytest.raises(ValueError, match="percents"):
        Change.from_percents([])


def test_gates():
    good = Change(50, 0.01, 0.0, 0.02, 0.018)
    biased = Change(50, 0.03, 0.02, 0.04, 0.038)
    noisy = Change(50, 0.0, -0.1, 0.1, 0.08)
    few = Change(9, 0.0, -0.001, 0.001, 0.0009)
    two, ne = {"a": TRAINING, "b": TRAINING}, {"ne": EVALUATION}
    assert gate({"a": good, "b": good}, two) == "PASS"
    assert gate({"ne": good}, ne) == "PASS"
    assert gate({"a": good, "b": biased}, two) == "not shown (b mean > 0.02)"
    assert gate({"ne": biased}, ne) == "not shown (ne upper > 0.02)"
    assert gate({"a": noisy, "b": good}, two) == "not shown (a upper > 0.05)"
    assert gate({"a": few, "b": few}, two) == "not shown (9 of 50 seeds)"
    assert gate({"ne": few}, ne) == "not shown (9 of 10 seeds)"
    assert gate({"ne": Change(3, 0.0)}, ne) == "not shown (3 of 10 seeds)"


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_training_that_broke_down_never_passes(broken):
    values = [*[0.0] * 30, broken, *[0.0] * 19]
    change = Change.from_percents(values)
    assert gate({"a": change}, {"a": TRAINING}) == "not shown (a is not finite)"
    verdict = sequential_gate({"a": values[25:]}, {"a": TRAINING}, LOOKS)
    assert verdict.text == "FAIL (a is not finite)"
    assert verdict.num_seeds == LOOKS[0]


def test_limits_that_make_no_sense_are_refused():
    for arguments, message in (
        ({"mean": 0.1, "upper": 0.05, "seeds": 50}, "mean 0.1: expected a number up to upper"),
        ({"mean": None, "upper": 0.0, "seeds": 50}, "upper: 0.0 is not a finite number > 0"),
        ({"mean": None, "upper": float("nan"), "seeds": 50}, "upper: nan is not a finite number"),
        ({"mean": None, "upper": 0.1, "seeds": 4}, "seeds: 4 is not an integer >= 5"),
    ):
        with pytest.raises(ValueError, match=message):
            Limits(**arguments)


# While it runs.


def test_looks():
    assert LOOKS == (10, 15, 20, 25, 30, 35, 40, 45, 50)
    assert looks_of(12) == (10, 12)
    assert looks_of(8) == (8,)
    with pytest.raises(ValueError, match="seeds: to stop early takes 5 or more, got 4"):
        looks_of(4)


def test_a_clear_case_ends_at_the_first_look_and_an_unclear_one_goes_on():
    limits = {"a": TRAINING}
    turns = [(-1) ** n for n in range(50)]
    same = sequential_gate({"a": [0.0] * 50}, limits, LOOKS)
    assert (same.text, same.num_seeds) == ("PASS", 10)
    worse = sequential_gate({"a": [1 + 0.1 * turn for turn in turns]}, limits, LOOKS)
    assert (worse.text, worse.num_seeds) == ("FAIL (a mean > 0.02)", 10)
    early = sequential_gate({"a": [0.1 * turn for turn in turns[:27]]}, limits, LOOKS)
    assert early.text == "open (27 of at most 50 seeds)"
    assert early.is_open
    wide = sequential_gate({"a": [turn * 1.0 for turn in turns]}, limits, LOOKS)
    assert (wide.text, wide.num_seeds) == ("not shown (a upper > 0.05)", 50)


def test_what_comes_after_the_verdict_does_not_count():
    limits, good = {"a": TRAINING}, [0.001 * (-1) ** n for n in range(10)]
    there = sequential_gate({"a": good}, limits, LOOKS)
    assert there.passed
    assert sequential_gate({"a": [*good, *[9.0] * 40]}, limits, LOOKS) == there


def test_a_study_planned_too_small_cannot_pass():
    verdict = sequential_gate({"a": [0.0] * 20}, {"a": TRAINING}, looks_of(20))
    assert verdict.text == "not shown (20 of 50 seeds)"


def test_limits_of_an_early_end_are_wider():
    values = [0.001 * (-1) ** n for n in range(10)]
    early = sequential_gate({"a": values}, {"a": TRAINING}, LOOKS).changes["a"]
    planned = Change.from_percents(values)
    assert early.mean == planned.mean
    assert early.upper - early.mean > 2 * (planned.upper - planned.mean)


# The recorded study: 26 configurations of 50 seeds each, with two losses.


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return recorded_study()


def test_recorded_verdicts_are_the_same_with_two_fifths_fewer_runs(recorded):
    numbers = []
    for name in recorded.keys() - {"fp32", "null"}:
        whole, early = (
            judge(recorded[name], recorded["fp32"], Rules(LOSSES, {}, looks), "training")
            for looks in ((), LOOKS)
        )
        assert whole.passed == early.passed, name
        assert whole.num_seeds == 50
        numbers.append(early.num_seeds)
    assert len(numbers) == 26
    assert round(fmean(numbers), 1) == 27.5  # docs/QUALITY.md says it


def test_200_studies_of_a_config_at_the_limit_pass_wrongly_in_at_most_5_percent(recorded):
    """One loss is really up by the limit of the upper limit, the other one not at all."""
    passed = count(recorded, (TRAINING.upper, 0.0), num_studies=200).passed
    assert passed <= 0.05 * 200


def test_200_studies_of_a_config_within_the_limits_fail_wrongly_in_at_most_5_percent(recorded):
    """Both losses are really up by the limit of the mean."""
    failed = count(recorded, (TRAINING.mean, TRAINING.mean), num_studies=200).failed
    assert failed <= 0.05 * 200


def test_without_the_limit_of_the_mean_the_rate_is_the_stated_one(recorded, monkeypatch):
    """The spending alone keeps it, and is not idle: looks at 5 % each are wrong twice as often."""
    limits = {"logloss": Limits(mean=None, upper=TRAINING.upper, seeds=50)}
    most = 0.05 * 400 + 3 * (400 * 0.05 * 0.95) ** 0.5
    at_the_limit = (TRAINING.upper, 0.0)
    wrong = count(recorded, at_the_limit, limits=limits, num_studies=400).passed
    assert 0 < wrong <= most
    monkeypatch.setattr(gates, "_level", lambda looks, look, error, spending: error)
    naive = count(recorded, at_the_limit, limits=limits, num_studies=400).passed
    assert naive > most
