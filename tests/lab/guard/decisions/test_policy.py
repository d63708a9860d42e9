"""Decisions of the guard by the loss, from numbers alone."""

from math import inf, nan

import pytest

from tests.lab.guard.decisions.policies import (
    LIMIT,
    TABLES,
    changes,
    effects,
    kinds,
    policy,
    read_all,
    tripped,
)
from trec_qcomm.lab.guard.decisions.ladder import GuardLimits, Ladder
from trec_qcomm.lab.guard.decisions.policy import GuardPolicy
from trec_qcomm.lab.guard.decisions.values import Signals


def test_a_jump_trips_and_the_table_that_explains_it_is_moved():
    guard = tripped()
    decision = guard.attributed(effects(TABLES, a=0.01, b=0.18, c=0.02))
    assert decision.moves == {("b", "forward"): 2}
    assert decision.attribute == ()
    (event,) = decision.events
    assert (event.kind, event.reason, event.step, event.probe) == ("raise", "loss", 2200, 11)
    assert (event.name_before, event.name_after) == ("4", "8")
    assert event.figures["effect b"] == pytest.approx(0.18, abs=0.001)
    assert event.low < event.change < event.high
    assert event.change == pytest.approx(0.2, abs=0.01)
    assert event.message.startswith("guard: b forward: 4 -> 8: codecs add to the loss of the probe")
    assert guard.rungs["b", "forward"] == 2
    assert guard.rungs["b", "backward"] == 1
    assert [event.kind for event in guard.history] == ["trip", "raise"]


def test_the_next_table_is_moved_if_it_is_still_above():
    guard = tripped()
    guard.attributed(effects(TABLES, a=0.05, b=0.18))
    first, second = read_all(guard, [0.06] * 4)  # an episode needs raise_after readings each time
    assert (kinds(first), kinds(second), second.attribute) == ([], [], TABLES)
    assert guard.attributed(effects(TABLES, a=0.05)).moves == {("a", "forward"): 2}
    calm = read_all(guard, [0.001] * 10)
    assert [kinds(d) for d in calm[:-1]] == [[]] * 9
    assert kinds(calm[-1])[0] == ("calm", "calm", None)


def test_tables_that_are_alike_to_blame_move_together():
    guard = tripped(jump=0.3)
    decision = guard.attributed(effects(TABLES, a=0.15, b=0.12, c=0.03))
    assert decision.moves == {("a", "forward"): 2, ("b", "forward"): 2}
    assert {event.change for event in decision.events} == {decision.events[0].change}


def test_a_rung_that_cannot_be_enough_is_skipped():
    guard = tripped(jump=20.0)
    assert guard.attributed(effects(TABLES, b=19.0)).moves == {("b", "forward"): 3}
    guard = tripped(jump=0.3)  # 4 bits more are a sixteenth
    assert guard.attributed(effects(TABLES, b=15 * LIMIT)).moves == {("b", "forward"): 2}
    guard = tripped(jump=0.4)
    assert guard.attributed(effects(TABLES, b=17 * LIMIT)).moves == {("b", "forward"): 3}


def test_suspects_are_asked_first_and_others_if_they_do_not_explain_it():
    def with_drift():
        guard = policy()
        for probe in range(10):
            drift = 1000.0 if probe >= 8 else 1.0
            signals = {(t, "forward"): Signals(rms=drift if t == "b" else 1.0) for t in TABLES}
            signals |= {
                ("c", "backward"): Signals(rms=drift)
            }  # of gradients the loss knows nothing
            decision = guard.read(probe, changes(0.2 if probe >= 8 else 0.0, probe), signals)
        assert decision.attribute == ("b",)
        return guard

    guard = with_drift()
    assert guard.attributed(effects(["b"], b=0.19)).moves == {("b", "forward"): 2}
    guard = with_drift()
    again = guard.attributed(effects(["b"], b=0.01))
    assert (again.events, again.attribute) == ((), ("a", "c"))
    decision = guard.attributed(effects(["a", "c"], c=0.18))
    assert decision.moves == {("c", "forward"): 2}
    assert set(decision.events[0].figures) == {"effect a", "effect b", "effect c"}


