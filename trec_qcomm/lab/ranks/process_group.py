"""PlayedGroup: a process group whose ranks are threads of one process.

The rank that comes last does a collective for all ranks. All-to-alls and messages are asynchronous,
because TorchRec waits for them in Python. Other collectives have ended when they return: DDP waits
for an all-reduce in C++, where the baton cannot be passed on.

Only this file has private names of torch's process groups. `torch.distributed` keeps its groups in
one object of the module, `_world`, which its text calls an extension point. Each simulated rank has
its own. Written against torch 2.13.

Knows: the baton, torch's interface of process groups. Does not know: TorchRec, frames.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.futures import Future

from trec_qcomm.comm.peers import Peers
from trec_qcomm.comm.rounds import Rounds
from trec_qcomm.comm.transport import drive, run_round
from trec_qcomm.lab.ranks import PLAYED, collectives
from trec_qcomm.lab.ranks.baton import Baton

T = TypeVar("T")
_NO_TIMEOUT = timedelta(0)
_SUM = dist.ReduceOp(dist.ReduceOp.SUM)
_c: Any = torch._C._distributed_c10d  # whose stubs lack what is used here
WORLD: tuple[ModuleType, str] = (distributed_c10d, "_world")


class RankWorld(distributed_c10d._World):
    """Process groups of one simulated rank, as torch keeps them; empty at first."""

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
    """Let every thread, inside the block, have its own process groups under equal names."""
    _c._set_thread_isolation_mode(True)
    try:
        yield
    finally:
        _c._set_thread_isolation_mode(False)


def is_registered(backend: str) -> bool:
    """Return whether torch knows a backend of process groups that another library registered."""
    return backend.upper() in dist.Backend._plugins


def _finished(result: T) -> Future[T]:
    future: Future[T] = torch.futures.Future()
    future.set_result(result)
    return future


def finished_work(result: list[Tensor]) -> dist.Work:
    """Return the handle of a collective that is over, for C++ to wait for."""
    work: dist.Work = _c._create_work_from_future(_finished(result))
    return work


class PlayedTransport:
    """Runner of collectives on a simulated rank: `Transport` without a thread of its own.

    DDP waits for the future in C++, where no other rank could run.
    """

    def __init__(self, pg: dist.ProcessGroup) -> None:
        self._peers = Peers(pg)

    def start(
        self,
        rounds: Rounds,
        result: Tensor,
        on_wire_s: Callable[[float], None],
        name: str = "all-reduce",
    ) -> Future[Tensor]:
        """Run the rounds and return a future of `result`, as `Transport.start` does."""
        drive(rounds, partial(run_round, self._peers, name=name), on_wire_s)
        return _finished(result)


@dataclass(eq=False)
class _Call:
    """One collective, which ranks have come to or not. Args: name: the collective's name."""

    name: str
    given: dict[int, Any] = field(default_factory=dict)  # by rank
    is_over: bool = False


@dataclass(eq=False)
class Meeting:
    """Collectives and messages under way, which the ranks of one group share.

    Args: ranks: global rank of each rank in the group.
    """

    ranks: tuple[int, ...]
    calls: dict[int, _Call] = field(default_factory=dict)  # by number
    mail: defaultdict[tuple[int, int, int], deque[Tensor]] = field(
        default_factory=lambda: defaultdict(deque)
    )  # by sender, receiver, tag


class PlayedWork(dist.Work):
    """Handle of an asynchronous operation of a simulated rank."""

    def __init__(self, baton: Baton, is_over: Callable[[], bool], what: Callable[[], str]) -> None:
        super().__init__()
        self._baton, self._is_over, self._what = baton, is_over, what

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Let other ranks run until the operation is over. The timeout is not used."""
        self._baton.wait(self._is_over, self._what)
        return True

    def is_completed(self) -> bool:
        """Return whether the operation is over."""
        return self._is_over()


@dataclass(eq=False)
class Meetings:
    """Groups of the simulated ranks. Args: baton: the ranks' threads."""

    baton: Baton
    _by_group: dict[tuple[str, tuple[int, ...]], Meeting] = field(default_factory=dict)

    def make_group(self, rank: int, ranks: tuple[int, ...], name: str) -> "PlayedGroup":
        """Return one rank's part of a group.

        Args:
            rank: number of the rank in the group.
            ranks: global rank of each of its ranks.
            name: the group's name, the same on all of them.
        """
        meeting = self._by_group.setdefault((name, ranks), Meeting(ranks))
        return PlayedGroup(rank, meeting, self, name)


