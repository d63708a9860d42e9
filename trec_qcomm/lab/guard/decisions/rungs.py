"""Rungs: which rung each table has, which one it may be moved down to, and how both are saved.

Knows: ladders, signals, numbers of probes. Does not know: codecs, the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trec_qcomm.config.tables import DIRECTIONS
from trec_qcomm.lab.guard.decisions.by_values.signals import Signals
from trec_qcomm.lab.guard.decisions.ladder import Key, Ladder, Patience
from trec_qcomm.lab.guard.decisions.limits import GuardLimits


class Rungs:
    """The rung of each table and direction.

    Attributes: ladders: ladders by table and direction, in the same order on all ranks.  now: rungs
        as numbers.
    """

    def __init__(self, ladders: Mapping[Key, Ladder], limits: GuardLimits) -> None:
        """Begin with the rungs that the configuration gives."""
        self.ladders = dict(sorted(ladders.items()))
        self.now = {key: ladder.start for key, ladder in self.ladders.items()}
        self._trial = limits.lower_after
        self._patience = Patience(limits)
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
        if to > before:
            self._patience.leave(key, self.name(key, before), probe)
        else:
            self._patience.try_rung(key, self.name(key, to))
            self._latest_try = key, probe
        self.now[key] = to

    def on_trial(self, probe: int) -> Key | None:
        """Return the table that was moved down lately; None where none was."""
        key, tried_at = self._latest_try
        return key if probe - tried_at <= self._trial else None

    def to_lower(self, probe: int, signals: Mapping[Key, Signals]) -> Key | None:
        """Return the table that saves most bits one rung down; None where none may be moved."""
        saved: dict[Key, float] = {}
        for key, ladder in self.ladders.items():
            rung = self.now[key]
            if rung > ladder.lowest and self._patience.may_try(key, ladder.names[rung - 1], probe):
                signal = signals.get(key)
                num_values = signal.num_values if signal is not None else None
                saved[key] = ladder.bits_saved(rung) * (num_values or 1)
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
            "patience": self._patience.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> tuple[list[Key], list[Key]]:
        """Continue from a `state_dict`.

        Returns: tables that begin as the configuration says, since they are new or their rung is on
            their ladder no more; and tables that are gone.
        """
        table, direction, probe = state["latest_try"]
        self._latest_try = (table, direction) if table else None, probe
        self._patience.load_state_dict(state["patience"])
        saved, new = state["names"], []
        for key, ladder in self.ladders.items():
            name = saved.get(key[0], {}).get(key[1])
            self.now[key] = ladder.names.index(name) if name in ladder.names else ladder.start
            new += [] if name in ladder.names else [key]
        every: list[Key] = [(table, d) for table in saved for d in DIRECTIONS if d in saved[table]]
        return new, [key for key in every if key not in self.ladders]
