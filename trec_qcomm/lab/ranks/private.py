"""Private names of torch's process groups that playing ranks needs, in this file alone.

`torch.distributed` keeps what it knows of groups in one object of the module, `_world`, which its
text calls an extension point. Each played rank has one of its own. Written against torch 2.13.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.futures import Future

_c: Any = torch._C._distributed_c10d  # whose stubs lack what is used here
WORLD: tuple[ModuleType, str] = (distributed_c10d, "_world")


class RankWorld(distributed_c10d._World):
    """What torch knows of the process groups of one played rank; empty at first."""

    pg_map: Any = None
    pg_names: Any = None
    pg_group_ranks: Any = None
    pg_backend_config: Any = None
    tags_to_pg: Any = None
    pg_to_tag: Any = None
    group_count = 0

    def __init__(self) -> None:
        super().__init__()
        self.pg_map, self.pg_names, self.pg_group_ranks = {}, {}, {}
        self.pg_backend_config, self.tags_to_pg, self.pg_to_tag = {}, {}, {}


@contextmanager
def names_by_thread() -> Iterator[None]:
    """Let every thread that runs meanwhile have process groups of its own under equal names."""
    _c._set_thread_isolation_mode(True)
    try:
        yield
    finally:
        _c._set_thread_isolation_mode(False)


def is_registered(backend: str) -> bool:
    """Return whether torch knows a backend of process groups that is not its own."""
    return backend.upper() in dist.Backend._plugins


def finished_work(result: list[Tensor]) -> dist.Work:
    """Return the handle of a collective that is over, for C++ to wait for."""
    future: Future[list[Tensor]] = torch.futures.Future()
    future.set_result(result)
    work: dist.Work = _c._create_work_from_future(future)
    return work
