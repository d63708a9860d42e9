"""Extents: what both ends know of the size of frames before these are encoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from trec_qcomm.comm.frame_plan import PlacedFrames
from trec_qcomm.wire import frame


@dataclass(frozen=True, eq=False)
class Extents:
    """Bounds of the sizes of P frames, [P] numpy int64 each.

    Args:
        overheads: bytes of header and segment table; 0 for an empty frame.
        raw: bytes of the rows as float32.
        largest: bytes that the frame has at most.
        fixed_size: whether it has just as many.
    """

    overheads: Any
    raw: Any
    largest: Any
    fixed_size: bool = False

    @classmethod
    def from_placed(cls, placed: PlacedFrames) -> "Extents":
        """Return the extents of all frames of a batch."""
        overheads, bounds = _overheads_and_bounds(placed.plan.segments_per_frame)
        ends = np.zeros(len(placed.raw_nbytes) + 1, np.int64)
        placed.raw_nbytes.numpy().cumsum(out=ends[1:])
        largest = np.asarray(placed.frame_nbytes, np.int64)
        return cls(overheads, np.diff(ends[bounds]), largest, placed.fixed_size)

    @classmethod
    def from_frames(cls, frames: Sequence[tuple[PlacedFrames, int]]) -> "Extents":
        """Return the extents of single frames, each by its batch and its number there."""
        parts = [(cls.from_placed(placed), number) for placed, number in frames]
        return cls(
            np.asarray([part.overheads[n] for part, n in parts], np.int64),
            np.asarray([part.raw[n] for part, n in parts], np.int64),
            np.asarray([part.largest[n] for part, n in parts], np.int64),
            all(part.fixed_size for part, _ in parts),
        )


@lru_cache(64)
def _overheads_and_bounds(segments_per_frame: tuple[int, ...]) -> tuple[Any, Any]:
    overheads = [frame.overhead_nbytes(count) for count in segments_per_frame]
    bounds = [0, *accumulate(segments_per_frame)]
    return np.asarray(overheads, np.int64), np.asarray(bounds, np.int64)
