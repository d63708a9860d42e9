"""Baton: run threads one at a time, so that runs repeat exactly. Only the baton's holder runs.

A thread passes the baton on when it waits for another thread, or ends. The holder itself finds a
thread that can go on, so no thread is woken in vain. If no thread can go on, all of them fail at
once. If one fails, the others end at their next wait.

Knows: threads. Does not know: process groups.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

# Python sees Ctrl-C when its main thread runs; the system may tell another one, and wake none.
_AWAKE_S = 0.5


class Stopped(BaseException):
    """End of a thread because another one has failed; no `except Exception` may stop it."""


class Baton:
    """N threads that run jobs, one at a time; the number of a thread is a rank."""

    def __init__(self, num_ranks: int, on_pass: Callable[[int, int], None]) -> None:
        """Start the threads, which end with `close`.

        Args: on_pass: function that is called, with both numbers, whenever the baton goes from one
            thread to another; `num_ranks` is the number of the thread that calls `run`.
        """
        self._num_ranks, self._on_pass = num_ranks, on_pass
        self._holder = num_ranks
        self._turns = [threading.Semaphore(0) for _ in range(num_ranks + 1)]
        self._jobs: list[Callable[[], Any] | None] = [None] * num_ranks
        self._results: list[Any] = [None] * num_ranks
        # What a thread waits for, by rank: the arguments of `wait`.
        self._waits: dict[int, tuple[Callable[[], bool], Callable[[], str]]] = {}
        self._unfinished: set[int] = set()
        self._failure: tuple[int, BaseException] | None = None
        self._threads = [
            threading.Thread(target=self._work, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(num_ranks)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run one job on each thread, and return their results.

        Raises: the error of the first job that fails, with a note of its rank.
            RuntimeError: all jobs wait, or an earlier run failed.
        """
        self._check_usable()
        self._jobs, self._results = list(jobs), [None] * self._num_ranks
        self._unfinished = set(range(self._num_ranks))
        try:
            self._give(self._num_ranks, 0)
            while not self._turns[self._num_ranks].acquire(timeout=_AWAKE_S):
                pass
        except BaseException as error:  # Ctrl-C, while the jobs run
            self._failure = self._failure or (self._num_ranks, error)
            self._turns[self._num_ranks].acquire()
            raise
        finally:
            results, self._results = self._results, []
        if self._failure is not None:
            rank, failure = self._failure
            failure.add_note(f"raised on rank {rank} of {self._num_ranks} played ranks")
            raise failure
        return results

    def wait(self, is_over: Callable[[], bool], what: Callable[[], str]) -> None:
        """Let other threads run until `is_over()`; called by the thread that holds the baton.

        Args: what: function of words for what is waited for, for errors.
        Raises: RuntimeError: all threads wait, or the caller is none of them.  Stopped.
        """
        if self._failure is None and is_over():
            return
        rank = self._holder
        if rank == self._num_ranks or threading.current_thread() is not self._threads[rank]:
            raise RuntimeError(f"{what()}: waited for outside of the thread of a played rank")
        self._waits[rank] = is_over, what
        following = self._next_after(rank)
        if following is None:
            self._failure = rank, RuntimeError(self._describe_waits())
            following = rank
        if following != rank:
            self._hand_over(rank, following)
        del self._waits[rank]
        if self._failure is not None:
            _, error = self._failure
            raise error if self._failure[0] == rank else Stopped()

    def close(self) -> None:
        """End the threads."""
        for turn, thread in zip(self._turns, self._threads, strict=False):
            if thread.is_alive() and thread is not threading.current_thread():
                turn.release()
                thread.join()

    def _check_usable(self) -> None:
        if self._failure is not None:
            rank, error = self._failure
            raise RuntimeError(
                f"rank {rank} failed in an earlier run ({error!r}), so that ranks may be out of "
                "step; make new ones"
            ) from error

    def _work(self, rank: int) -> None:
        while True:
            self._turns[rank].acquire()
            job, self._jobs[rank] = self._jobs[rank], None
            if job is None:
                return
            try:
                self._results[rank] = job()
            except Stopped:
                pass
            except BaseException as error:
                self._failure = self._failure or (rank, error)
            del job
            self._unfinished.remove(rank)
            following = self._next_after(rank)
            if following is None and self._unfinished:
                self._failure = rank, RuntimeError(self._describe_waits())
                following = min(self._unfinished)
            self._give(rank, self._num_ranks if following is None else following)

    def _next_after(self, rank: int) -> int | None:
        """Return the next thread that can run, the given one last; None if there is none."""
        for number in range(rank + 1, rank + 1 + self._num_ranks):
            candidate = number % self._num_ranks
            if candidate not in self._unfinished:
                continue
            is_over, _ = self._waits.get(candidate, (lambda: True, str))
            if self._failure is not None or is_over():
                return candidate
        return None

    def _hand_over(self, giver: int, taker: int) -> None:
        self._give(giver, taker)
        self._turns[giver].acquire()

    def _give(self, giver: int, taker: int) -> None:
        self._on_pass(giver, taker)
        self._holder = taker
        self._turns[taker].release()

    def _describe_waits(self) -> str:
        waits = [
            f"rank {rank} waits for {what()}" for rank, (_, what) in sorted(self._waits.items())
        ]
        ended = sorted(set(range(self._num_ranks)) - self._unfinished)
        waits += [f"{_ranks(ended)} ended"] if ended else []
        return f"no played rank can go on: {'; '.join(waits)}"


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
