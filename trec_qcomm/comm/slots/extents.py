"""Extents: what both ends know of the size of frames before these are encoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from trec_qcomm.comm.frames.plan import FramePlan, PlacedFrames
from trec_qcomm.wire import frame


@dataclass(frozen=True, eq=False)
class Extents:
    """Bounds of the sizes of P frames, [P] numpy vectors each.

    Args:
        overheads: bytes of header and segment table; 0 for an empty frame.
        raw: bytes of the rows as float32.
        largest: bytes that the frame has at most.
        fixed: whether it has just as many, as all codecs of its segments are of fixed size.
    """

    overheads: Any
    raw: Any
    largest: Any
    fixed: Any

    @classmethod
    def from_placed(cls, placed: PlacedFrames) -> "Extents":
        """Return the extents of all frames of a batch."""
        overheads, bounds, fixed = _of_plan(placed.plan)
        ends = np.zeros(len(placed.raw_nbytes) + 1, np.int64)
        placed.raw_nbytes.numpy().cumsum(out=ends[1:])
        largest = np.asarray(placed.frame_nbytes, np.int64)
        return cls(overheads, np.diff(ends[bounds]), largest, fixed)

    @classmethod
    def from_frames(cls, frames: Sequence[tuple[PlacedFrames, int]]) -> "Extents":
        """Return the extents of single frames, each by its batch and its number there."""
        parts = [(cls.from_placed(placed), number) for placed, number in frames]
        return cls(
            np.asarray([part.overheads[n] for part, n in parts], np.int64),
            np.asarray([part.raw[n] for part, n in parts], np.int64),
            np.asarray([part.largest[n] for part, n in parts], np.int64),
            np.asarray([part.fixed[n] for part, n in parts], np.bool_),
        )


@lru_cache(64)
def _of_plan(plan: FramePlan) -> tuple[Any, Any, Any]:
    """Return overheads [P], numbers of segments before each frame [P + 1], and `fixed` [P]."""
    counts = plan.segments_per_frame
    overheads = [frame.overhead_nbytes(count) for count in counts]
    fixed = np.ones(len(counts), np.bool_)
    for codec, _, members in plan.groups:
        fixed[plan.frame[members].numpy()] &= codec.fixed_size
    bounds = [0, *accumulate(counts)]
    return np.asarray(overheads, np.int64), np.asarray(bounds, np.int64), fixed
