"""SignalSums: what the guard wants to know of the values of each table, summed over one step.

In the step before a probe it looks at rows and gradients before they are coded, codes them once
more into memory of its own, as the debugger does, and adds up. In other steps it does nothing.

Knows: collectives of rows, tallies. Does not know: ladders, decisions, how ranks agree.
Shapes: K tables and directions, F fields.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import log10, sqrt
from typing import cast

import torch
from torch import Tensor

from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.rows.doors import Call, Observer
from trec_qcomm.config.tables import DIRECTIONS, Direction
from trec_qcomm.lab.debug.coding import CodedRows, PackedRows, code, num_verbatim, pack
from trec_qcomm.lab.debug.tally import Tally
from trec_qcomm.lab.guard.decisions.ladder import Key
from trec_qcomm.lab.guard.decisions.values import Signals
from trec_qcomm.lab.guard.rule import GuardRule

FIELDS = (
    "values", "rows", "nan", "inf", "broken", "unusable", "xx", "ee", "zeros", "lost", "widths",
    "nbytes", "verbatim", "verbatim_values",
)  # fmt: skip


class SignalSums(Observer):
    """Sums over the values of guarded tables on this rank; see the module.

    Args: rule: settings of the guard.
    Attributes: is_armed: whether the next training step is looked at.
    """

    def __init__(self, rule: GuardRule) -> None:
        self._rule = rule
        self.is_armed = False
        self._tallies: dict[Key, Tally] = {}
        self._sums: dict[Key, dict[str, float]] = {}

    def keys(self, tables: Iterable[str]) -> list[Key]:
        """Return the guarded ones of some tables, with both directions, sorted."""
        return sorted((t, d) for t in tables if self._rule.matches(t) for d in DIRECTIONS)

    def before_encoding(self, call: Call, values: Tensor, placed: PlacedFrames) -> None:
        """Add up rows that are about to be sent, in a step that is looked at."""
        if not self.is_armed or not call.is_training:
            return
        names = [table if self._rule.matches(table) else None for table in placed.plan.tables]
        for rows in pack(values, placed, seed=call.seed, tolerances=call.tolerances, names=names):
            self._add(
                rows, code(rows, rows.codec, rows.tolerances), cast(Direction, call.direction)
            )

    def _add(self, rows: PackedRows, coded: CodedRows, direction: Direction) -> None:
        for name, segments, part in rows.blocks():
            key = (name, direction)
            self._tallies.setdefault(key, Tally()).add(rows.x[part], coded.y[part])
            sums = self._sums_of(key)
            for s in range(segments.start, segments.stop):
                data, num_values = coded.data(s), rows.segments.block(coded.y, s).numel()
                verbatim = num_verbatim(rows.codec, data, num_values)
                sums["nbytes"] += len(data)
                if verbatim is not None:
                    sums["verbatim"] += verbatim
                    sums["verbatim_values"] += num_values

    def _sums_of(self, key: Key) -> dict[str, float]:
        return self._sums.setdefault(key, dict.fromkeys(FIELDS, 0.0))

    def tensor(self, keys: Sequence[Key]) -> Tensor:
        """Return [K, F] float64 on the CPU, the sums so far. Waits for a GPU."""
        for key, tally in self._tallies.items():
            sums = self._sums_of(key)
            for name, value in tally.sums().items():
                if name in sums:
                    sums[name] += value
        self._tallies.clear()
        nothing = dict.fromkeys(FIELDS, 0.0)
        rows = [[self._sums.get(key, nothing)[name] for name in FIELDS] for key in keys]
        return torch.tensor(rows, dtype=torch.float64).view(len(rows), len(FIELDS))

    def reset(self) -> None:
        """Begin anew."""
        self._tallies.clear()
        self._sums.clear()

    def load(self, keys: Sequence[Key], sums: Tensor) -> None:
        """Go on from what `tensor` returned. Raises ValueError: a tensor of another shape."""
        if sums.shape != (len(keys), len(FIELDS)):
            raise ValueError(f"state: guard_signals: {list(sums.shape)} of {len(keys)} tables")
        self.reset()
        for key, row in zip(keys, sums.tolist(), strict=True):
            if any(row):
                self._sums[key] = dict(zip(FIELDS, row, strict=True))


def signals_of(keys: Sequence[Key], sums: Tensor) -> dict[Key, Signals]:
    """Return the figures of tables that were looked at.

    Args: sums: [K, F] float64, of all ranks together.
    """
    by_key = {
        key: dict(zip(FIELDS, row, strict=True))
        for key, row in zip(keys, sums.tolist(), strict=True)
    }
    return {key: _signals(sums) for key, sums in by_key.items() if sums["values"]}


def _signals(sums: Mapping[str, float]) -> Signals:
    num_values, squares, noise = sums["values"], sums["xx"], sums["ee"]
    usable = num_values - sums["unusable"]
    verbatim_values, nonzero = sums["verbatim_values"], usable - sums["zeros"]
    return Signals(
        num_nan=int(sums["nan"]),
        num_inf=int(sums["inf"]),
        num_broken=int(sums["broken"]),
        num_values=int(num_values),
        snr_db=10 * log10(squares / noise) if squares > 0 and noise > 0 else None,
        rms=sqrt(squares / usable) if usable else None,
        range=sums["widths"] / sums["rows"],
        verbatim_share=sums["verbatim"] / verbatim_values if verbatim_values else None,
        lost_share=sums["lost"] / nonzero if nonzero else None,
        bits=8 * sums["nbytes"] / num_values,
    )
