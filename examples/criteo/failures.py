"""What a user is told when a rank fails or warns: one line, once for all ranks.

Knows: the process group and its store, logging. Does not know: what failed. A rank that fails says
so on stderr, only the first one where they share it; the tracebacks of all ranks go to
OUT/errors.log. A warning that several ranks give is shown by the first of them.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")
LONGEST_WAIT = timedelta(seconds=10)  # for a rank that fails as all do, and is slower


class EveryRankError(ValueError):
    """Error that every rank raises with the same words."""


class Once(logging.Filter):
    """Tells which rank is the first to say a text; as a filter, it passes that rank's log record.

    Args: store: a store that all ranks share; without it every rank is the first.
    """

    def __init__(self, store: dist.Store | None = None) -> None:
        super().__init__()
        self.store = store

    def is_first(self, text: str) -> bool:
        """Return whether no rank has said this text before."""
        if self.store is None:
            return True
        try:
            return self.store.add(hashlib.sha256(text.encode()).hexdigest(), 1) == 1
        except RuntimeError:  # rank 0, which has the store, is gone
            return True

    def filter(self, record: logging.LogRecord) -> bool:
        return self.is_first(record.getMessage())


def show_warnings(once: Once) -> None:
    """Show log records and Python's warnings on stderr, one that several ranks give only once."""
    logging.basicConfig(format="%(message)s", level="WARNING", force=True)
    logging.captureWarnings(True)
    for handler in logging.getLogger().handlers:
        handler.addFilter(once)


def tell(error: Exception, once: Once, out: Path) -> None:
    """Say on stderr why this rank failed, unless another rank has failed before it.

    Args:
        error: what was raised; its traceback is added to errors.log.
        out: folder of errors.log.
    """
    rank = dist.get_rank() if dist.is_initialized() else None
    details, log = "".join(traceback.format_exception(error)), out / "errors.log"
    try:
        out.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(f"{time.ctime()}, rank {rank}: {' '.join(sys.argv)}\n{details}\n")
        where = f"(traceback: {log})"
    except OSError as unwritable:
        where = f"(no errors.log: {unwritable})\n{details}"
    if once.is_first("a rank failed"):
        is_shared = rank is None or isinstance(error, EveryRankError)
        who = "" if is_shared else f"rank {rank}: "
        what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        print(f"error: {who}{what} {where}", file=sys.stderr, flush=True)
    if isinstance(error, EveryRankError) and rank is not None and once.store is not None:
        _wait_for_all(once.store, rank)


def _wait_for_all(store: dist.Store, rank: int) -> None:
    """Let rank 0, which has the store, wait until all ranks have asked it who is the first."""
    with suppress(RuntimeError):  # a rank is gone
        if store.add("ranks that failed alike", 1) == dist.get_world_size():
            store.set("all ranks failed alike", "")
        elif rank == 0:
            store.wait(["all ranks failed alike"], LONGEST_WAIT)


def agreed(call: Callable[[], T]) -> T:
    """Return what the call returns, or raise on all ranks if it fails on one. Collective.

    Else the other ranks would wait for the one that failed until the timeout.
    Raises: EveryRankError: the call raised a ValueError or an OSError on some rank.
    """
    result, failure = None, None
    try:
        result = call()
    except (ValueError, OSError) as error:
        failure = error
    messages = gather(None if failure is None else str(failure))
    failed = [(rank, message) for rank, message in enumerate(messages) if message is not None]
    if failed:
        rank, message = failed[0]
        where = "" if set(messages) == {message} else f"rank {rank}: "
        raise EveryRankError(f"{where}{message}") from failure
    return result  # type: ignore[return-value]


def check_equal(what: str, value: object) -> None:
    """Raise EveryRankError, naming two ranks, unless all ranks have an equal value. Collective."""
    first, *others = gather(value)
    for rank, other in enumerate(others, start=1):
        if other != first:
            raise EveryRankError(f"ranks 0 and {rank} have different {what}: {first}, {other}")


def gather(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return the value of every rank, in rank order. Collective.

    Args: group: a process group of all ranks, for a thread beside the training; None: the default.
    """
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=group)
    return values
