"""Recorder: makes records of figures, keeps the latest and appends all to a file.

The running mean of a table's size, which its drift is told from, is of logarithms and begins anew
in a resumed run: it is no part of its state.

Knows: records, what measuring costs. Does not know: collectives, values.
"""

import math
import threading
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, time
from typing import Any

import torch.distributed as dist

from trec_qcomm.lab import records
from trec_qcomm.lab.debug.tally import Figures
from trec_qcomm.lab.records import DebugRecord, Direction

KEPT_RECORDS = 20_000  # 30 MB or less, if lists are short
_LEAST_WEIGHT = 0.1  # of the newest number in a running mean; the first ones are averaged evenly


class Recorder:
    """Records of one rank. Several threads may add to it.

    Args:
        configuration: name of the configuration, for the records.
        folder: folder of the file; None keeps records in memory alone.
        seed: the config's seed.
    """

    def __init__(self, *, configuration: str, folder: str | None, seed: int) -> None:
        self.latest: deque[DebugRecord] = deque(maxlen=KEPT_RECORDS)
        self._shared: dict[str, Any] = {
            "configuration": configuration, "seed": seed,
        }  # fmt: skip
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
