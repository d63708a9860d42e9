"""Peers: the ranks of a process group, and errors that name a lost rank.

Knows: process groups. Does not know: what the ranks exchange.
"""

import weakref
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter

import torch
import torch.distributed as dist

from trec_qcomm.core.errors import CorruptFrameError, LostPeerError

_MAX_TEXT_NBYTES = 1 << 26  # a config names every table, so it may be long


@dataclass(frozen=True, eq=False)
class Peers:
    """Process group whose ranks can be named at any time, also after torch has forgotten it.

    `destroy_process_group` forgets every group, and `init_process_group` brings none back. A group
    object that somebody kept still works; TorchRec keeps the groups of the nodes.

    Args:
        pg: the process group.
        host: a group of the same ranks for tensors on CPU, such as `host_group` returns. None: `pg`
            itself.
    Derived: ranks: global ranks of the group's ranks, in order. If torch forgot the group before
        this object was made, they are numbers within the group.
    """

    pg: dist.ProcessGroup
    host: dist.ProcessGroup | None = None
    ranks: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        try:
            ranks = dist.get_process_group_ranks(self.pg)
        except KeyError:
            ranks = list(range(self.pg.size()))
        if self.host is None:
            object.__setattr__(self, "host", self.pg)
        object.__setattr__(self, "ranks", tuple(ranks))

    def lost(
        self, error: RuntimeError, collective: str, *, since: float, peer: int | None = None
    ) -> LostPeerError:
        """Return the LostPeerError for an error of torch, with the collective and the peers.

        Args:
            error: torch's error from a wait; the caller raises the result from it.
            collective: what was waited for, in words.
            since: perf_counter when the collective was started.
            peer: rank in the group that was waited for; None: all others.
        """
        rank = self.pg.rank()
        others = [number for n, number in enumerate(self.ranks) if n != rank]
        return LostPeerError(
            rank=self.ranks[rank],
            peers=others if peer is None else [self.ranks[peer]],
            collective=collective,
            seconds=perf_counter() - since,
            cause=error,
        )

    def gather_texts(self, text: str, purpose: str) -> list[str]:
        """Return the text of each rank. Collective.

        Texts travel as UTF-8, so a peer can send no more than text. torch's own collectives of
        objects unpickle what they receive, which can run any code.

        Args: purpose: words for the collective, for errors.
        Raises: CorruptFrameError: a text is too long.  LostPeerError: a peer is gone.
        """
        gathered = self.gather_bytes(text.encode(), purpose, max_nbytes=_MAX_TEXT_NBYTES)
        return [data.decode(errors="replace") for data in gathered]

    def gather_bytes(self, data: bytes, purpose: str, *, max_nbytes: int) -> list[bytes]:
        """Return the bytes of each rank. Collective.

        Args:
            purpose: words for the collective, for errors.
            max_nbytes: most bytes that a rank may announce.
        Raises: CorruptFrameError: a rank announces more.  LostPeerError: a peer is gone.
        """
        begin, size = perf_counter(), self.pg.size()
        device = self._device()
        lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(size)]
        try:
            dist.all_gather(lengths, torch.tensor([len(data)], device=device), group=self.pg)
            nbytes = [int(length) for length in lengths]
            for rank, n in zip(self.ranks, nbytes, strict=True):
                if not 0 <= n <= max_nbytes:
                    raise CorruptFrameError(
                        f"{purpose}: {n} bytes; allowed: 0 to {max_nbytes}", rank=rank
                    )
            filled = bytearray(data.ljust(max(1, *nbytes), b"\0"))  # torch takes no empty one
            padded = torch.frombuffer(filled, dtype=torch.uint8).to(device)
            parts = [torch.empty_like(padded) for _ in range(size)]
            dist.all_gather(parts, padded, group=self.pg)
        except CorruptFrameError:
            raise
        except RuntimeError as error:
            raise self.lost(error, purpose, since=begin) from error
        return [part[:n].cpu().numpy().tobytes() for part, n in zip(parts, nbytes, strict=True)]

    def any(self, flag: bool, purpose: str) -> bool:
        """Return whether the flag of at least one rank is True. Collective; waits for a GPU.

        Args: purpose: words for the collective, for errors.
        Raises: LostPeerError: a peer is gone.
        """
        begin, flags = perf_counter(), torch.tensor([int(flag)], device=self._device())
        try:
            dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.pg)
            return bool(flags)
        except RuntimeError as error:
            raise self.lost(error, purpose, since=begin) from error

    def _device(self) -> torch.device:
        """Return a device whose tensors the group sends: the CPU if it can."""
        types = {device.type for device in self.pg._device_types}
        if "cpu" in types:
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())


def make_gloo_group(pg: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return a new gloo group of the same ranks and timeout. Collective.

    A group of another class than torch's may have a method `host_group`, which returns it.

    Raises: ValueError: as `make_group`.
    """
    if hasattr(pg, "host_group"):
        own_group: dist.ProcessGroup = pg.host_group()
        return own_group
    return make_group(pg, "gloo")


def make_group(pg: dist.ProcessGroup, backend: str) -> dist.ProcessGroup:
    """Return a new group of the same ranks and timeout. Collective.

    Raises: ValueError: torch has forgotten the group, or its ranks are not in ascending order;
        torch would sort the ranks of the new group.
    """
    try:
        ranks = dist.get_process_group_ranks(pg)
    except KeyError:
        raise ValueError(
            "the process group was made before destroy_process_group, and torch has forgotten its "
            "ranks; make a new one, and a new model or DDP with it"
        ) from None
    if ranks != sorted(ranks):
        raise ValueError(f"process group: ranks {ranks} must ascend; sort those of new_group")
    everyone = len(ranks) == dist.get_world_size()
    if not everyone:
        _even_out(pg)
    timeout: timedelta = pg._get_backend(pg._device_types[0]).options._timeout
    group: dist.ProcessGroup = dist.new_group(
        ranks, timeout=timeout, backend=backend, use_local_synchronization=not everyone
    )
    return group


def _even_out(pg: dist.ProcessGroup) -> None:
    """Let the ranks of a group be in equally many groups, by groups of one rank. Collective.

    torch puts that number into the name of a group that only its own ranks make, and waits for
    ever where the names differ (pytorch#189073).
    """
    names = dist.distributed_c10d._world.pg_names
    counts = Peers(pg).gather_texts(str(len(names)), "number of process groups")
    for _ in range(len(names), max(map(int, counts))):
        dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)


def host_group(pg: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return the gloo group on which the host sends beside an NCCL group. Collective.

    The first call for a `pg` makes the group; later calls return the same one. If `pg` has no NCCL,
    it is returned itself.

    Raises: ValueError: the same as `make_gloo_group`.
    """
    try:
        backends = dist.get_backend_config(pg)
    except (AssertionError, TypeError, ValueError):  # a group that torch has forgotten
        backends = ""
    if "nccl" not in backends:
        return pg
    if pg not in _host_groups:
        _host_groups[pg] = make_gloo_group(pg)
    return _host_groups[pg]


_host_groups: weakref.WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = (
    weakref.WeakKeyDictionary()
)
