"""HeldBounds: error bounds of one sender that may not widen at once.

With mode `rel` the bound of a table is a share of the range of the rows that are sent. So one row
that grows a thousandfold costs all other rows their values, from the step in which it is sent. A
guard would see that at its next probe, when the model has trained on it. Until then a bound that
would be more than `hold` times as wide as before the last probe stays as it was then. Such a step
sends more bytes, which the frames tell their receivers; nobody has to agree on it.

Knows: rows on the CPU, their ranges. Does not know: rungs, the guard's decisions, TorchRec.
Shapes: T tables of one collective.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.codecs import ErrorBounded
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.core.codec import Codec
from trec_qcomm.ops.error_bound.ranges import segment_ranges

NoteHeld = Callable[[str, float], None]


def can_hold(codec: Codec) -> bool:
    """Return whether a codec's bound follows the range of the rows."""
    return isinstance(codec, ErrorBounded) and codec.mode == "rel"


class HeldBounds:
    """Ranges of the tables of one collective on this rank, and shares of their bounds.

    Args:
        tables: T names, in the collective's order.
        hold: how many times as wide as before the last probe a bound may get by itself.
        note: what is told of a table whose bound is held in a step, and of how many bits a value
            that takes more.
    """

    def __init__(self, tables: Sequence[str], hold: float, note: NoteHeld) -> None:
        self._tables, self._hold, self._note = list(tables), hold, note
        self._before = np.full(len(tables), np.nan)  # range before the last probe; NaN: unknown
        self._largest = np.zeros(len(tables))  # range since then, where none was held
        self._shares = np.ones(len(tables))

    def observe(self, values: Tensor, placed: PlacedFrames) -> None:
        """Look at the rows of a training step before they are encoded."""
        ranges = np.zeros(len(self._tables))
        for group in placed.groups:
            if can_hold(group.codec):
                numbers = group.of_members(placed.plan.table).numpy()
                np.maximum.at(ranges, numbers, segment_ranges(values, group.segments).numpy())
        is_held = ranges > self._hold * self._before  # which no number is where it is NaN
        self._largest = np.where(is_held, self._largest, np.maximum(self._largest, ranges))
        self._shares = np.divide(
            self._before, ranges, where=is_held, out=np.ones(len(self._tables))
        )
        for t in is_held.nonzero()[0]:
            self._note(self._tables[t], -float(np.log2(self._shares[t])))

    def shares(self) -> dict[str, float]:
        """Return what the bounds of tables are multiplied by in this step; 1 where none is held."""
        return dict(zip(self._tables, self._shares.tolist(), strict=True))

    def follow(self, moved: Sequence[str]) -> None:
        """Let bounds follow the ranges since the last probe.

        Args: moved: tables that begin anew.
        """
        is_known = self._largest > 0
        self._before = np.where(is_known, self._largest, self._before)
        anew = [self._tables.index(table) for table in moved if table in self._tables]
        self._before[anew] = np.nan
        self._largest[:] = 0

    def state_dict(self) -> dict[str, Tensor]:
        """Return [3] float64 by table."""
        numbers = torch.from_numpy(np.stack([self._before, self._largest, self._shares], 1))
        return dict(zip(self._tables, numbers.unbind(), strict=True))

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict`, which may lack tables."""
        for t, table in enumerate(self._tables):
            if table in state:
                numbers = state[table].tolist()
                self._before[t], self._largest[t], self._shares[t] = numbers
