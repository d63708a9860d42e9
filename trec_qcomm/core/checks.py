"""Raise the errors that kernels find in bytes on a GPU, at once or later.

A kernel notes the first bad segment in the device's memory. By default the op waits for the note
and raises at once. Within `deferring()` the host must not wait, and `DeferredChecks.raise_found`
raises the error later. The caller calls it until nothing is pending. Once an error was raised, each
later call raises it again, because values that were decoded from bad bytes stay bad.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.transfer import Download

MakeError = Callable[[int], CorruptFrameError]  # takes the number of the bad segment
Rename = Callable[[CorruptFrameError], CorruptFrameError]

_this_thread = threading.local()


_SHARED_FLAGS = 32  # flags that are fetched by one copy
_COPIES = 64  # for which one launch sets the flags
_APART = 4  # int32 from flag to flag: Triton compiles a kernel anew for pointers not at 16 bytes


class DeferredChecks:
    """Results of checks on their way from the device, in order.

    One thread at a time may use it, with one stream.
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[Download, list[tuple[int, MakeError]]]] = deque()
        self._error: Callable[[], CorruptFrameError] | None = None
        self._unused: list[Tensor] = []  # flags of -1, for one copy each
        self._shared: Tensor | None = None  # the last of `_results`, while it has unused flags
        self._results: list[tuple[Tensor, list[tuple[int, MakeError]]]] = []  # to be fetched
        self._flags: dict[int, tuple[list[tuple[int, MakeError]], int, Tensor]] = {}  # by their ids
        self._num_shared = 0

    def add(self, first: Tensor, error: MakeError) -> None:
        """Add a check whose result is still on the device; `raise_found` reads it later.

        Args:
            first: [1] int32, the number of the first bad segment, which the current stream writes
                before the next `fetch`.
            error: function that makes the error from that number.
        """
        if (shared := self._flags.get(id(first))) is not None:
            errors, place, _ = shared
            errors.append((place, error))
        else:
            self._results.append((first, [(0, error)]))
            self._shared = None  # so that errors stay in order

    def new_flag(self, device: torch.device) -> Tensor:
        """Return [1] int32 of -1, a flag for `add`. `fetch` fetches all flags that were added."""
        if (
            self._shared is None
            or self._num_shared == _SHARED_FLAGS
            or self._shared.device != device
        ):
            if not self._unused or self._unused[0].device != device:
                sizes = _COPIES, _SHARED_FLAGS * _APART
                flags = torch.full(sizes, -1, dtype=torch.int32, device=device)
                self._unused = list(flags.unbind())
            self._shared, self._num_shared = self._unused.pop(), 0
            self._results.append((self._shared, []))
        place = self._num_shared * _APART
        self._num_shared += 1
        flag = self._shared[place : place + 1]
        self._flags[id(flag)] = self._results[-1][1], place, flag
        return flag

    def fetch(self) -> None:
        """Start the copies of what was added. Call it on the stream that writes it."""
        if self._error is None:
            for flags, errors in self._results:
                if errors:
                    self._pending.append((Download(flags), errors))
        self._shared, self._flags, self._results = None, {}, []

    def raise_found(self, *, wait: bool = False) -> None:
        """Raise the first error among the results that have come; later calls raise it again.

        Args: wait: whether to wait for all results.
        """
        while self._error is None and self._pending and (wait or self._pending[0][0].is_here()):
            coming, errors = self._pending.popleft()
            firsts = coming.wait().tolist()
            for place, error in errors:
                if firsts[place] >= 0:
                    self._error = partial(error, firsts[place])
                    self._pending.clear()
                    break
        if self._error is not None:
            # A new object each time: the traceback of a kept one would keep tensors alive.
            raise self._error()


@contextmanager
def deferring(checks: DeferredChecks) -> Iterator[None]:
    """Collect in `checks` the errors that this thread's ops find in this context.

    Leave the context on the stream on which you entered it: its end fetches the errors from the
    device.
    """
    before = getattr(_this_thread, "checks", None)
    _this_thread.checks = checks
    try:
        yield
    finally:
        _this_thread.checks = before
        checks.fetch()


def new_flag(device: torch.device) -> Tensor:
    """Return [1] int32 of -1 (nothing is bad) for a kernel to write and `raise_first` to read.

    Within `deferring` one launch makes the flags of many exchanges.
    """
    checks: DeferredChecks | None = getattr(_this_thread, "checks", None)
    if checks is not None:
        return checks.new_flag(device)
    return torch.full((1,), -1, dtype=torch.int32, device=device)


def is_deferring() -> bool:
    """Return whether this thread is within `deferring`."""
    return getattr(_this_thread, "checks", None) is not None


@contextmanager
def renaming_errors(rename: Rename) -> Iterator[None]:
    """Pass every CorruptFrameError of this context, raised now or later, through `rename`.

    Args: rename: function that returns the error with the rank and the name of the table added.
    """
    before = getattr(_this_thread, "rename", None)
    _this_thread.rename = rename
    try:
        yield
    except CorruptFrameError as error:
        raise rename(error) from error
    finally:
        _this_thread.rename = before


def raise_first(first: Any, reason: str | MakeError) -> None:
    """Raise the error of the first bad segment, if there is one.

    Args:
        first: number of the first bad segment, or -1 or None: an int, or [1] int32 on the device.
        reason: what is wrong with the segment, or a function that makes the error from its number.
    Raises: CorruptFrameError: now, or later within `deferring`.
    """
    error = _error_of(reason) if isinstance(reason, str) else reason
    checks: DeferredChecks | None = getattr(_this_thread, "checks", None)
    if checks is not None and isinstance(first, Tensor):
        rename: Rename | None = getattr(_this_thread, "rename", None)
        checks.add(first, error if rename is None else lambda n: rename(error(n)))
    elif first is not None and int(first) >= 0:
        raise error(int(first))


def _error_of(reason: str) -> MakeError:
    return lambda segment: CorruptFrameError(reason, segment=segment)
