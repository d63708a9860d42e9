"""Policies of a guard and the numbers that they are given."""

import random

from trec_qcomm.lab.guard.decisions.ladder import GuardLimits, Ladder
from trec_qcomm.lab.guard.decisions.policy import GuardPolicy
from trec_qcomm.lab.guard.decisions.values import Signals

LADDER = Ladder(names=("2", "4", "8", "32"), start=1, bits=(2, 4, 8, 32))
TABLES = ("a", "b", "c")
LIMIT = GuardLimits().limit_ne
BAD = {
    "unencodable": Signals(num_broken=1),
    "pointless": Signals(bits=33.0),
    "nan": Signals(num_nan=2, num_inf=1),
}


def policy(start=1, lowest=1, tables=TABLES, **limits):
    def ladder(lowest):
        return Ladder(names=LADDER.names, start=start, lowest=lowest, bits=LADDER.bits)

    ladders = {(table, "forward"): ladder(lowest) for table in tables}
    ladders |= {(table, "backward"): ladder(start) for table in tables}
    return GuardPolicy(GuardLimits(**limits), ladders)


def changes(mean, seed=0, spread=0.002, batches=8):
    """Return a reading whose mean is `mean`, nearly."""
    source = random.Random(seed)
    return [mean + source.gauss(0, spread) for _ in range(batches)]


def effects(asked, **means):
    return {table: changes(means.get(table, 0.0), table, 0.0002) for table in asked}


def read_all(guard, means):
    """Read one probe for each mean, until the policy asks for effects; return all decisions."""
    decisions = []
    for mean in means:
        probe = guard.probe + 1
        decisions.append(guard.read(200 * probe, changes(mean, probe)))
        if decisions[-1].attribute:
            break
    return decisions


def kinds(decision):
    return [(event.kind, event.reason, event.table) for event in decision.events]


def tripped(calm=10, jump=0.2, **limits):
    """Return a policy that asks for effects, two probes after a jump."""
    guard = policy(**limits)
    assert all(not d.attribute and not d.events for d in read_all(guard, [0.0] * calm))
    first, second = read_all(guard, [jump] * 2)
    assert (kinds(first), first.attribute) == ([], ())
    assert kinds(second) == [("trip", "loss", None)]
    assert second.attribute
    return guard
