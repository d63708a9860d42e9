"""Measurement: the figures of all tables of an exchange in one step, with their codecs and shadows.

Knows: packed rows, codecs, tallies. Does not know: process groups, records, when to measure.
Shapes: S segments, R rows of D values.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.errors import UnencodableError
from trec_qcomm.lab.debug.coding import CodedRows, PackedRows, code
from trec_qcomm.lab.debug.tally import Figures, Tally, segment_squares


class Key(NamedTuple):
    """What figures are of: a table or parameter, and a codec."""

    name: str
    codec: str
    is_shadow: bool


@dataclass
class _Entry:
    tally: Tally = field(default_factory=Tally)
    nbytes: int = 0
    tolerance: float | None = None

    def figures(self) -> Figures:
        if self.tally.is_empty:
            return {}
        figures = self.tally.figures()
        bits = 8 * self.nbytes / figures["num_values"]
        return figures | {"tolerance": self.tolerance, "bits": bits}


class Measurement:
    """Figures of the rows that were added, by table or parameter and codec.

    Args: shadows: codecs to try, besides the one that the rows are sent with.
    """

    def __init__(self, shadows: Sequence[Codec] = ()) -> None:
        self._shadows = shadows
        self._entries: dict[Key, _Entry] = {}
        self._squares: dict[str, Tensor] = {}  # [P] float64, of what goes to each rank

    def add(self, rows: PackedRows, num_frames: int, *, with_shadows: bool = True) -> None:
        """Measure rows.

        Rows that their codec refuses are left out: it will say so when it encodes them for good.

        Args: num_frames: P.  with_shadows: whether to try the shadows, too.
        """
        try:
            coded = code(rows, rows.codec, rows.tolerances)
        except UnencodableError:
            return
        configured = [None if math.isnan(t) else t for t in rows.configured.tolist()]
        self._add(rows, rows.codec, coded, configured, is_shadow=False)
        squares = segment_squares(coded.y, rows.segments)
        for name, segments, _ in rows.blocks():
            sums = self._squares.setdefault(name, torch.zeros(num_frames, dtype=torch.float64))
            sums.index_add_(0, rows.frame[segments], squares[segments])
        for shadow in self._shadows if with_shadows else ():
            tolerances = rows.tolerances_of(shadow)
            configured = [shadow.tolerance] * len(rows.names)
            try:
                tried = code(rows, shadow, tolerances)
                self._add(rows, shadow, tried, configured, is_shadow=True)
            except UnencodableError:
                for name in rows.names:
                    self._entries.setdefault(Key(name, repr(shadow), True), _Entry())

    def _add(
        self,
        rows: PackedRows,
        codec: Codec,
        coded: CodedRows,
        tolerances: Sequence[float | None],
        *,
        is_shadow: bool,
    ) -> None:
        nbytes = coded.encoded.nbytes
        for name, segments, part in rows.blocks():
            entry = self._entries.setdefault(Key(name, repr(codec), is_shadow), _Entry())
            entry.tally.add(rows.x[part], coded.y[part])
            entry.tolerance = tolerances[segments.start]
            entry.nbytes += int(nbytes[segments].sum())

    def figures(self) -> Iterator[tuple[Key, Figures]]:
        """Yield the figures of each table and codec; none where a shadow refuses the values."""
        for key, entry in self._entries.items():
            yield key, entry.figures()

    @property
    def sent_squares(self) -> dict[str, list[float]]:
        """Sum of squares of what each frame of each table decodes to."""
        return {name: squares.tolist() for name, squares in self._squares.items()}


def received_squares(
    values: Tensor, placed: PlacedFrames, names: Sequence[str | None]
) -> dict[str, list[float]]:
    """Return by table the sum of squares of what came in each of P frames.

    Args:
        values: float32, contiguous, the decoded rows.
        placed: places of these rows.
        names: S names of tables; None leaves a segment out.
    """
    plan = placed.plan
    squares: dict[str, list[float]] = {}
    for group in placed.groups:
        sums = segment_squares(values, group.segments).tolist()
        for member, total in zip(group.members.tolist(), sums, strict=True):
            if (name := names[member]) is not None:
                by_frame = squares.setdefault(name, [0.0] * len(plan.segments_per_frame))
                by_frame[int(plan.frame[member])] += total
    return squares
