"""Measurement: the figures of all tables of an exchange in one step, with their codecs and shadows.

Knows: packed rows, codecs, tallies. Does not know: process groups, records, when to measure.
Shapes: S segments, R rows of D values.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from trec_qcomm.core.codec import Codec
from trec_qcomm.core.errors import UnencodableError
from trec_qcomm.lab.debug.coding import PackedRows, code
from trec_qcomm.lab.debug.tally import Figures, Tally


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

    def add(self, rows: PackedRows, *, with_shadows: bool = True) -> None:
        """Measure rows.

        Rows that their codec refuses are left out: it will say so when it encodes them for good.

        Args: with_shadows: whether to try the shadows, too.
        """
        configured = [None if math.isnan(t) else t for t in rows.configured.tolist()]
        try:
            self._add(rows, rows.codec, rows.tolerances, configured, is_shadow=False)
        except UnencodableError:
            return
        for shadow in self._shadows if with_shadows else ():
            configured = [shadow.tolerance] * len(rows.names)
            try:
                self._add(rows, shadow, rows.tolerances_of(shadow), configured, is_shadow=True)
            except UnencodableError:
                for name in rows.names:
                    self._entries.setdefault(Key(name, repr(shadow), True), _Entry())

    def _add(
        self,
        rows: PackedRows,
        codec: Codec,
        tolerances: Tensor | None,
        configured: Sequence[float | None],
        *,
        is_shadow: bool,
    ) -> None:
        coded = code(rows, codec, tolerances)
        for name, segments, part in rows.blocks():
            entry = self._entries.setdefault(Key(name, repr(codec), is_shadow), _Entry())
            entry.tally.add(rows.x[part], coded.y[part])
            entry.tolerance = configured[segments.start]
            entry.nbytes += int(coded.encoded.nbytes[segments].sum())

    def figures(self) -> Iterator[tuple[Key, Figures]]:
        """Yield the figures of each table and codec; none where a shadow refuses the values."""
        for key, entry in self._entries.items():
            yield key, entry.figures()
