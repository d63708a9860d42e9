"""Each schedule is its formula, falls from c to 1, and says what is wrong with a config."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trec_qcomm.core.fields import read, write
from trec_qcomm.ext.dual_level.schedule import (
    Constant,
    Drop,
    Exponential,
    Linear,
    Log,
    Schedule,
    Step,
)

DECAYS = [Linear, Log, Step, Drop, Exponential]
SCHEDULES = Schedule.kinds
NAMES = ["constant", "linear", "log", "step", "drop", "exponential"]


@pytest.mark.parametrize("kind", DECAYS)
@given(
    start=st.floats(1, 1e308) | st.integers(1, 10),
    end_step=st.integers(1, 2**63 - 1),
    data=st.data(),
)
def test_a_decay_falls_from_c_to_one(kind, start, end_step, data) -> None:
    schedule = kind(start=start, end_step=end_step)
    assert schedule.multiplier(0) == start
    assert schedule.multiplier(end_step) == 1 == schedule.multiplier(2**63 - 1)
    steps = sorted(data.draw(st.lists(st.integers(0, end_step), min_size=2, max_size=9)))
    values = [schedule.multiplier(step) for step in steps]
    assert values == sorted(values, reverse=True)
    assert all(1 <= value <= start for value in values)


@pytest.mark.parametrize("step", [0, 1, 499, 500, 999, 1000, 5000])
@pytest.mark.parametrize("c", [1.0, 1.5, 2.0, 7.0])
def test_multipliers_are_the_formulas(step, c) -> None:
    t = min(step / 1000, 1)
    expected = {
        Linear: c * (1 - t * (1 - 1 / c)),
        Log: c - (c - 1) * math.log2(1 + t),
        Step: c - (c - 1) * math.floor(10 * t) / 10,
        Drop: c if t < 1 else 1,
        Exponential: c ** (1 - t),
    }
    for kind, value in expected.items():
        measured = kind(start=c, end_step=1000).multiplier(step)
        assert measured == pytest.approx(value, rel=1e-14, abs=0)  # a few roundings of float64
    assert Constant().multiplier(step) == 1


def test_ten_stairs_are_where_the_paper_has_them() -> None:
    schedule = Step()
    assert (schedule.start, schedule.end_step, schedule.num_stairs) == (2, 65_536, 10)
    stairs = [t for t in range(1, 70_000) if schedule.multiplier(t) != schedule.multiplier(t - 1)]
    assert stairs == [math.ceil(65_536 * k / 10) for k in range(1, 11)]
    heights = [schedule.multiplier(t - 1) - schedule.multiplier(t) for t in stairs]
    assert heights == pytest.approx([0.1] * 10, rel=1e-14)


def test_the_logarithm_is_that_of_the_artefact() -> None:
    """2 (1 - log4(1 + t/T)), for c = 2."""
    for step in (0, 1, 100, 30_000, 65_535):
        expected = 2 * (1 - math.log(1 + step / 65_536, 4))
        assert Log().multiplier(step) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_survives_yaml(name) -> None:
    assert list(SCHEDULES) == NAMES
    schedule = SCHEDULES[name]()
    assert isinstance(schedule, Schedule)
    text = yaml.safe_dump(write(schedule))
    assert read(Schedule, yaml.safe_load(text), "schedule") == schedule
    assert read(Schedule, {"kind": name}, "schedule") == schedule
    assert repr(schedule).startswith(type(schedule).__name__ + "(")
    assert len({schedule, SCHEDULES[name]()}) == 1  # equal ones hash alike


def test_kinds_with_equal_fields_differ() -> None:
    assert len({Linear(), Log(), Drop(), Exponential()}) == 4
    assert Linear() != Drop()
    assert Linear(start=3) != Linear()


@pytest.mark.parametrize("start", [0.99, 0, -2.0, math.inf, math.nan, True, "2", None])
@pytest.mark.parametrize("kind", DECAYS)
def test_a_start_below_one_is_refused(kind, start) -> None:
    with pytest.raises(ValueError, match=rf"{kind.name}\.start: .* is not a finite number >= 1"):
        kind(start=start)


@pytest.mark.parametrize("value", [0, -1, 2**63, 1.0, True, "9"])
def test_counts_are_positive_64_bit_integers(value) -> None:
    with pytest.raises(ValueError, match=r"drop\.end_step: .* is not an integer in 1\.\."):
        Drop(end_step=value)
    with pytest.raises(ValueError, match=r"step\.num_stairs: .* is not an integer in 1\.\."):
        Step(num_stairs=value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", [-1, 1.5, True])
def test_a_step_is_a_count(name, step) -> None:
    with pytest.raises(ValueError, match=r"step: .* is not an integer in 0\.\."):
        SCHEDULES[name]().multiplier(step)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            None,
            r"schedule: expected the name of a kind or .*kinds: constant, linear, log, step, drop",
        ),
        ({"start": 2}, "schedule: expected"),
        ({"kind": "cosine"}, r"schedule\.kind: 'cosine' is not one of \('constant', 'linear'"),
        ({"kind": ["log"]}, r"schedule\.kind: \['log'\] is not one of"),
        ({"kind": "constant", "start": 2}, r"schedule\.start: unknown key; allowed: none$"),
        ({"kind": "log", "T": 9}, r"schedule\.T: unknown key; allowed: start, end_step"),
        ({"kind": "log", "end_step": 0}, r"schedule\.end_step: 0 is not"),
    ],
)
def test_a_bad_config_is_named(data, message) -> None:
    with pytest.raises(ValueError, match=message):
        read(Schedule, data, "schedule")
