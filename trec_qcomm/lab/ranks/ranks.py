"""PlayedRanks: the ranks of a job as threads of one process, each with process groups of its own.

Each rank has its own copy of what a process has once: torch's process groups, the state of torch's
CPU generator, and the environment variables that a launcher sets. The copy is put in place whenever
the baton is passed on. Python's and numpy's generators are shared: give each rank its own
generator.

Knows: the baton, torch's process groups. Does not know: TorchRec, models.
"""

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from trec_qcomm.lab.ranks import PLAYED
from trec_qcomm.lab.ranks.baton import Baton
from trec_qcomm.lab.ranks.process_group import (
    WORLD,
    Meetings,
    PlayedGroup,
    RankWorld,
    is_registered,
    names_by_thread,
)

Attribute = tuple[ModuleType, str]
_BARRIER = "TORCH_DIST_INIT_BARRIER"  # a barrier over a store, where no baton is passed on


_RUNNING = threading.Lock()  # torch's view of the process groups is one for all threads


class PlayedRanks:
    """N ranks of a job in one process, on CPU. Each runs in a thread, one at a time."""

    def __init__(
        self,
        num_ranks: int,
        *,
        ranks_per_node: int | None = None,
        attributes: Mapping[Attribute, Any] | None = None,
    ) -> None:
        """Start the ranks, with an initialized process group.

        Args:
            num_ranks: number of ranks.
            ranks_per_node: ranks of each emulated node, the value of LOCAL_WORLD_SIZE; None: all.
            attributes: global variables that each rank has for itself, with their first values.
        Raises: ValueError: a number below 1, or nodes that differ in size.
        """
        per_node = num_ranks if ranks_per_node is None else ranks_per_node
        for name, value in (("ranks", num_ranks), ("ranks_per_node", per_node)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}: {value!r} is not a whole number of 1 or more")
        if num_ranks % per_node:
            raise ValueError(f"ranks_per_node: {num_ranks} ranks are not nodes of {per_node} each")
        self.num_ranks = num_ranks
        rng = torch.get_rng_state()
        places = [
            _Process(
                {WORLD: RankWorld(), **(attributes or {})},
                _environment(rank, num_ranks, per_node),
                rng,
            )
            for rank in range(num_ranks)
        ]
        places.append(  # the caller's
            _Process(dict.fromkeys(places[0].attributes), dict.fromkeys(places[0].environment), rng)
        )

        def on_pass(giver: int, taker: int) -> None:
            places[giver].save()
            places[taker].restore()

        self._baton = Baton(num_ranks, on_pass)
        weakref.finalize(self, self._baton.close)
        meetings = Meetings(self._baton)
        self._run([partial(_join, meetings, rank, num_ranks) for rank in range(num_ranks)])

    def run(self, function: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
        """Call `function(*arguments)` on every rank, and return the results, by rank.

        Inside it `torch.distributed` is as on a real rank: `dist.get_rank()` tells it its rank.

        Args: columns: for each argument, one item a rank.
        Raises: ValueError: another number of items than ranks.  The error of the first rank that
            fails: after it these ranks cannot be used any more.
        """
        for number, column in enumerate(columns):
            items = len(column) if hasattr(column, "__len__") else None
            if items != self.num_ranks:
                name = getattr(function, "__qualname__", repr(function))
                what = f"{column!r:.80}" if items is None else f"{items} items"
                raise ValueError(
                    f"argument {number + 1} of {name}: {what} for {self.num_ranks} ranks; give a "
                    "sequence with one item a rank"
                )
        rows = zip(*columns, strict=True) if columns else [()] * self.num_ranks
        return self._run([partial(function, *row) for row in rows])

    def close(self) -> None:
        """End the threads, which also end with this object."""
        self._baton.close()

    def _run(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        call = partial(_call, torch.get_num_threads(), torch.is_grad_enabled())
        if not _RUNNING.acquire(blocking=False):
            raise RuntimeError(
                "played ranks run already: neither inside of a rank nor in two threads"
            )
        try:
            with names_by_thread():
                return self._baton.run([partial(call, job) for job in jobs])
        finally:
            _RUNNING.release()


class _Process:
    """What a process has once, of one rank or of the caller.

    Args:
        attributes: global variables.
        environment: environment variables; None: not set.
        rng: state of torch's CPU generator.
    """

    def __init__(
        self,
        attributes: dict[Attribute, Any],
        environment: dict[str, str | None],
        rng: torch.Tensor,
    ) -> None:
        self.attributes, self.environment, self._rng = attributes, environment, rng

    def save(self) -> None:
        """Note what is in place now."""
        for module, name in self.attributes:
            self.attributes[module, name] = getattr(module, name)
        for name in self.environment:
            self.environment[name] = os.environ.get(name)
        self._rng = torch.get_rng_state()

    def restore(self) -> None:
        """Put in place what was noted."""
        for (module, name), value in self.attributes.items():
            setattr(module, name, value)
        for name, text in self.environment.items():
            if text is not None:
                os.environ[name] = text
            else:
                os.environ.pop(name, None)
        torch.set_rng_state(self._rng)


class _NoStore(dist.Store):  # type: ignore[misc, name-defined]
    """Store of played ranks, which need none: a group of real ranks among them fails here."""

    def _refuse(self, *_: Any) -> Any:
        raise RuntimeError(
            f"played ranks have groups of the backend {PLAYED!r} only: leave out the backend"
        )

    set = get = add = wait = compare_set = check = delete_key = multi_get = multi_set = _refuse


_NO_STORE = _NoStore()  # C++ does not keep it alive


def _join(meetings: Meetings, rank: int, num_ranks: int) -> None:
    """Initialize the process group of one rank."""
    if not is_registered(PLAYED):
        dist.Backend.register_backend(PLAYED, _make_group, extended_api=True, devices=["cpu"])
    hook = sys.excepthook  # torch puts "[rank0]" before the traces of the whole process
    dist.init_process_group(
        PLAYED, store=_NO_STORE, rank=rank, world_size=num_ranks, pg_options=meetings
    )
    sys.excepthook = hook


def _make_group(options: Any, meetings: Meetings | None) -> PlayedGroup:
    """Return this rank's part of a group, for torch. Args: meetings: None but for the first."""
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    if meetings is None:
        world = dist.group.WORLD
        assert isinstance(world, PlayedGroup)
        meetings = world.meetings
    return meetings.make_group(options.group_rank, ranks, options.group_id)


def _environment(rank: int, num_ranks: int, per_node: int) -> dict[str, str | None]:
    """Return what torchrun sets."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(rank % per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        _BARRIER: None,
    }


def _call(num_threads: int, with_gradients: bool, job: Callable[[], Any]) -> Any:
    """Run a job with what torch keeps for each thread, as the caller has it."""
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)
    with torch.set_grad_enabled(with_gradients):
        return job()
