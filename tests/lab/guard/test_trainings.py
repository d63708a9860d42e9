"""The guard's decisions over whole trainings, and when one is resumed."""

import json
import random

from tests.lab.guard.policies import LIMIT, RUNGS, TABLES, about_to_trip, policy, read
from trec_qcomm.lab.guard.ladders import Ladder
from trec_qcomm.lab.guard.policy import GuardPolicy
from trec_qcomm.lab.guard.rule import GuardRule
from trec_qcomm.lab.guard.tables import Signals

BITS = (2, 4, 8)


class Training:
    """A training in numbers: each table's effect is its weight over 4 to the power of its bits."""

    def __init__(self, guard, seed=0):
        self.guard, self.source, self.weights = guard, random.Random(seed), dict.fromkeys(TABLES, 1)

    def effect(self, table):
        rung = self.guard.rungs[table, "forward"]
        return 0.0 if rung == 3 else self.weights[table] / 4 ** BITS[rung]

    def noisy(self, mean):
        return [mean * (1 + self.source.gauss(0, 0.2)) for _ in range(8)]

    def probe(self, signals=None):
        change = self.noisy(sum(map(self.effect, TABLES)))
        effects = {table: self.noisy(self.effect(table)) for table in TABLES}
        return read(self.guard, change, signals, **effects).events


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
        assert {(e.event, e.table) for e in events} == {("calm", None), ("lower", "b")}
        assert set(training.guard.rungs.values()) == {1}


def test_a_run_that_is_resumed_at_any_probe_decides_the_same():
    settings = {"lowest": 0, "lower_after": 3, "patience": 5, "raise_after": 2}

    def trained(resume_at):
        training, log = Training(policy(**settings), 7), []
        for probe in range(60):
            if probe in resume_at:
                state = json.loads(json.dumps(training.guard.state_dict()))
                training.guard = policy(**settings)
                assert training.guard.load_state_dict(state) == []
                assert training.guard.state_dict() == state
            training.weights["b"] = 300.0 if 20 <= probe < 30 else 1.0
            signals = {("c", "forward"): Signals(snr_db=20.0 if probe < 40 else 5.0)}
            signals[("b", "backward")] = Signals(num_nan=int(probe > 50))
            log.append(training.probe(signals))
        return log, training.guard

    wanted, guard = trained(())
    events = [event for events in wanted for event in events]
    assert {event.event for event in events} == {"trip", "raise", "lower", "calm", "warn"}
    assert {event.reason for event in events} == {"loss", "calm", "drift", "nan"}
    log, resumed = trained(range(60))
    assert log == wanted
    assert resumed.rungs == guard.rungs


def test_a_checkpoint_of_other_tables_is_told():
    guard = about_to_trip()
    assert read(guard, 0.2, a=0.18).moves == {("a", "forward"): 2}
    state = guard.state_dict()
    other = policy(tables=("a", "b", "new"))
    events = other.load_state_dict(state)
    assert {(e.event, e.reason) for e in events} == {("warn", "resumed")}
    assert {(e.table, e.direction) for e in events} == {
        (table, direction) for table in ("new", "c") for direction in ("forward", "backward")
    }
    assert other.rungs["a", "forward"] == 2
    assert other.rungs["new", "forward"] == 1
    assert events[-1].message.startswith("guard: new forward: no change: the checkpoint has no")

    ladder = Ladder((RUNGS[1], RUNGS[3]), 0, 0)  # without the rung that a was on
    ladders = {(table, "forward"): ladder for table in TABLES}
    changed = GuardPolicy(GuardRule(), ladders, {"configuration": "test"})
    told = {(e.table, e.direction) for e in changed.load_state_dict(state)}
    assert told == {("a", "forward"), *((table, "backward") for table in TABLES)}
    assert set(changed.rungs.values()) == {0}
