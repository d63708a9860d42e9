"""Compressors at work in several threads: checked, and timed in turn with all others.

Each thread has its own compressor on its own tables (workload.deal), and all begin together; what
counts is the thread that takes longest. With one thread there is none but the main one. The codecs
themselves use no threads. As a call may take less than starting threads does, each thread makes
several calls in a row, enough for LEAST_S in all.

The time of a thread is wall time less what it spent ready to run, waiting for a core that something
else had (SCHEDSTAT, of Linux): other work on the machine is left out, waiting for the GIL is not.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from examples.bench.codecs.compressors import Compressor
from examples.bench.codecs.entries import CompressorEntry, error_over_bound
from examples.bench.codecs.workload import TableGroup

CALLS = ("encode", "decode")
SCHEDSTAT = Path("/proc/thread-self/schedstat")  # ns on a core, ns waiting for one, slices
LEAST_S, MOST_CALLS = 5e-3, 1000
STARTED_S = 60.0  # until all threads have begun


class Workers:
    """Compressors of one entry, one a thread, that work at the same time."""

    def __init__(self, members: Sequence[Compressor], pool: ThreadPoolExecutor) -> None:
        self.members, self.pool = members, pool

    def seconds(self, call: str, times: int = 1) -> float:
        """Return the time of one call of all members, the mean of so many in a row."""
        if len(self.members) == 1:
            return _repeat(self.members[0], call, times)
        together = threading.Barrier(len(self.members))

        def work(member: Compressor) -> float:
            together.wait(timeout=STARTED_S)
            return _repeat(member, call, times)

        return max(self.pool.map(work, self.members))

    @property
    def nbytes(self) -> int:
        return sum(member.nbytes() for member in self.members)


def _repeat(member: Compressor, call: str, times: int) -> float:
    begin = time.perf_counter()  # before `waited`, so that all that is taken off has been counted
    waited = waited_s()
    for _ in range(times):
        getattr(member, call)()
    waited = waited_s() - waited
    return (time.perf_counter() - begin - waited) / times


def waited_s() -> float:
    """Return how long this thread has waited for a core so far; 0 where nothing tells."""
    return int(SCHEDSTAT.read_text().split()[1]) / 1e9 if SCHEDSTAT.exists() else 0.0


@contextmanager
def threads(number: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool in whose threads torch starts no others."""
    with ThreadPoolExecutor(number, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool


def round_trip(
    entry: CompressorEntry, groups: Sequence[TableGroup], pool: ThreadPoolExecutor
) -> Workers:
    """Return workers that have encoded and decoded once, all at the same time."""
    workers = Workers([entry.make(group) for group in groups], pool)
    for member in workers.members:
        member.out[:] = np.nan  # so that what is not written is seen
    for call in CALLS:
        workers.seconds(call)
    return workers


def decoded(workers: Workers, groups: Sequence[TableGroup]) -> list[Tensor]:
    """Return [R, D] of each group. Raises ValueError: another number or type of values."""
    rows = []
    for member, group in zip(workers.members, groups, strict=True):
        if member.out.dtype != np.float32 or member.out.size != group.rows.numel():
            raise ValueError(
                f"{member.out.size} {member.out.dtype} for {group.rows.numel()} values"
            )
        rows.append(torch.tensor(member.out).view_as(group.rows))
    return rows


def mistake(entry: CompressorEntry, workers: Workers, groups: Sequence[TableGroup]) -> str | None:
    """Return what is wrong with the decoded rows, or with NaN where the entry keeps them."""
    try:
        for group, rows in zip(groups, decoded(workers, groups), strict=True):
            reason = entry.mistake(group, rows)
            if reason is not None:
                return reason
        return _lost_nan(entry, groups, workers.pool) if entry.keeps_nan else None
    except ValueError as error:
        return str(error)


def _lost_nan(
    entry: CompressorEntry, groups: Sequence[TableGroup], pool: ThreadPoolExecutor
) -> str | None:
    """Return what is wrong with a round trip of a NaN at the start of every table."""
    poisoned = [replace(group, rows=group.rows.clone()) for group in groups]
    for group in poisoned:
        group.rows[group.segments.offsets[:-1], 0] = math.nan
    workers = round_trip(entry, poisoned, pool)
    for group, rows in zip(poisoned, decoded(workers, poisoned), strict=True):
        if not bool(rows.isnan()[group.rows.isnan()].all()):
            return "NaN is lost"
    return None


def errors(
    entry: CompressorEntry, workers: Workers, groups: Sequence[TableGroup]
) -> tuple[float, float | None]:
    """Return the largest |x - decoded|, and the worst error over its table's bound.

    The second is None where the bound is no fraction of the range.
    """
    largest, worst = 0.0, None
    for group, rows in zip(groups, decoded(workers, groups), strict=True):
        largest = max(largest, float((group.rows.double() - rows.double()).abs().max()))
        if entry.bound:
            worst = max(worst or 0.0, error_over_bound(entry.bound, group, rows))
    return largest, worst


def in_turn(
    workers_by_name: Mapping[str, Workers], num_repeats: int, label: str
) -> dict[tuple[str, str], list[float]]:
    """Return (name, call) -> seconds of each repeat.

    All take turns in every repeat, so that drift hits all alike.

    Args:
        workers_by_name: what to time.
        num_repeats: number of repeats.
        label: text of the progress on stderr.
    """
    times = {
        (name, call): min(MOST_CALLS, math.ceil(LEAST_S / workers.seconds(call)))
        for name, workers in workers_by_name.items()
        for call in CALLS
    }
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in times}
    for _ in tqdm(range(num_repeats), desc=label, unit="repeat"):
        for name, call in times:
            seconds[name, call].append(workers_by_name[name].seconds(call, times[name, call]))
    return seconds
