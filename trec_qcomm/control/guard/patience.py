"""Patience: which rungs a table may be moved down to, after it had to leave them.

Knows: names of rungs, numbers of probes. Does not know: codecs, the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trec_qcomm.control.guard.ladder import Key
from trec_qcomm.control.guard.limits import GuardLimits


class Patience:
    """Counts of how often each rung was left and tried, and until when it is not tried again."""

    def __init__(self, limits: GuardLimits) -> None:
        """Begin with no rung left."""
        self._limits = limits
        self._left: dict[tuple[Key, str], int] = {}
        self._tried: dict[tuple[Key, str], int] = {}
        self._until: dict[tuple[Key, str], int] = {}

    def leave(self, key: Key, rung: str, probe: int) -> None:
        """Note that a table had to leave a rung: it waits, twice as long each time."""
        left = self._left[key, rung] = self._left.get((key, rung), 0) + 1
        self._until[key, rung] = probe + self._limits.patience * 2 ** (left - 1)

    def may_try(self, key: Key, rung: str, probe: int) -> bool:
        """Return whether a table may be moved down to a rung at a probe."""
        if self._tried.get((key, rung), 0) >= self._limits.max_lowers:
            return False
        return probe >= self._until.get((key, rung), 0)

    def try_rung(self, key: Key, rung: str) -> None:
        """Note that a table is moved down to a rung."""
        self._tried[key, rung] = self._tried.get((key, rung), 0) + 1

    def state_dict(self) -> list[dict[str, Any]]:
        """Return one mapping for each rung of a table that was left or tried."""
        return [
            {
                "table": table, "direction": direction, "rung": rung,
                "left": self._left.get(((table, direction), rung), 0),
                "tried": self._tried.get(((table, direction), rung), 0),
                "until": self._until.get(((table, direction), rung), 0),
            }
            for (table, direction), rung in dict.fromkeys([*self._left, *self._tried])
        ]  # fmt: skip

    def load_state_dict(self, state: list[Mapping[str, Any]]) -> None:
        """Continue from a `state_dict`."""
        for name in ("left", "tried", "until"):
            counts = {((s["table"], s["direction"]), s["rung"]): s[name] for s in state if s[name]}
            setattr(self, f"_{name}", counts)
