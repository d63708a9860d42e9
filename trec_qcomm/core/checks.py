"""What kernels find wrong in bytes on a GPU, and when it is raised.

A kernel notes the first bad segment in memory of the device. By default the op waits for it and
raises at once. Within `deferring()`, where nothing may wait, it is raised by `Checks.raise_found`,
which the caller calls until nothing is pending. What was found stays: what was made with bad bytes
is no better later.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.transfer import Download

ErrorOf = Callable[[int], CorruptFrameError]
Explain = Callable[[CorruptFrameError], CorruptFrameError]

_of_thread = threading.local()


class Checks:
    """Results on their way from the device, in order. Not for several threads at once."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Download, ErrorOf]] = deque()
        self._found: Callable[[], CorruptFrameError] | None = None

    def add(self, first: Tensor, error: ErrorOf) -> None:
        """Args: first: [1] int32, which the current stream writes.  error: of its value."""
        if self._found is None:
            self._pending.append((Download(first), error))

    def raise_found(self, *, wait: bool = False) -> None:
        """Raise the first error among results that are there, or, with `wait`, among all; and the
        same one from then on."""
        while self._found is None and self._pending and (wait or self._pending[0][0].is_here()):
            coming, error = self._pending.popleft()
            first = int(coming.wait())
            if first >= 0:
                self._found = partial(error, first)
                self._pending.clear()
        if self._found is not None:
            raise self._found()  # a new one: a traceback holds the tensors of its frames


@contextmanager
def deferring(checks: Checks) -> Iterator[None]:
    """Collect in `checks` what this thread's ops find from here on."""
    before = getattr(_of_thread, "checks", None)
    _of_thread.checks = checks
    try:
        yield
    finally:
        _of_thread.checks = before


@contextmanager
def explaining(explain: Explain) -> Iterator[None]:
    """Have a CorruptFrameError of what runs within, now or deferred, pass through `explain`, which
    knows the names that go with its segment."""
    before = getattr(_of_thread, "explain", None)
    _of_thread.explain = explain
    try:
        yield
    except CorruptFrameError as error:
        raise explain(error) from error
    finally:
        _of_thread.explain = before


def raise_first(first: Any, reason: str | ErrorOf) -> None:
    """For whoever reads bytes.

    Args:   first: number of the first segment that is bad, or -1: an int, or [1] int32 on the
            device.  reason: what is wrong with it, or the error for this number.
    Raises: CorruptFrameError: now, or as `deferring` says.
    """
    error = _error_of(reason) if isinstance(reason, str) else reason
    checks: Checks | None = getattr(_of_thread, "checks", None)
    if checks is not None and isinstance(first, Tensor):
        explain: Explain | None = getattr(_of_thread, "explain", None)
        checks.add(first, error if explain is None else lambda n: explain(error(n)))
    elif int(first) >= 0:
        raise error(int(first))


def _error_of(reason: str) -> ErrorOf:
    return lambda segment: CorruptFrameError(reason, segment=segment)
