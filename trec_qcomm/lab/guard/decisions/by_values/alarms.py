"""Alarms: what signals of a table ask for at once, whatever the loss says.

Knows: signals, the rules of the configuration. Does not know: rungs, the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trec_qcomm.lab.guard.decisions.by_values.drift import DB_A_BIT, Quality
from trec_qcomm.lab.guard.decisions.by_values.signals import Signals
from trec_qcomm.lab.guard.decisions.events import Reason
from trec_qcomm.lab.guard.decisions.ladder import Key, Ladder
from trec_qcomm.lab.guard.decisions.limits import GuardLimits, Handling


@dataclass(frozen=True)
class Alarm:
    """What is wrong with a table, and what to do about it.

    Args: more_bits: how many bits a value the codec should send more; for `raise`.
    """

    key: Key
    reason: Reason
    answer: Handling
    more_bits: float = 0.0


class Alarms:
    """The signals of all tables so far, as far as alarms depend on them."""

    def __init__(self, limits: GuardLimits) -> None:
        """Begin without signals."""
        self._limits = limits
        self._quality = Quality()
        self._num_low: dict[Key, int] = {}  # probes in a row with too little signal to noise
        self._told: set[tuple[Key, Reason]] = set()  # and still so

    def check(self, key: Key, signal: Signals, ladder: Ladder, rung: int) -> Alarm | None:
        """Return the first thing that is wrong with a table, unless it was told and stayed so."""
        first: Alarm | None = None
        for alarm, is_wrong in self._cases(key, signal, ladder, rung):
            told = key, alarm.reason
            if not is_wrong:
                self._told.discard(told)
            elif first is None and (alarm.answer == "error" or told not in self._told):
                self._told.add(told)
                first = alarm
        return first

    def _cases(
        self, key: Key, signal: Signals, ladder: Ladder, rung: int
    ) -> Sequence[tuple[Alarm, bool]]:
        limits, snr, least = self._limits, signal.snr_db, self._limits.least_snr_db
        is_coded = rung != ladder.top  # what is exact is not at fault
        refused = signal.num_unencodable + signal.num_broken > 0
        low_db = 0.0 if least is None or snr is None or not is_coded else max(0.0, least - snr)
        self._num_low[key] = self._num_low.get(key, 0) + 1 if low_db else 0
        missing = self._quality.missing_bits(key, ladder, rung, signal) if is_coded else None
        drifted = is_coded and self._quality.num_lost.get(key, 0) >= limits.raise_after
        drifted = drifted or (is_coded and signal.num_held > 0)
        missing = max(missing or 0.0, signal.held_bits or 0.0)
        return (
            (Alarm(key, "unencodable", limits.on_unencodable), refused and is_coded),
            (Alarm(key, "pointless", limits.on_pointless), is_coded and (signal.bits or 0) > 32),
            (Alarm(key, "nan", limits.on_nan), signal.num_nan + signal.num_inf > 0),
            (
                Alarm(key, "snr", "raise", low_db / DB_A_BIT),
                self._num_low[key] >= limits.raise_after,
            ),
            (Alarm(key, "drift", limits.on_drift, missing), drifted),
        )

    def forget_codec(self, key: Key) -> None:
        """Begin anew with a table that has got another codec."""
        self._num_low.pop(key, None)
        self._quality.num_lost.pop(key, None)
        self._told -= {(key, "snr"), (key, "drift")}

    def state_dict(self) -> dict[str, Any]:
        """Return all as JSON can hold it."""
        return {
            "num_low": [[*key, count] for key, count in sorted(self._num_low.items()) if count],
            "told": [[*key, reason] for key, reason in sorted(self._told)],
            "quality": self._quality.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self._num_low = {(table, direction): n for table, direction, n in state["num_low"]}
        self._quality.load_state_dict(state["quality"])
        self._told = {((table, direction), reason) for table, direction, reason in state["told"]}
