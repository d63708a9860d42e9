"""Batches that a thread reads ahead of the training, and how long the training waited for them.

Knows: batches by index, threads, pinned memory. Does not know: files, rows, models, ranks.
The thread takes one batch after another and keeps up to `ahead` of them ready. Reading maps and
copies arrays, during which other threads run, so a step that takes longer than reading a batch
does not wait. Nothing of a batch depends on the thread: batches are those that an index gives.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType

import torch
from torchrec.datasets.utils import Batch

CLOSE_S = 1.0  # at most so long does close() wait for a batch that is being read


class BatchReader:
    """The batches of steps `first` to `last` - 1, in order, read ahead by a thread.

    Step i takes batch i modulo the number of batches: epochs follow one another in the same order.
    So a resumed run starts where it stopped, and reads nothing before that.

    Args:
        batches: the batches of one epoch of this rank.
        first, last: the first step, and the one after the last.
        ahead: number of batches that are kept ready.
        pin: whether to put them into pinned memory, so that copies to a GPU are asynchronous.
    Raises: ValueError: there are no batches for the steps, or an argument is out of range. An error
        of the thread is raised by `__next__`, after the batches before it.
    """

    def __init__(
        self, batches: Sequence[Batch], first: int, last: int, ahead: int = 2, pin: bool = False
    ) -> None:
        if first < 0 or last < first:
            raise ValueError(f"first {first}, last {last}: expected 0 <= first <= last")
        if ahead < 1:
            raise ValueError(f"ahead {ahead}: must be positive")
        if last > first and not len(batches):
            raise ValueError(f"batches: none, and steps {first} to {last} need some")
        if pin and not torch.cuda.is_available():
            raise ValueError("pin: there is no CUDA device to pin memory for")
        self.waited_s = 0.0  # seconds that __next__ has waited for the thread, in all
        self.num_read = 0  # batches that __next__ has returned
        self._batches, self._last, self._ahead, self._pin = batches, last, ahead, pin
        self._next = first  # step of the batch that __next__ returns
        self._ready: deque[Batch] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._device = torch.cuda.current_device() if pin else None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(first,), daemon=True)
        self._thread.start()

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> BatchReader:
        return self

    def __next__(self) -> Batch:
        if self._next >= self._last:
            raise StopIteration
        with self._changed:
            if not self._ready:
                begin = time.perf_counter()
                self._changed.wait_for(lambda: self._ready or self._error or self._closed)
                self.waited_s += time.perf_counter() - begin
            if self._closed:
                raise ValueError("the reader is closed")
            if not self._ready:
                assert self._error is not None
                raise self._error
            batch = self._ready.popleft()
            self._changed.notify_all()
        self._next += 1
        self.num_read += 1
        return batch

    def close(self) -> None:
        """Stop the thread, within a second, and drop what it has read."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join(CLOSE_S)

    def _run(self, first: int) -> None:
        """Read the batches of all steps, as room for them gets free."""
        try:
            if self._device is not None:
                torch.cuda.set_device(self._device)  # else this thread would be one of device 0
            for step in range(first, self._last):
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or len(self._ready) < self._ahead)
                    if self._closed:
                        return
                self._put(self._batches[step % len(self._batches)])
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _put(self, batch: Batch) -> None:
        if self._pin:
            batch = batch.pin_memory()
        with self._changed:
            if not self._closed:
                self._ready.append(batch)
                self._changed.notify_all()
