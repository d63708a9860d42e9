"""Quality: what tables had of signal to noise with each rung while all was well, and who lost it.

A rung is expected to be as good as it was, and as the coarser ones were. Where the signal to noise
falls by DROP_DB within a few probes, or LOST_RISE of the values are lost that were not, beside
values that have grown by GROWTH, the table has drifted out of its codec's reach, and what was
expected stays what it was. Values that are lost beside others that grew slowly are mostly rows of
rare ids, hardly trained; the loss decides about them.

Knows: signals, rungs. Does not know: codecs, the loss, what is done about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from trec_qcomm.lab.guard.decisions.by_values.signals import Signals
from trec_qcomm.lab.guard.decisions.ladder import Key, Ladder

DROP_DB = 10.0  # nearly two bits
LOST_RISE = 0.1  # share of values
GROWTH = 4.0  # of the root mean square
MOSTLY_LOST = 0.5  # share of values beyond which nobody knows how many bits are missing
DB_A_BIT = 6.02
MIN_SIGNALS = 3  # before anything is expected
_WEIGHT = 0.5  # of the latest signal: trainings change slowly, drifts at once


@dataclass
class _Expected:
    """Running means with one rung."""

    snr_db: float | None = None
    lost_share: float | None = None
    rms: float | None = None
    count: int = 0

    def add(self, signal: Signals) -> None:
        self.count += 1
        for name in ("snr_db", "lost_share", "rms"):
            value, mean = getattr(signal, name), getattr(self, name)
            if value is not None:
                setattr(self, name, value if mean is None else mean + _WEIGHT * (value - mean))


@dataclass
class Quality:
    """Expectations of all tables, by rung. Args: num_lost: probes in a row without it."""

    num_lost: dict[Key, int] = field(default_factory=dict)
    _expected: dict[Key, dict[str, _Expected]] = field(default_factory=dict)

    def missing_bits(self, key: Key, ladder: Ladder, rung: int, signal: Signals) -> float | None:
        """Return how many bits a value a table misses, at least; None where all is well.

        Where all is well, the signal is added to what is expected.
        """
        by_name = self._expected.setdefault(key, {})
        known = [by_name[name] for name in ladder.names[: rung + 1] if name in by_name]
        missing = _missing([e for e in known if e.count >= MIN_SIGNALS], signal)
        self.num_lost[key] = 0 if missing is None else self.num_lost.get(key, 0) + 1
        if missing is None:
            by_name.setdefault(ladder.names[rung], _Expected()).add(signal)
        return missing

    def state_dict(self) -> dict[str, Any]:
        """Return all as JSON can hold it."""
        expected = [
            [*key, name, e.snr_db, e.lost_share, e.rms, e.count]
            for key, by_name in sorted(self._expected.items())
            for name, e in by_name.items()
        ]
        lost = [[*key, count] for key, count in sorted(self.num_lost.items()) if count]
        return {"expected": expected, "num_lost": lost}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.num_lost = {(table, direction): n for table, direction, n in state["num_lost"]}
        self._expected = {}
        for table, direction, name, snr_db, lost_share, rms, count in state["expected"]:
            by_name = self._expected.setdefault((table, direction), {})
            by_name[name] = _Expected(snr_db, lost_share, rms, count)


def _missing(expected: list[_Expected], signal: Signals) -> float | None:
    decibels = [e.snr_db for e in expected if e.snr_db is not None]
    shares = [e.lost_share for e in expected if e.lost_share is not None]
    if decibels and signal.snr_db is not None:
        deficit = max(decibels) - DROP_DB - signal.snr_db
        if deficit > 0:
            return deficit / DB_A_BIT
    lost = signal.lost_share
    is_lost = lost is not None and bool(shares) and lost - min(shares) >= LOST_RISE
    if lost is not None and is_lost and _has_grown(expected, signal):
        return inf if lost >= MOSTLY_LOST else 0.0
    return None


def _has_grown(expected: list[_Expected], signal: Signals) -> bool:
    """Return whether values are far larger than they were; True where that is not measured."""
    sizes = [e.rms for e in expected if e.rms is not None]
    return not sizes or signal.rms is None or signal.rms >= GROWTH * max(sizes)
