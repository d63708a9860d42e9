"""GuardedTable: one table in one direction, its rung, and the alarms that its values raise.

A table's signal to noise is remembered for each rung, as it was while all was well. A rung is
expected to be as good as it was, and as the coarser rungs were. The table has drifted out of its
codec's reach if its signal to noise falls by DROP_DB within a few probes. It has also drifted if
another LOST_RISE of the values are lost beside values that have grown by GROWTH. The expectation
then stays as it was. Values that are lost beside slowly growing values are mostly rows of rare ids,
hardly trained; the loss decides about them.

Knows: figures of one table, its ladder. Does not know: the loss, other tables, how ranks agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from trec_qcomm.config.tables import Direction
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab.guard.ladders import Ladder
from trec_qcomm.lab.guard.rule import Answer, GuardRule
from trec_qcomm.lab.records.kinds import GuardReason

Key = tuple[str, Direction]  # name of a table, and direction

MIN_SIGNALS = 3  # before a running mean says anything
DROP_DB = 10.0  # nearly two bits
LOST_RISE = 0.1  # share of values
GROWTH = 4.0  # of the root mean square
MOSTLY_LOST = 0.5  # share of values beyond which nobody knows how many bits are missing
DB_A_BIT = 6.02
_LATEST_WEIGHT = 0.5  # of the latest signal: trainings change slowly, drifts at once


@dataclass(frozen=True, kw_only=True)
class Signals:
    """Figures of all ranks since the last probe. None: not measured; no rule reads it.

    Args:
        num_nan, num_inf: number of values that are NaN, and infinite, before they are coded.
        num_broken: number of values that are finite only on one side of the codec.
        num_values: number of values.
        snr_db: signal to noise, 10 log10(sum x^2 / sum e^2).
        rms: root mean square of the values.
        lost_share: share of the nonzero values whose error is at least as large as the value.
        bits: bits a value really sent, headers of segments included.
    """

    num_nan: int = 0
    num_inf: int = 0
    num_broken: int = 0
    num_values: int | None = None
    snr_db: float | None = None
    rms: float | None = None
    lost_share: float | None = None
    bits: float | None = None


@dataclass
class Expected:
    """Running means of a table's signals with one rung. Args: count: number of signals."""

    snr_db: float | None = None
    lost_share: float | None = None
    rms: float | None = None
    count: int = 0

    def add(self, signal: Signals) -> None:
        """Add the signals of a probe at which all was well."""
        self.count += 1
        for name in ("snr_db", "lost_share", "rms"):
            value, mean = getattr(signal, name), getattr(self, name)
            if value is not None:
                mean = value if mean is None else mean
                setattr(self, name, mean + _LATEST_WEIGHT * (value - mean))


@dataclass
class TableState:
    """State of a table that is remembered; dicts are by the name of a rung.

    Args:
        rung: name of the rung that the table has.
        lowered_at: the last probe at which it was moved down; None: it never was.
        num_left: how often it had to leave a rung for a finer one.
        waits_until: the probe before which a rung is not tried again.
        expected: expected signals.
        num_drifted: number of probes in a row at which signals were far from expected.
        told: messages about the table that still hold.
    """

    rung: str
    lowered_at: int | None = None
    num_left: dict[str, int] = field(default_factory=dict)
    waits_until: dict[str, int] = field(default_factory=dict)
    expected: dict[str, Expected] = field(default_factory=dict)
    num_drifted: int = 0
    told: list[GuardReason] = field(default_factory=list)

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> TableState:
        """Return the TableState of which `asdict` made a dict."""
        expected = {name: Expected(**means) for name, means in saved["expected"].items()}
        return TableState(**{**saved, "expected": expected})


