"""Decisions of the guard from numbers alone."""

import json

import pytest

from trec_qcomm.control.guard import GuardLimits, GuardPolicy, Ladder, Signals

LADDER = Ladder(names=("2", "4", "8", "32"), start=1, bits=(2, 4, 8, 32))
TABLES = ("a", "b", "c")


def policy(start=1, lowest=0, **limits):
    ladder = Ladder(names=LADDER.names, start=start, lowest=lowest, bits=LADDER.bits)
    ladders = {(table, "forward"): ladder for table in TABLES}
    backward = Ladder(names=LADDER.names, start=1, lowest=1, bits=LADDER.bits)
    ladders |= {(table, "backward"): backward for table in TABLES}
    return GuardPolicy(GuardLimits(**limits), ladders)


def changes(mean, spread=0.01, batches=8):
    return [mean + spread * (b % 3 - 1) for b in range(batches)]


def noise(probe, size=0.002):
    return size * (1, -1, 2, 0, -2)[probe % 5]


def effects(asked, **means):
    return {table: changes(means.get(table, 0.0), 0.001) for table in asked}


def read_all(guard, means, start=0):
    decisions = []
    for n, mean in enumerate(means, start):
        decisions.append(guard.read(200 * n, changes(mean + noise(n))))
        if decisions[-1].attribute:
            break
    return decisions


def test_a_jump_trips_and_the_table_that_explains_it_is_moved():
    guard = policy()
    calm = read_all(guard, [0.0] * 9)
    assert [d.attribute for d in calm] == [()] * 9
    jump = read_all(guard, [0.2] * 3, 9)
    assert len(jump) == 2  # raise_after, not one reading alone
    assert [event.kind for event in jump[-1].events] == ["trip"]
    assert jump[-1].attribute == TABLES
    decision = guard.attributed(effects(TABLES, a=0.01, b=0.18, c=0.02))
    assert decision.moves == {("b", "forward"): 2}
    (event,) = decision.events
    assert (event.kind, event.reason, event.name_before, event.name_after) == (
        "raise", "loss", "4", "8",
    )  # fmt: skip
    assert event.figures["effect b"] == pytest.approx(0.18, abs=0.001)
    assert guard.rungs["b", "forward"] == 2
    assert "b forward: 4 -> 8: codecs add to the loss" in event.message


def test_state_goes_through_json():
    guard = policy()
    read_all(guard, [0.0] * 5 + [0.3] * 2)
    state = json.loads(json.dumps(guard.state_dict()))
    other = policy()
    assert other.load_state_dict(state) == ()
    assert other.state_dict() == guard.state_dict()


def test_nan_and_refused_values():
    guard = policy(on_nan="exact")
    decision = guard.read(0, changes(0.0), {("a", "backward"): Signals(num_nan=1)})
    assert decision.moves == {("a", "backward"): 3}
    decision = guard.read(1, changes(0.0), {("a", "forward"): Signals(num_unencodable=1)})
    assert decision.moves == {("a", "forward"): 3}
