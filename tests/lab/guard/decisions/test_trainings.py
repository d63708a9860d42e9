"""The guard's decisions over whole trainings, and when one is resumed."""

import json
import random

import pytest

from tests.lab.guard.decisions.policies import (
    BAD,
    LADDER,
    LIMIT,
    TABLES,
    changes,
    effects,
    policy,
    tripped,
)
from tests.lab.guard.decisions.simulated_trainings import NOISES, simulated
from trec_qcomm.lab.guard.decisions.ladder import GuardLimits, Ladder
from trec_qcomm.lab.guard.decisions.policy import GuardPolicy
from trec_qcomm.lab.guard.decisions.values import Signals


class Training:
    """A training in numbers: each table's effect is its weight over 4 to the power of its bits."""

    def __init__(self, guard, seed=0):
        self.guard, self.source, self.weights = guard, random.Random(seed), dict.fromkeys(TABLES, 1)

    def effect(self, table):
        rung = self.guard.rungs[table, "forward"]
        return 0.0 if rung == 3 else self.weights[table] / 4 ** LADDER.bits[rung]

    def noisy(self, mean):
        return [mean * (1 + self.source.gauss(0, 0.2)) for _ in range(8)]

    def probe(self):
        change = self.noisy(sum(map(self.effect, TABLES)))
        decision = self.guard.read(self.guard.probe + 1, change)
        events = list(decision.events)
        while decision.attribute:
            asked = {table: self.noisy(self.effect(table)) for table in decision.attribute}
            decision = self.guard.attributed(asked)
            events += decision.events
        return events


def test_a_drifting_table_is_named_and_the_loss_ends_within_the_limit():
    for seed in range(5):
        training = Training(policy(lower_after=5), seed)
        assert [training.probe() for _ in range(20)] == [[]] * 20
        training.weights["b"] = 200.0  # 0.8 %, 40 limits
        events = [event for _ in range(4) for event in training.probe()]
        assert {event.table for event in events} == {None, "b"}
        assert events[0].probe <= 22
        assert training.effect("b") < LIMIT
        training.weights["b"] = 1.0
        events = [event for _ in range(60) for event in training.probe()]
        assert {(e.kind, e.table) for e in events} == {("calm", None), ("lower", "b")}
        assert set(training.guard.rungs.values()) == {1}


@pytest.mark.parametrize("name", ["batches of a probe, 1", "all three, 0.5 each"])
def test_nothing_happens_in_trainings_without_a_change(name):
    for seed in range(5):
        guard = policy()
        stream = simulated(seed, NOISES[name], lambda _: 0.5)
        for probe in range(200):
            change = [LIMIT * value for value in next(stream)]
            assert guard.read(probe, change, {("a", "forward"): Signals(rms=1.0)}).events == ()


def test_a_run_that_is_resumed_at_any_probe_decides_the_same():
    def trained(resume_at):
        training = Training(policy(lowest=0, lower_after=3, patience=5, least_snr_db=1.0), 7)
        log = []
        for probe in range(60):
            if probe in resume_at:
                state = json.loads(json.dumps(training.guard.state_dict()))
                training.guard = policy(lowest=0, lower_after=3, patience=5, least_snr_db=1.0)
                assert training.guard.load_state_dict(state) == ()
                assert training.guard.state_dict() == state
            training.weights["b"] = 300.0 if 20 <= probe < 30 else 1.0
            log.append(training.probe())
        return log, training.guard

    wanted, guard = trained(())
    assert {event.kind for event in guard.history} >= {"trip", "raise", "lower", "calm"}
    log, resumed = trained(range(60))
    assert log == wanted
    assert resumed.history == guard.history
    assert resumed.rungs == guard.rungs


def test_signals_are_resumed_too():
    def run(guard, probes):
        events = []
        for probe in probes:
            rms = 50.0 if probe == 11 else 1.0
            signals = {("a", "forward"): Signals(rms=rms), ("b", "backward"): Signals(num_nan=1)}
            signals |= {("c", "backward"): Signals(snr_db=0.0)}
            signals |= {("c", "forward"): Signals(snr_db=20.0 if probe < 3 else 5.0)}
            change = changes(0.3 if probe >= 11 else 0.0, probe)
            decision = guard.read(probe, change, signals)
            events += [decision.events, decision.attribute]
        return events

    def guarded():
        return policy(least_snr_db=1.0, raise_after=3)

    whole = run(guarded(), range(14))
    assert whole[-1] == ("a",)
    assert {event.reason for event in sum(whole[::2], ())} == {"nan", "snr", "drift", "loss"}
    for stop in range(1, 14):
        first, second = guarded(), guarded()
        events = run(first, range(stop))
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert events + run(second, range(stop, 14)) == whole


def test_a_checkpoint_of_other_tables_is_told():
    guard = tripped()
    guard.attributed(effects(TABLES, a=0.18))
    state = guard.state_dict()
    other = policy(tables=("a", "b", "new"))
    events = other.load_state_dict(state)
    assert [(e.kind, e.reason, e.table, e.direction) for e in events] == [
        ("warn", "resumed", table, direction)
        for table in ("new", "c")
        for direction in (("backward", "forward") if table == "new" else ("forward", "backward"))
    ]
    assert other.rungs["a", "forward"] == 2
    assert other.rungs["new", "forward"] == 1
    assert "new backward: no change: the checkpoint has no such rung" in events[0].message

    ladder = Ladder(names=("4", "6", "32"), bits=(4, 6, 32))  # without the rung that a was on
    changed = GuardPolicy(GuardLimits(), {(t, "forward"): ladder for t in TABLES})
    told = {(e.table, e.direction) for e in changed.load_state_dict(state)}
    assert told == {("a", "forward"), *((t, "backward") for t in TABLES)}
    assert changed.rungs == {(t, "forward"): 0 for t in TABLES}


def test_the_order_of_ladders_and_signals_does_not_matter():
    ladders = {(t, "forward"): LADDER for t in TABLES}
    first = GuardPolicy(GuardLimits(), ladders)
    second = GuardPolicy(GuardLimits(), dict(reversed(ladders.items())))
    signals = {("c", "forward"): BAD["pointless"], ("a", "forward"): BAD["unencodable"]}
    decisions = [
        guard.read(0, changes(0.0), dict(ordered))
        for guard, ordered in ((first, signals.items()), (second, reversed(signals.items())))
    ]
    assert decisions[0] == decisions[1]
    assert [event.table for event in decisions[0].events] == ["a", "c"]