class GuardedTable:
    """One table in one direction, which begins with the configuration's rung.

    Args: ladder: the rungs of the table.  rule: settings of the guard.
    """

    def __init__(self, ladder: Ladder, rule: GuardRule) -> None:
        self.ladder, self._rule = ladder, rule
        self.state = TableState(ladder.names[ladder.start])

    @property
    def rung(self) -> int:
        """Index of the table's present rung."""
        return self.ladder.names.index(self.state.rung)

    @property
    def codec(self) -> Codec:
        """Present codec of the table."""
        return self.ladder.codecs[self.rung]

    @property
    def is_exact(self) -> bool:
        """Whether the table has the exact rung."""
        return self.rung == self.ladder.top

    def move(self, to: int, probe: int) -> None:
        """Give the table another rung. A rung that it leaves for a finer one has to wait."""
        state, left = self.state, self.state.rung
        if to > self.rung:  # it waits, twice as long each time
            before = state.num_left.get(left, 0)
            state.num_left[left] = before + 1
            state.waits_until[left] = probe + self._rule.patience * 2**before
        else:
            state.lowered_at = probe
        state.rung = self.ladder.names[to]
        state.num_drifted = 0
        state.told = [reason for reason in state.told if reason == "nan"]  # which is no codec's

    def may_lower(self, probe: int) -> bool:
        """Return whether the table may have the rung below."""
        rung = self.rung
        if rung <= self.ladder.lowest:
            return False
        return probe >= self.state.waits_until.get(self.ladder.names[rung - 1], 0)

    def is_on_trial(self, probe: int) -> bool:
        """Return whether the table was moved down in the latest `lower_after` probes."""
        at = self.state.lowered_at
        return at is not None and probe - at <= self._rule.lower_after

    def alarm(self, signal: Signals) -> tuple[GuardReason, Answer, int] | None:
        """Return the first alarm, the rule's answer to it, and the rung for `raise`.

        An alarm that was told and still holds is left out. If all is well, the signal is added to
        the expected signals.
        """
        state, rung, top = self.state, self.rung, self.ladder.top
        is_coded = not self.is_exact  # what is exact is not at fault
        missing = self._missing_bits(signal) if is_coded else None
        state.num_drifted = 0 if missing is None else state.num_drifted + 1
        rungs: dict[GuardReason, int] = {}  # of what is wrong
        if is_coded and signal.num_broken:
            rungs["unencodable"] = rung + 1
        if is_coded and (signal.bits or 0) > 32:
            rungs["pointless"] = top
        if signal.num_nan + signal.num_inf:
            rungs["nan"] = top
        if missing is not None and state.num_drifted >= self._rule.raise_after:
            rungs["drift"] = self.ladder.rung_for(rung, missing)
        state.told = [reason for reason in state.told if reason in rungs]
        for reason, to in rungs.items():
            answer: Answer = getattr(self._rule, f"on_{reason}")
            if answer == "error" or reason not in state.told:
                state.told = sorted({*state.told, reason})
                return reason, answer, to
        return None

    def _missing_bits(self, signal: Signals) -> float | None:
        """Return how many bits a value the table misses, at least; None where all is well."""
        names = self.ladder.names[: self.rung + 1]
        known = [self.state.expected[name] for name in names if name in self.state.expected]
        missing = _missing([one for one in known if one.count >= MIN_SIGNALS], signal)
        if missing is None:
            self.state.expected.setdefault(names[-1], Expected()).add(signal)
        return missing


def _missing(expected: list[Expected], signal: Signals) -> float | None:
    """Return how many bits a value are missing, at least; None where all is as expected."""
    decibels = [one.snr_db for one in expected if one.snr_db is not None]
    shares = [one.lost_share for one in expected if one.lost_share is not None]
    if decibels and signal.snr_db is not None:
        deficit = max(decibels) - DROP_DB - signal.snr_db
        if deficit > 0:
            return deficit / DB_A_BIT
    lost = signal.lost_share
    if lost is None or not shares or lost - min(shares) < LOST_RISE:
        return None
    sizes = [one.rms for one in expected if one.rms is not None]
    if sizes and signal.rms is not None and signal.rms < GROWTH * max(sizes):
        return None
    return inf if lost >= MOSTLY_LOST else 0.0
