"""Ladder: the rungs that one table may have in one direction, as names and sizes.

Knows: names of rungs. Does not know: codecs.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
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

    def bits_saved(self, rung: int) -> float:
        """Return how many bits a value the rung below sends less."""
        return self.bits[rung] - self.bits[rung - 1] if self.bits else 1.0