@pytest.mark.parametrize(
    ("signals", "suspect"),
    [
        ([Signals(snr_db=20.0)] * 5 + [Signals(snr_db=12.0)], True),
        ([Signals(snr_db=20.0)] * 5 + [Signals(snr_db=17.0)], False),
        ([Signals(range=1.0)] * 5 + [Signals(range=0.2)], True),
        ([Signals(range=1.0)] * 5 + [Signals(range=3.0)], False),
        ([Signals(verbatim_share=0.0)] * 5 + [Signals(verbatim_share=0.1)], True),
        ([Signals(rms=1.0), Signals(rms=1000.0)], False),  # nothing to compare with yet
        ([Signals(rms=1.0)] * 5 + [Signals(rms=0.0), Signals(rms=inf)], False),
        ([Signals(rms=1.0)] * 5 + [Signals(rms=9.0)] + [Signals(rms=1.0)] * 12, False),  # long ago
    ],
)
def test_who_is_suspect(signals, suspect):
    guard = policy()
    for probe, signal in enumerate(signals):
        guard.read(probe, changes(0.0, probe), {("a", "forward"): signal})
    asked = [d.attribute for d in read_all(guard, [0.2] * 4)][-1]
    assert asked == (("a",) if suspect else TABLES)


def test_warn_tells_once_an_episode_and_moves_nothing():
    guard = tripped(action="warn")
    decision = guard.attributed(effects(TABLES, b=0.18))
    assert kinds(decision) == [("warn", "loss", "b")]
    assert decision.moves == {}
    more = read_all(guard, [0.2] * 20 + [0.0] * 10)
    assert [kinds(d) for d in more if d.events] == [[("calm", "calm", None)]]
    assert not any(d.attribute for d in more)
    assert read_all(guard, [0.2] * 5)[-1].attribute == TABLES  # the next episode
    assert set(guard.rungs.values()) == {1}


def test_a_rung_is_lowered_when_all_is_calm_and_not_again_soon_after_it_failed():
    guard = policy(lowest=0, lower_after=5, patience=20, max_lowers=2, tables=("a",))
    lowered = []
    for probe in range(200):
        bad = guard.rungs["a", "forward"] == 0
        decision = guard.read(probe, changes(0.2 if bad else 0.001, probe))
        if decision.attribute:
            guard.attributed(effects("a", a=0.2))
        for event in guard.history[len(lowered) :]:
            lowered.append((probe, event.kind, event.direction, event.before, event.after))
    moves = [move for move in lowered if move[1] in ("lower", "raise") and move[2] == "forward"]
    # Patience runs from when the rung was left: 20 probes, then 40, and the third try is none.
    assert [move[1:] for move in moves] == [
        ("lower", "forward", 1, 0), ("raise", "forward", 0, 1),
        ("lower", "forward", 1, 0), ("raise", "forward", 0, 1),
    ]  # fmt: skip
    assert moves[0][0] == 4
    assert 20 <= moves[2][0] - moves[1][0] <= 25


def test_patience_doubles():
    guard = policy(lowest=0, lower_after=3, patience=8, max_lowers=9, tables=("a",))
    left, tried = [], []
    for probe in range(300):
        bad = guard.rungs["a", "forward"] == 0
        decision = guard.read(probe, changes(0.2 if bad else 0.001, probe))
        tried += [probe for event in decision.events if event.kind == "lower"]
        if decision.attribute:
            guard.attributed(effects("a", a=0.2))
            left.append(probe)
    assert [b - a for a, b in zip(left, tried[1:], strict=False)] == [8, 16, 32, 64, 128]


