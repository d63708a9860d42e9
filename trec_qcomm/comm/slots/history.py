"""SlotHistory: how large the next frames will be, as both of their ends have seen the last ones.

A slot must have its capacity before its frame is encoded. Sender and receiver find it alike, from
the sizes of the last frames between them and the rows of the next ones, which both know. Sizes are
counted as bytes for each byte of float32 rows. The capacity is the largest one that would have left
empty at most `padding` of the bytes of the last `window` frames. So where frames are alike, it is
above the largest of them; where they differ by factors, as with a fixed threshold, it is near the
smallest, and the rest of a frame is a message more, as bytes are what slots are to save.
Nothing but bytes and messages depends on it. So it is no part of a checkpoint, and begins
empty with the object, on all ranks. Then a slot has room for a frame's header and segment table,
and all payload is overflow.

An exchange counts when it ends, for what it sent and what it received alike: all ranks must begin
and end their exchanges in the same order, as their process group demands anyway.

Knows: sizes of frames. Does not know: codecs, process groups, directions.
Shapes: P frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trec_qcomm.comm.slots.extents import Extents
from trec_qcomm.wire import slot

_ONE = 1 << 20  # 1.0 of a share, as all numbers are integers, equal on all machines


@dataclass(frozen=True, kw_only=True)
class SlotOptions:
    """Settings of slots.

    Args:
        window: number of frames that the next one is expected to be like; with 0 every frame is
            one without history.
        padding: bytes that may have been left empty by all of them, as a fraction of their bytes.
    """

    window: int = 8
    padding: float = 0.05


class SlotHistory:
    """Sizes of the last frames that go the same way, to the same peers and in the same order."""

    def __init__(self, options: SlotOptions, num_frames: int) -> None:
        self._padding = round(options.padding * _ONE)
        # Bytes of payload for each byte of float32 rows, in units of 1 / _ONE.
        self._shares = np.zeros((options.window, num_frames), np.int64)
        self._num_noted = 0

    def capacities(self, extents: Extents, alignment: int) -> Any:
        """Return [P] numpy int64, the size of each frame's slot; 0 where the frame is empty.

        Args: extents: bounds of the frames' sizes.  alignment: what capacities are a multiple of.
        """
        overheads, raw, largest = extents.overheads, extents.raw, extents.largest
        needed = overheads
        if self._num_noted:
            shares = np.sort(self._shares[: self._num_noted], 0)  # all, once as many were noted
            # The n smallest frames leave n share - (their sum) empty, if the others overflow.
            smallest = shares.cumsum(0)
            empty = smallest[-1] * self._padding // _ONE
            share = ((smallest + empty) // np.arange(1, len(shares) + 1)[:, None]).min(0) + 1
            expected = np.minimum(overheads + raw * share // _ONE, largest)
            needed = np.where(raw > 0, expected, largest)
        needed = np.where(extents.fixed, largest, needed)
        slots = (needed + (slot.HEADER_NBYTES + alignment - 1)) // alignment * alignment
        return np.where(overheads > 0, slots, 0)

    def note(self, extents: Extents, nbytes: Sequence[int]) -> None:
        """Remember the sizes of the frames of one exchange. Args: nbytes: P ints."""
        if not len(self._shares):
            return
        raw, payload = extents.raw, np.asarray(nbytes, np.int64) - extents.overheads
        last = self._shares[(self._num_noted - 1) % len(self._shares)]
        share = np.where(raw > 0, payload * _ONE // np.maximum(raw, 1), last)
        self._shares[self._num_noted % len(self._shares)] = share
        self._num_noted += 1
