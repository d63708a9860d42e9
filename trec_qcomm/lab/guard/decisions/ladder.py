"""Ladder, the rungs that one table may have in one direction, and Patience, when to try one again.

Knows: names and sizes of rungs, numbers of probes. Does not know: codecs, the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trec_qcomm.config.tables import Direction
from trec_qcomm.lab.guard.decisions.limits import GuardLimits

Key = tuple[str, Direction]  # name of a table, and direction


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Rungs from the coarsest codec to float32, and the one that the configuration gives.

    Args:
        names: a text for each rung, no two alike, such as a codec's repr; the last one is exact.
        start: number of the rung that the configuration gives.
        lowest: number of the coarsest rung that may be taken.
        bits: about how many bits a value each rung sends.
    """

    names: tuple[str, ...]
    start: int = 0
    lowest: int = 0
    bits: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names):
            raise ValueError(f"names: expected different names of rungs, got {self.names!r}")
        if not 0 <= self.start < len(self.names):
            raise ValueError(f"start: {self.start!r} is not in 0..{len(self.names) - 1}")
        if not 0 <= self.lowest <= self.start:
            raise ValueError(f"lowest: {self.lowest!r} is not in 0..start {self.start}")
        if self.bits and len(self.bits) != len(self.names):
            raise ValueError(f"bits: expected {len(self.names)} numbers, got {self.bits!r}")

    @property
    def top(self) -> int:
        """Number of the exact rung."""
        return len(self.names) - 1

    def rung_for(self, rung: int, more_bits: float) -> int:
        """Return the next finer rung, or the first one that sends so many bits a value more."""
        for finer in range(rung + 1, self.top):
            if not self.bits or self.bits[finer] - self.bits[rung] >= more_bits:
                return finer
        return self.top

    def bits_saved(self, rung: int) -> float:
        """Return how many bits a value the rung below sends less."""
        return self.bits[rung] - self.bits[rung - 1] if self.bits else 1.0


class Patience:
    """Counts of how often tables left and tried each rung, and until when they wait."""

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
