"""SignalSums: sums over each table's values in one step, for the guard.

In the step before a probe it looks at rows and gradients before they are coded. It codes them once
more into its own memory, as the debugger does, and adds up. In other steps it does nothing.

Knows: collectives of rows, tallies. Does not know: ladders, decisions, how ranks agree.
Shapes: K tables and directions, F fields.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import log10, sqrt
from typing import cast

import torch
from torch import Tensor

from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.rows.doors import Call, Observer
from trec_qcomm.config.tables import Direction
from trec_qcomm.lab.debug.coding import code, pack
from trec_qcomm.lab.debug.tally import Tally
from trec_qcomm.lab.guard.rule import GuardRule
from trec_qcomm.lab.guard.tables import Key, Signals

FIELDS = ("values", "nan", "inf", "broken", "unusable", "xx", "ee", "zeros", "lost", "nbytes")


class SignalSums(Observer):
    """Sums over the values of guarded tables on this rank.

    Args: rule: settings of the guard.
    Attributes:
        is_armed: whether the next training step is looked at.
        guarded_step: number of steps that the guard has counted, or need not count. None: all steps
            before the next one.
    """

    def __init__(self, rule: GuardRule) -> None:
        self._rule = rule
        self.is_armed = False
        self.guarded_step: int | None = 0
        self._tallies: dict[Key, Tally] = {}
        self._nbytes: Counter[Key] = Counter()

    def before_encoding(self, call: Call, values: Tensor, placed: PlacedFrames) -> None:
        """Add up rows to send, in a step that is looked at."""
        if not self.is_armed or not call.is_training:
            return
        names = [table if self._rule.matches(table) else None for table in placed.plan.tables]
        for rows in pack(values, placed, seed=call.seed, tolerances=call.tolerances, names=names):
            y, nbytes = code(rows, rows.codec, rows.tolerances)
            for name, segments, part in rows.blocks():
                key = (name, cast(Direction, call.direction))
                self._tallies.setdefault(key, Tally()).add(rows.x[part], y[part])
                self._nbytes[key] += int(nbytes[segments].sum())

    def take(self, keys: Sequence[Key]) -> Tensor:
        """Return [K, F] float64 on the CPU, the sums so far, and begin anew. Waits for a GPU."""
        rows = torch.zeros(len(keys), len(FIELDS), dtype=torch.float64)
        for row, key in zip(rows, keys, strict=True):
            if key in self._tallies:
                sums = self._tallies[key].sums() | {"nbytes": self._nbytes[key]}
                row[:] = torch.tensor([sums[name] for name in FIELDS], dtype=torch.float64)
        self.reset()
        return rows

    def reset(self) -> None:
        """Begin anew."""
        self._tallies.clear()
        self._nbytes.clear()


def signals_of(keys: Sequence[Key], sums: Tensor) -> dict[Key, Signals]:
    """Return the figures of tables that were looked at.

    Args: sums: [K, F] float64, of all ranks together.
    """
    rows = zip(keys, sums.tolist(), strict=True)
    return {key: _signals(dict(zip(FIELDS, row, strict=True))) for key, row in rows if any(row)}


def _signals(sums: Mapping[str, float]) -> Signals:
    num_values, squares, noise = sums["values"], sums["xx"], sums["ee"]
    usable = num_values - sums["unusable"]
    nonzero = usable - sums["zeros"]
    return Signals(
        num_nan=int(sums["nan"]),
        num_inf=int(sums["inf"]),
        num_broken=int(sums["broken"]),
        num_values=int(num_values),
        snr_db=10 * log10(squares / noise) if squares > 0 and noise > 0 else None,
        rms=sqrt(squares / usable) if usable else None,
        lost_share=sums["lost"] / nonzero if nonzero else None,
        bits=8 * sums["nbytes"] / num_values,
    )