def test_what_saves_most_is_lowered_first():
    guard = policy(start=3, lowest=0, lower_after=3)
    values = {"a": 10, "b": 1000, "c": 100}
    signals = {(table, "forward"): Signals(num_values=n) for table, n in values.items()}
    events = []
    for probe in range(9):
        events += guard.read(probe, changes(0.0, probe), signals).events
    assert [(e.kind, e.table, e.before, e.after) for e in events] == [
        ("lower", "b", 3, 2), ("lower", "b", 2, 1), ("lower", "c", 3, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mean", "spread"), [(0.6 * LIMIT, 0.001), (0.4 * LIMIT, 0.2), (2 * LIMIT, 0.2)]
)
def test_nothing_is_lowered_unless_calm_is_shown(mean, spread):
    """The mean is above half the limit, or noise might hide that it is above the limit."""
    guard = policy(start=3, lowest=0)
    for probe in range(50):
        assert guard.read(probe, changes(mean, probe, spread)).events == ()


def test_nothing_is_lowered_below_the_lowest_rung_or_with_no_tries():
    for options in ({"lowest": 1}, {"lowest": 0, "max_lowers": 0}, {"lowest": 0, "action": "warn"}):
        guard = policy(**options)
        assert [kinds(d) for d in read_all(guard, [0.0] * 40)] == [[]] * 40


def test_a_loss_that_is_infinite_with_codecs_trips_at_once():
    guard = policy()
    read_all(guard, [0.0] * 3)
    decision = guard.read(3, [0.0] * 7 + [inf])
    assert kinds(decision) == [("trip", "loss", None)]
    decision = guard.attributed({"a": [0.0] * 8, "b": [0.0] * 7 + [inf], "c": [nan] * 8})
    assert decision.moves == {("b", "forward"): 3}

    guard = policy()
    guard.read(0, [0.0] * 7 + [inf])  # by two tables, so no single one explains it
    decision = guard.attributed({table: [0.0] * 7 + [nan] for table in TABLES})
    assert decision.moves == {(table, "forward"): 3 for table in TABLES}


def test_a_loss_that_is_nan_without_codecs_is_told_once():
    guard = policy()
    decisions = [guard.read(n, [0.0, nan]) for n in range(3)]
    assert [kinds(d) for d in decisions] == [[("warn", "undecidable", None)], [], []]
    guard.read(3, changes(0.0))
    assert kinds(guard.read(4, [0.0, nan])) == [("warn", "undecidable", None)]
    assert guard.state_dict()["readings"] == [changes(0.0)]


def test_no_table_left_is_told_once():
    guard = policy(start=3, lowest=3)
    told = [kinds(d) for d in read_all(guard, [0.0] * 5 + [0.3] * 5)]
    assert [k for k in told if k] == [[("trip", "loss", None), ("warn", "no_table_left", None)]]


def test_what_is_wrong_with_calls():
    guard = policy()
    with pytest.raises(ValueError, match="changes: expected those of two or more probe batches"):
        guard.read(0, [0.0])
    with pytest.raises(ValueError, match="nothing was asked for"):
        guard.attributed({})
    with pytest.raises(ValueError, match="ladders: expected one or more tables"):
        GuardPolicy(GuardLimits(), {})
    guard = tripped()
    with pytest.raises(ValueError, match=r"attributed\(\) is due, with effects of a, b, c"):
        guard.read(0, changes(0.0))
    with pytest.raises(ValueError, match="effects: missing c"):
        guard.attributed(effects(["a", "b"]))
    with pytest.raises(ValueError, match="effects: missing b"):
        guard.attributed(effects(["a", "c"]) | {"b": []})


@pytest.mark.parametrize(
    "fields",
    [
        {"names": ()},
        {"names": ("4", "4")},
        {"names": ("4", "8"), "start": 2},
        {"names": ("4", "8"), "start": 0, "lowest": 1},
        {"names": ("4", "8"), "bits": (4,)},
    ],
)
def test_ladders_that_are_none(fields):
    with pytest.raises(ValueError, match=r"names|start|lowest|bits"):
        Ladder(**fields)
