"""Alarms: what signals of a table ask for at once, whatever the loss says.

Knows: signals, the rules of the configuration. Does not know: rungs, the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trec_qcomm.control.guard.events import Reason
from trec_qcomm.control.guard.ladder import Key
from trec_qcomm.control.guard.limits import GuardLimits
from trec_qcomm.control.guard.signals import Signals

Answer = Literal["error", "warn", "exact", "raise"]


@dataclass(frozen=True)
class Alarm:
    """What is wrong with a table, and what to do about it."""

    key: Key
    reason: Reason
    answer: Answer


class Alarms:
    """The signals of all tables so far, as far as alarms depend on them."""

    def __init__(self, limits: GuardLimits) -> None:
        """Begin without signals."""
        self._limits = limits
        self._num_low: dict[Key, int] = {}  # probes in a row with too little signal to noise
        self._told: set[tuple[Key, Reason]] = set()  # and still so

    def check(self, key: Key, signal: Signals, *, is_exact: bool) -> Alarm | None:
        """Return the first thing that is wrong with a table, unless it was told and stayed so.

        Args: is_exact: whether the table has an exact codec, which cannot be at fault.
        """
        first: Alarm | None = None
        for reason, answer, is_wrong in self._cases(key, signal, is_exact=is_exact):
            is_told = (key, reason) in self._told
            if not is_wrong:
                self._told.discard((key, reason))
            elif first is None and (answer == "error" or not is_told):
                self._told.add((key, reason))
                first = Alarm(key, reason, answer)
        return first

    def _cases(
        self, key: Key, signal: Signals, *, is_exact: bool
    ) -> Sequence[tuple[Reason, Answer, bool]]:
        limits, snr = self._limits, signal.snr_db
        least = limits.least_snr_db
        is_low = not is_exact and least is not None and snr is not None and snr < least
        self._num_low[key] = self._num_low.get(key, 0) + 1 if is_low else 0
        refused = signal.num_unencodable + signal.num_broken > 0
        return (
            ("unencodable", limits.on_unencodable, refused and not is_exact),
            ("pointless", limits.on_pointless, (signal.bits or 0) > 32 and not is_exact),
            ("nan", limits.on_nan, signal.num_nan + signal.num_inf > 0),
            ("snr", "raise", self._num_low[key] >= limits.raise_after),
        )

    def forget_codec(self, key: Key) -> None:
        """Begin anew with a table that has got another codec."""
        self._num_low.pop(key, None)

    def state_dict(self) -> dict[str, Any]:
        """Return all as JSON can hold it."""
        return {
            "num_low": [[*key, count] for key, count in sorted(self._num_low.items()) if count],
            "told": [[*key, reason] for key, reason in sorted(self._told)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self._num_low = {(table, direction): n for table, direction, n in state["num_low"]}
        self._told = {((table, direction), reason) for table, direction, reason in state["told"]}
