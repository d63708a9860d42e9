"""Decisions of the guard by the loss, from numbers alone."""

from math import inf, nan

import pytest

from tests.lab.guard.policies import BAD, LIMIT, RUNGS, TABLES, about_to_trip, policy, read
from trec_qcomm.lab.guard.tables import Signals

A = ("a", "forward")


def test_a_jump_trips_and_the_table_that_explains_it_is_moved():
    guard = about_to_trip()
    outcome = read(guard, 0.2, a=0.01, b=0.18, c=0.02)
    assert outcome.told == [("trip", "loss", None), ("raise", "loss", "b")]
    assert outcome.moves == {("b", "forward"): 2}
    event = outcome.events[1]
    assert (event.step, event.probe) == (2200, 11)
    assert (event.codec_before, event.codec_after) == (repr(RUNGS[1]), repr(RUNGS[2]))
    assert set(event.figures) == {"effect a", "effect b", "effect c"}
    assert event.figures["effect b"] == pytest.approx(0.18, abs=0.001)
    assert event.low < event.change < event.high
    assert event.change == pytest.approx(0.2, abs=0.01)
    moved = f"guard: b forward: {RUNGS[1]!r} -> {RUNGS[2]!r}: codecs add to the loss of the probe"
    assert event.message.startswith(moved)
    assert outcome.events[0].message.startswith("guard: trips: codecs add to the loss")
    assert guard.rungs["b", "forward"] == 2
    assert guard.rungs["b", "backward"] == 1
    assert outcome.record.forward == dict.fromkeys(TABLES, 1)  # as it was read


def test_tables_that_are_alike_to_blame_move_together():
    outcome = read(about_to_trip(0.3), 0.3, a=0.15, b=0.12, c=0.03)
    assert outcome.moves == {A: 2, ("b", "forward"): 2}


@pytest.mark.parametrize(("limits", "rung"), [(1000, 3), (15, 2), (17, 3)])
def test_a_rung_that_cannot_be_enough_is_skipped(limits, rung):
    """The next of the codecs has 4 bits more, so a sixteenth of the effect."""
    guard = about_to_trip(limits * LIMIT)
    assert read(guard, limits * LIMIT, b=limits * LIMIT).moves == {("b", "forward"): rung}


def test_warn_tells_once_an_episode_and_moves_nothing():
    guard = about_to_trip(action="warn")
    assert read(guard, 0.2, b=0.18).told == [("trip", "loss", None), ("warn", "loss", "b")]
    told = [read(guard, change).told for change in [0.2] * 20 + [0.0] * 10]
    assert [events for events in told if events] == [[("calm", "calm", None)]]
    told = [read(guard, 0.2, c=0.2).told for _ in range(3)]  # the next episode
    assert [("trip", "loss", None), ("warn", "loss", "c")] in told
    assert set(guard.rungs.values()) == {1}


def test_a_rung_is_tried_when_all_is_calm_and_after_it_failed_in_twice_as_many_probes():
    guard = policy(lowest=0, lower_after=3, patience=8, tables=("a",))
    moves, left, tried = [], [], []
    for probe in range(300):
        outcome = read(guard, 0.2 if guard.rungs[A] == 0 else 0.001, a=0.2)
        moves += [(event, outcome.moves[A]) for event, *_ in outcome.told if outcome.moves]
        tried += [probe] if ("lower", "calm", "a") in outcome.told else []
        left += [probe] if ("raise", "loss", "a") in outcome.told else []
    assert {move for move in moves if move[0] != "trip"} == {("lower", 0), ("raise", 1)}
    assert tried[0] == 2
    assert [b - a for a, b in zip(left, tried[1:], strict=False)] == [8, 16, 32, 64, 128]


def test_what_saves_most_is_lowered_first():
    guard = policy(start=3, lowest=0, lower_after=3)
    values = {"a": 10, "b": 1000, "c": 100}
    signals = {(table, "forward"): Signals(num_values=n) for table, n in values.items()}
    moves = [read(guard, 0.0, signals).moves for _ in range(9)]
    assert [move for move in moves if move] == [
        {("b", "forward"): 2}, {("b", "forward"): 1}, {("c", "forward"): 2},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mean", "spread", "settings"),
    [
        (0.6 * LIMIT, 0.001, {}),  # above half the limit
        (0.4 * LIMIT, 0.2, {}),  # noise might hide that it is above the limit
        (2 * LIMIT, 0.2, {}),
        (0.0, 0.002, {"start": 1, "lowest": 1}),
        (0.0, 0.002, {"action": "warn"}),
    ],
)
def test_nothing_is_lowered_unless_calm_is_shown(mean, spread, settings):
    guard = policy(**{"start": 3, "lowest": 0} | settings)
    for _ in range(50):
        assert read(guard, mean, spread=spread).events == []


def test_a_loss_that_is_infinite_with_codecs_trips_at_once():
    guard = policy()
    for _ in range(3):
        read(guard, 0.0)
    outcome = read(guard, [0.0] * 7 + [inf], b=[0.0] * 7 + [inf], c=[nan] * 8)
    assert outcome.told == [("trip", "loss", None), ("raise", "loss", "b")]
    assert outcome.moves == {("b", "forward"): 3}
    assert outcome.record.change is None

    by_two = dict.fromkeys(TABLES, [0.0] * 7 + [nan])  # so no single one explains it
    outcome = read(policy(), [0.0] * 7 + [inf], **by_two)
    assert outcome.moves == {(table, "forward"): 3 for table in TABLES}


def test_a_loss_that_is_nan_without_codecs_is_told_once():
    guard = policy()
    told = [read(guard, change).told for change in ([0.0, nan], [0.0, nan], 0.0, [0.0, nan])]
    undecidable = [("warn", "undecidable", None)]
    assert told == [undecidable, [], [], undecidable]
    assert len(guard.state_dict()["readings"]) == 1


def test_no_table_left_is_told_once_an_episode():
    guard = policy(start=3, lowest=3)
    told = [read(guard, change).told for change in ([0.0] * 30 + [0.3] * 5) * 2]
    trip = [("trip", "loss", None), ("warn", "no_table_left", None)]
    assert [events for events in told if events] == [trip, [("calm", "calm", None)], trip]


def test_what_is_wrong_with_calls():
    with pytest.raises(ValueError, match="changes: expected those of two or more probe batches"):
        read(policy(), [0.0])


def test_the_order_of_tables_and_signals_does_not_matter():
    signals = {("c", "forward"): BAD["pointless"], A: BAD["unencodable"]}
    first = read(policy(), 0.0, signals)
    second = read(policy(tables=TABLES[::-1]), 0.0, dict(reversed(signals.items())))
    assert first.events == second.events
    assert [event.table for event in first.events] == ["a", "c"]
