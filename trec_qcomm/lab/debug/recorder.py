"""Figures of the values of an exchange, with its codec and shadows, and the records made of them.

The running mean of a table's size, which its drift is told from, is of logarithms and begins anew
in a resumed run: it is no part of its state.

Knows: packed rows, codecs, tallies, records. Does not know: collectives, when to measure.
"""

import math
import threading
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, time
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from trec_qcomm.config import Config
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.errors import UnencodableError
from trec_qcomm.lab import records
from trec_qcomm.lab.debug.coding import PackedRows, code
from trec_qcomm.lab.debug.tally import Figures, Tally
from trec_qcomm.lab.records import DebugRecord, Direction

KEPT_RECORDS = 20_000  # 30 MB or less, if lists are short
_LEAST_WEIGHT = 0.1  # of the newest number in a running mean; the first ones are averaged evenly


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
        y, nbytes = code(rows, codec, tolerances)
        for name, segments, part in rows.blocks():
            entry = self._entries.setdefault(Key(name, repr(codec), is_shadow), _Entry())
            entry.tally.add(rows.x[part], y[part])
            entry.tolerance = configured[segments.start]
            entry.nbytes += int(nbytes[segments].sum())

    def figures(self) -> Iterator[tuple[Key, Figures]]:
        """Yield the figures of each table and codec; none where a shadow refuses the values."""
        for key, entry in self._entries.items():
            yield key, entry.figures()


class Recorder:
    """Records of one rank. Several threads may add to it.

    Args: config: the config, of which records have the name and the seed.  folder: folder of the
        file; None keeps records in memory alone.
    """

    def __init__(self, config: Config, folder: str | None) -> None:
        self.latest: deque[DebugRecord] = deque(maxlen=KEPT_RECORDS)
        self._shared: dict[str, Any] = {"configuration": config.source, "seed": config.seed}
        self._folder = None if folder is None else Path(folder)
        self._lock = threading.Lock()
        self._means: dict[Hashable, tuple[int, float]] = {}  # numbers so far, and their mean
        self._measured_s, self._begin, self._end = 0.0, math.inf, 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time of this block as the cost of measuring."""
        begin = perf_counter()
        try:
            yield
        finally:
            end = perf_counter()
            with self._lock:
                self._begin, self._end = min(self._begin, begin), end
                self._measured_s += end - begin

    def cost(self) -> tuple[float, float]:
        """Return the seconds of all measurements, and those from the first one to the last."""
        with self._lock:
            return self._measured_s, max(self._end - self._begin, 0.0)

    def records(
        self, measurement: Measurement, step: int, direction: Direction, **fields: Any
    ) -> list[DebugRecord]:
        """Return a record for each table or parameter and codec. Args: fields: the same of all"""
        return [
            self.record(
                step, key.name, direction, key.codec, figures, is_shadow=key.is_shadow, **fields
            )
            for key, figures in measurement.figures()
        ]

    def record(
        self, step: int, name: str, direction: Direction, codec: str, figures: Figures,
        **fields: Any,
    ) -> DebugRecord:  # fmt: skip
        """Return the record of one table or parameter, with its drift unless it is a shadow's."""
        if figures and not fields.get("is_shadow"):
            key = (name, direction, fields.get("site"), fields.get("module"), codec)
            figures = figures | {"rms_drift": self._drift(key, figures["rms"] or 0.0)}
        return DebugRecord(
            rank=dist.get_rank(), step=step, name=name, direction=direction, codec=codec,
            time=time(), **self._shared, **figures, **fields,
        )  # fmt: skip

    def _drift(self, key: Hashable, number: float) -> float | None:
        """Return log2 of a number over its running mean, and add it; 0 has no logarithm."""
        if number <= 0:
            return None
        with self._lock:
            count, mean = self._means.get(key, (0, 0.0))
            drift = math.log2(number) - mean
            self._means[key] = count + 1, mean + drift * max(1 / (count + 1), _LEAST_WEIGHT)
        return drift if count else None

    def add(self, added: Sequence[DebugRecord]) -> None:
        """Keep records and write them to the file."""
        with self._lock:
            self.latest.extend(added)
            if self._folder is not None and added:
                records.append(self._folder / f"debug-rank{dist.get_rank()}.jsonl", *added)