# torch's own types name every overload of a collective, of which it calls one.
_ProcessGroup: Any = dist.ProcessGroup


class PlayedGroup(_ProcessGroup):  # type: ignore[misc]
    """One rank's part of a process group of simulated ranks. Its tensors are on CPU."""

    def __init__(self, rank: int, meeting: Meeting, meetings: Meetings, name: str) -> None:
        super().__init__(rank, len(meeting.ranks))
        self.meetings = meetings
        self._rank, self._meeting, self._baton, self._name = rank, meeting, meetings.baton, name
        self._num_calls = 0

    backend_name = PLAYED

    def host_group(self) -> "PlayedGroup":
        """Return the group on which the host sends: itself, because messages never wait in it."""
        return self

    def make_transport(self) -> PlayedTransport:
        """Return what runs the rounds of an all-reduce in this group."""
        return PlayedTransport(self)

    def rank(self) -> int:
        """Return the number of this rank in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of ranks."""
        return len(self._meeting.ranks)

    def name(self) -> str:
        """Return the name of the backend."""
        return PLAYED

    getBackendName = name

    @property
    def group_name(self) -> str:
        """Name of the group, equal on its ranks."""
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    # Collectives, by the names that torch calls them by.

    def all_to_all_single(
        self,
        output: Tensor,
        values: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> dist.Work:
        sent = collectives.splits(values, input_splits, self.size())
        received = collectives.splits(output, output_splits, self.size())
        return self._exchange("all_to_all", sent, received)

    def alltoall(
        self, outputs: Sequence[Tensor], values: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        return self._exchange("all_to_all", values, outputs)

    def allreduce(self, tensors: Sequence[Tensor] | Tensor, opts: Any = None) -> dist.Work:
        listed, operation = _listed(tensors), _operation(opts)

        def reduce(by_rank: list[list[Tensor]]) -> None:
            for position in zip(*by_rank, strict=True):
                collectives.all_reduce(position, operation)

        return self._blocking("all_reduce", listed, reduce)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> dist.Work:
        reduce = partial(collectives.all_reduce_coalesced, operation=_operation(opts))
        return self._blocking("all_reduce", list(tensors), reduce)

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> dist.Work:
        (tensor,) = tensors
        reduced = tensor.detach().clone()
        self.allreduce([reduced], opts)
        if self._rank == opts.rootRank:
            collectives.copy(reduced, tensor)
        return finished_work(list(tensors))

    def reduce_scatter(
        self, outputs: Sequence[Tensor], values: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> dist.Work:
        joined = torch.stack([part.detach() for part in values[0]])
        return self.reduce_scatter_single(outputs[0], joined, opts)

    def reduce_scatter_single(self, output: Tensor, values: Tensor, opts: Any = None) -> dist.Work:
        operation = _operation(opts)

        def reduce(by_rank: list[list[Tensor]]) -> None:
            inputs, outputs = zip(*by_rank, strict=True)
            collectives.reduce_scatter(inputs, outputs, operation)

        return self._blocking("reduce_scatter", [values, output], reduce)

    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], values: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        work = self._exchange("all_gather", [values[0]] * self.size(), outputs[0])
        work.wait()
        return finished_work(list(values))

    def all_gather_single(self, output: Tensor, values: Tensor, opts: Any = None) -> dist.Work:
        parts = collectives.splits(output.view(-1), (), self.size())
        return self.allgather([parts], [values])

    def broadcast(self, tensors: Sequence[Tensor] | Tensor, opts: Any) -> dist.Work:
        root = opts.rootRank

        def spread(by_rank: list[list[Tensor]]) -> None:
            for rank, targets in enumerate(by_rank):
                for source, target in zip(by_rank[root], targets, strict=True):
                    if rank != root:
                        collectives.copy(source, target)

        return self._blocking("broadcast", _listed(tensors), spread)

    def gather(
        self, outputs: Sequence[Sequence[Tensor]], values: Sequence[Tensor], opts: Any
    ) -> dist.Work:
        def collect(by_rank: list[tuple[list[Tensor], Tensor]]) -> None:
            places, _ = by_rank[opts.rootRank]
            for (_, value), place in zip(by_rank, places, strict=True):
                collectives.copy(value, place)

        places = list(outputs[0]) if outputs else []
        return self._blocking("gather", (places, values[0]), collect)

    def scatter(
        self, outputs: Sequence[Tensor], values: Sequence[Sequence[Tensor]], opts: Any
    ) -> dist.Work:
        def deal(by_rank: list[tuple[list[Tensor], Tensor]]) -> None:
            parts, _ = by_rank[opts.rootRank]
            for part, (_, output) in zip(parts, by_rank, strict=True):
                collectives.copy(part, output)

        return self._blocking("scatter", (list(values[0]) if values else [], outputs[0]), deal)

    def barrier(self, opts: Any = None) -> dist.Work:
        return self._blocking("barrier", [], lambda by_rank: None)

    # The same under the names of older torch.
    alltoall_base = all_to_all_single
    _reduce_scatter_base = reduce_scatter_single
    _allgather_base = all_gather_single

    def send(self, tensors: Sequence[Tensor], receiver: int, tag: int = 0) -> dist.Work:
        """Send a copy, so that the sender need not wait."""
        (message,) = tensors
        self._meeting.mail[self._rank, receiver, tag].append(message.detach().clone())
        return PlayedWork(self._baton, lambda: True, lambda: "")

    def recv(self, tensors: Sequence[Tensor], sender: int, tag: int = 0) -> dist.Work:
        (place,) = tensors
        received: list[bool] = []
        mail = self._meeting.mail[sender, self._rank, tag]

        def receive() -> bool:
            if not received and mail:
                collectives.copy(mail.popleft(), place)
                received.append(True)
            return bool(received)

        sender = self._meeting.ranks[sender]
        return PlayedWork(self._baton, receive, lambda: f"a message of rank {sender}")

    def _exchange(self, name: str, sent: Sequence[Tensor], received: Sequence[Tensor]) -> dist.Work:
        def exchange(by_rank: list[tuple[Sequence[Tensor], Sequence[Tensor]]]) -> None:
            collectives.exchange([s for s, _ in by_rank], [r for _, r in by_rank])

        return self._start(name, (sent, received), exchange)

    def _blocking(self, name: str, given: Any, do: Callable[[list[Any]], None]) -> dist.Work:
        self._start(name, given, do).wait()
        return finished_work([value for value in given if isinstance(value, Tensor)])

    def _start(self, name: str, given: Any, do: Callable[[list[Any]], None]) -> PlayedWork:
        """Come to the next collective; the rank that comes last does it, for all.

        Args: given: this rank's tensors.  do: function of what the ranks gave, in rank order.
        """
        calls, number = self._meeting.calls, self._num_calls
        self._num_calls += 1
        call = calls.setdefault(number, _Call(name))
        if call.name != name:
            (peer, *_) = (self._meeting.ranks[r] for r in call.given)
            rank = self._meeting.ranks[self._rank]
            raise RuntimeError(
                f"rank {rank} calls {name} where rank {peer} calls {call.name} (call {number} of "
                f"group {self._name!r}): the ranks are out of step"
            )
        call.given[self._rank] = given
        if len(call.given) == self.size():
            del calls[number]
            with torch.no_grad():
                do([call.given[rank] for rank in range(self.size())])
            call.given, call.is_over = {}, True
        return PlayedWork(self._baton, lambda: call.is_over, lambda: self._describe(call))

    def _describe(self, call: _Call) -> str:
        ranks = enumerate(self._meeting.ranks)
        missing = ", ".join(str(rank) for number, rank in ranks if number not in call.given)
        return f"{call.name} of group {self._name!r}, to which rank {missing} did not come"


def _listed(tensors: Sequence[Tensor] | Tensor) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _operation(opts: Any) -> dist.ReduceOp:
    operation: dist.ReduceOp = _SUM if opts is None else opts.reduceOp
    return operation
