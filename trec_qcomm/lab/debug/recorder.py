"""Recorder: makes records of figures, keeps the latest and appends all to a file.

Knows: records, running means, what measuring costs. Does not know: collectives, values.
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, time
from typing import Any, NamedTuple

import torch.distributed as dist

from trec_qcomm.lab import records
from trec_qcomm.lab.debug.drift import RunningMeans
from trec_qcomm.lab.debug.tally import Figures
from trec_qcomm.lab.records import DebugRecord, Direction, Scalar

KEPT_RECORDS = 20_000  # 30 MB or less, if lists are short


class Cost(NamedTuple):
    """Time that measuring took.

    Args:
        measured_s: seconds of the measurements, in whichever thread.
        elapsed_s: seconds from the begin of the first one to the end of the last.
        num_steps: number of measured steps.
        num_steps_passed: number of steps from the first measured one to the last, both included.
    """

    measured_s: float
    elapsed_s: float
    num_steps: int
    num_steps_passed: int

    @property
    def share(self) -> float:
        """Share of the time from measured step to measured step that measuring took."""
        return self.measured_s / self.elapsed_s if self.elapsed_s else 0.0


class Recorder:
    """Records of one rank. Several threads may add to it.

    Args:
        configuration: name of the configuration, for the records.
        folder: folder of the file; None keeps records in memory alone.
        setup: all that must be equal for two runs to be compared, for the records.
        seed: the config's seed.
    """

    def __init__(
        self,
        *,
        configuration: str,
        folder: str | Path | None,
        setup: Mapping[str, Scalar],
        seed: int,
    ) -> None:
        self.latest: deque[DebugRecord] = deque(maxlen=KEPT_RECORDS)
        self._shared: dict[str, Any] = {
            "configuration": configuration, "setup": dict(setup), "seed": seed,
        }  # fmt: skip
        self._folder = None if folder is None else Path(folder)
        self._lock = threading.Lock()
        self._means = RunningMeans()
        self._measured_s, self._steps = 0.0, set[int]()
        self._begin: float | None = None
        self._end = 0.0

    @contextmanager
    def timed(self, step: int) -> Iterator[None]:
        """Count the time of this block as the cost of measuring a step."""
        begin = perf_counter()
        try:
            yield
        finally:
            end = perf_counter()
            with self._lock:
                self._begin = begin if self._begin is None else self._begin
                self._end = end
                self._measured_s += end - begin
                self._steps.add(step)

    def cost(self) -> Cost:
        """Return what measuring took so far."""
        with self._lock:
            elapsed = 0.0 if self._begin is None else self._end - self._begin
            passed = max(self._steps) - min(self._steps) + 1 if self._steps else 0
            return Cost(self._measured_s, elapsed, len(self._steps), passed)

    def record(
        self,
        step: int,
        name: str,
        direction: Direction,
        codec: str,
        figures: Figures,
        **fields: Any,
    ) -> DebugRecord:
        """Return the record of one table or parameter, with its drift unless it is a shadow's."""
        if figures and not fields.get("is_shadow"):
            key = (name, direction, fields.get("site"), fields.get("module"), codec)
            with self._lock:
                figures = figures | self._means.drifts(key, figures)
        return DebugRecord(
            rank=dist.get_rank(),
            step=step,
            name=name,
            direction=direction,
            codec=codec,
            time=time(),
            **self._shared,
            **figures,
            **fields,
        )

    def add(self, added: Sequence[DebugRecord]) -> None:
        """Keep records and write them to the file."""
        with self._lock:
            self.latest.extend(added)
            if self._folder is not None and added:
                records.append(self._folder / f"debug-rank{dist.get_rank()}.jsonl", *added)
