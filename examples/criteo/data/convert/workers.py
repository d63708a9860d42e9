"""Processes that share the jobs, and a line that says how far they are.

Knows: processes, progress. Does not know: what the jobs are.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for
from typing import Any

from tqdm import tqdm

Function = Callable[..., Any]
_POLL_S = 0.5


class Workers:
    """Some processes, or this one alone. Args: num: how many.  show: whether to show progress."""

    def __init__(self, num: int, *, show: bool) -> None:
        self.show = show
        self._pool: ProcessPoolExecutor | None = None
        if num > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(num, context, initializer=_end_with_parent)

    def run(
        self,
        what: str,
        function: Function,
        jobs: Iterable[tuple[Any, ...]],
        *,
        total: float,
        done: Callable[[], float],
        unit: str,
    ) -> None:
        """Call a function for all jobs.

        Args:
            what: a word for the progress line.
            total, done: how much there is to do, and how much of it is done.
            unit: name of what is counted.
        Raises: what a job raises; the others are not begun then.
        """
        options = {"unit": unit, "unit_scale": True, "disable": not self.show}
        with tqdm(total=total, initial=done(), desc=what, **options) as bar:
            for _ in self._each(function, jobs):
                bar.update(done() - bar.n)

    def close(self) -> None:
        """End the processes, after the jobs that they have begun."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _each(self, function: Function, jobs: Iterable[tuple[Any, ...]]) -> Iterator[None]:
        """Yield now and then until all jobs are done."""
        if self._pool is None:
            for job in jobs:
                function(*job)
                yield
            return
        pending = {self._pool.submit(function, *job) for job in jobs}
        try:
            while pending:
                ended, pending = wait(pending, _POLL_S, FIRST_COMPLETED)
                for future in ended:
                    future.result()
                yield
        finally:
            for future in pending:
                future.cancel()


@contextmanager
def workers(num: int, *, show: bool) -> Iterator[Workers]:
    """Start processes for a while."""
    made = Workers(num, show=show)
    try:
        yield made
    finally:
        made.close()


def _end_with_parent() -> None:
    """Let this process end when the one that started it is gone, even by a SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
