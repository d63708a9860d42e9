"""Policies of a guard, the numbers that they are given, and what they made of them."""

import random

from trec_qcomm.codecs import Identity, Rowwise
from trec_qcomm.lab.guard.ladders import Ladder
from trec_qcomm.lab.guard.messages import is_move
from trec_qcomm.lab.guard.policy import GuardPolicy
from trec_qcomm.lab.guard.rule import GuardRule
from trec_qcomm.lab.guard.tables import Signals

RUNGS = (Rowwise(2), Rowwise(4), Rowwise(8), Identity())
TABLES = ("a", "b", "c")
LIMIT = GuardRule().limit_ne
BAD = {
    "unencodable": Signals(num_broken=1),
    "pointless": Signals(bits=33.0),
    "nan": Signals(num_nan=2, num_inf=1),
}


def policy(start=1, lowest=1, tables=TABLES, **settings):
    ladders = {}
    for table in tables:
        ladders[table, "forward"] = Ladder(RUNGS, start, lowest)
        ladders[table, "backward"] = Ladder(RUNGS, start, start)
    return GuardPolicy(GuardRule(**settings), ladders, {"configuration": "test"})


def changes(mean, seed=0, spread=0.002, batches=8):
    """Return a reading whose mean is `mean`, nearly."""
    source = random.Random(seed)
    return [mean + source.gauss(0, spread) for _ in range(batches)]


class Outcome:
    """What a policy did at a probe. Attributes: asked: tables whose effects it asked for."""

    def __init__(self, record, events, asked):
        self.record, self.events, self.asked = record, events, asked
        self.told = [(event.event, event.reason, event.table) for event in events]
        self.moves = {(e.table, e.direction): e.rung_after for e in events if is_move(e)}


def read(guard, change, signals=None, *, spread=0.002, **effects):
    """Read one probe. Args: change: its mean, or all changes.  effects: likewise, by table."""
    asked, probe = [], guard.probe + 1

    def reading(number, seed, spread):
        return number if isinstance(number, list) else changes(number, seed, spread)

    def effects_of(tables):
        asked.extend(tables)
        return {table: reading(effects.get(table, 0.0), table, 0.0002) for table in tables}

    made = guard.read(200 * probe, reading(change, probe, spread), signals or {}, effects_of)
    return Outcome(*made, asked)


def about_to_trip(jump=0.2, **settings):
    """Return a policy that trips at the next probe, if it is like the one before."""
    guard = policy(**settings)
    for change in [0.0] * 10 + [jump]:
        assert read(guard, change).events == []
    return guard
