"""Limits that a guard keeps, the ladder of each table in one direction, and the rungs they are on.

Knows: names and sizes of rungs, numbers of probes. Does not know: codecs, the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Literal, get_args

from trec_qcomm.config.tables import DIRECTIONS, Direction
from trec_qcomm.core.codec import check_choice

Action = Literal["switch", "warn"]
Handling = Literal["error", "warn", "raise", "exact"]


@dataclass(frozen=True, kw_only=True)
class GuardLimits:
    """Limits that a guard keeps, and what it does beyond them. A probe is one look at the loss.

    Args:
        limit_ne: the most that codecs may add to the loss, in percent of the loss without them.
        action: `switch` moves tables to other codecs; `warn` only tells, once an episode.
        raise_after: number of probes in a row that must be above the limit before a table is moved
            to a finer codec, besides the mean that must be shown to be above it.
        lower_after: number of calm probes in a row after which one table is moved to a coarser
            codec, and after which an episode has ended.
        patience: number of probes for which a rung that a table had to leave is not tried again;
            twice as many after the second time, and so on.
        max_lowers: number of times that a table is moved down to one and the same rung; 0: never.
        least_snr_db: signal to noise, in dB, below which a table is moved to a finer codec after
            `raise_after` probes; None never moves it for that.
        on_unencodable: what becomes of a table whose codec makes finite values NaN or infinite:
            `raise`, to the next finer codec, `warn`, or `error`. A codec that raises
            UnencodableError ends the step, as it does without a guard.
        on_pointless: what becomes of a table whose coded bytes are more than float32's.
        on_nan: what becomes of a table whose values are NaN or infinite before they are coded.
        on_drift: what becomes of a table whose signal to noise falls by 10 dB within a few probes,
            or of whose values a tenth is lost that was not, beside values that grew fourfold, for
            `raise_after` probes: `raise`, as many rungs as it takes, or `warn`.
    """

    limit_ne: float = 0.02
    action: Action = "switch"
    raise_after: int = 2
    lower_after: int = 10
    patience: int = 20
    max_lowers: int = 3
    least_snr_db: float | None = None
    on_unencodable: Handling = "raise"
    on_pointless: Handling = "exact"
    on_nan: Handling = "warn"
    on_drift: Handling = "raise"

    def __post_init__(self) -> None:
        if not _is_number(self.limit_ne) or self.limit_ne <= 0:
            raise ValueError(f"limit_ne: {self.limit_ne!r} is not a number > 0, in percent")
        check_choice("action", self.action, get_args(Action))
        for name in ("raise_after", "lower_after", "patience"):
            _check_integer(name, getattr(self, name), 1)
        _check_integer("max_lowers", self.max_lowers, 0)
        if self.least_snr_db is not None and not _is_number(self.least_snr_db):
            raise ValueError(f"least_snr_db: {self.least_snr_db!r} is not a number")
        check_choice("on_unencodable", self.on_unencodable, ("error", "warn", "raise"))
        check_choice("on_pointless", self.on_pointless, ("error", "warn", "exact"))
        check_choice("on_nan", self.on_nan, ("error", "warn", "exact"))
        check_choice("on_drift", self.on_drift, ("warn", "raise"))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _check_integer(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise ValueError(f"{name}: {value!r} is not an integer >= {least}")


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


@dataclass
class _Tries:
    """How often a table left and tried a rung, and the probe until which it waits."""

    left: int = 0
    tried: int = 0
    until: int = 0


class Rungs:
    """The rung of each table and direction.

    Attributes: ladders: ladders by table and direction, in the same order on all ranks.  now: rungs
        as numbers.
    """

    def __init__(self, ladders: Mapping[Key, Ladder], limits: GuardLimits) -> None:
        """Begin with the rungs that the configuration gives."""
        self.ladders = dict(sorted(ladders.items()))
        self.now = {key: ladder.start for key, ladder in self.ladders.items()}
        self._limits = limits
        self._tries: dict[tuple[Key, str], _Tries] = {}  # by rungs that were left or tried
        self._latest_try: tuple[Key | None, int] = None, 0  # a table moved down, and the probe

    def name(self, key: Key, rung: int) -> str:
        """Return the name of a rung of a table."""
        return self.ladders[key].names[rung]

    def movable(self) -> list[str]:
        """Return the tables whose rows may get a finer codec."""
        return [
            table
            for (table, direction), ladder in self.ladders.items()
            if direction == "forward" and self.now[table, direction] < ladder.top
        ]

    def move(self, key: Key, to: int, probe: int) -> None:
        """Give a table another rung. What it leaves for a finer one has to wait."""
        before = self.now[key]
        if to > before:  # it waits, twice as long each time
            tries = self._tries_of(key, self.name(key, before))
            tries.left += 1
            tries.until = probe + self._limits.patience * 2 ** (tries.left - 1)
        else:
            self._tries_of(key, self.name(key, to)).tried += 1
            self._latest_try = key, probe
        self.now[key] = to

    def _tries_of(self, key: Key, rung: str) -> _Tries:
        return self._tries.setdefault((key, rung), _Tries())

    def _may_try(self, key: Key, rung: str, probe: int) -> bool:
        tries = self._tries.get((key, rung), _Tries())
        return tries.tried < self._limits.max_lowers and probe >= tries.until

    def on_trial(self, probe: int) -> Key | None:
        """Return the table that was moved down lately; None where none was."""
        key, tried_at = self._latest_try
        return key if probe - tried_at <= self._limits.lower_after else None

    def to_lower(self, probe: int, num_values: Mapping[Key, int | None]) -> Key | None:
        """Return the table that saves most bits one rung down; None where none may be moved."""
        saved: dict[Key, float] = {}
        for key, ladder in self.ladders.items():
            rung = self.now[key]
            if rung > ladder.lowest and self._may_try(key, ladder.names[rung - 1], probe):
                saved[key] = ladder.bits_saved(rung) * (num_values.get(key) or 1)
        return max(saved, key=lambda key: saved[key]) if saved else None

    def state_dict(self) -> dict[str, Any]:
        """Return all by names of tables and rungs, as JSON can hold it."""
        names: dict[str, dict[str, str]] = {}
        for (table, direction), rung in self.now.items():
            names.setdefault(table, {})[direction] = self.name((table, direction), rung)
        key, probe = self._latest_try
        return {
            "names": names,
            "latest_try": [*(key or ("", "")), probe],
            "tries": [[*key, rung, asdict(tries)] for (key, rung), tries in self._tries.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> tuple[list[Key], list[Key]]:
        """Continue from a `state_dict`.

        Returns: tables that begin as the configuration says, since they are new or their rung is on
            their ladder no more; and tables that are gone.
        """
        table, direction, probe = state["latest_try"]
        self._latest_try = (table, direction) if table else None, probe
        self._tries = {((t, d), rung): _Tries(**tries) for t, d, rung, tries in state["tries"]}
        saved, new = state["names"], []
        for key, ladder in self.ladders.items():
            name = saved.get(key[0], {}).get(key[1])
            self.now[key] = ladder.names.index(name) if name in ladder.names else ladder.start
            new += [] if name in ladder.names else [key]
        every: list[Key] = [(table, d) for table in saved for d in DIRECTIONS if d in saved[table]]
        return new, [key for key in every if key not in self.ladders]
