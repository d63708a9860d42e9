"""Peers: the ranks of a process group, and errors that name one which is lost.

Knows: process groups. Does not know: what the ranks exchange.
"""

from dataclasses import dataclass, field
from time import perf_counter

import torch.distributed as dist

from trec_qcomm.core.errors import LostPeerError


@dataclass(frozen=True, eq=False)
class Peers:
    """Process group whose ranks can be named at any time, also once torch has forgotten it.

    `destroy_process_group` forgets every group, and `init_process_group` brings none back. A group
    that somebody kept, as TorchRec keeps those of the nodes, still works.

    Args: pg: the process group.
    Derived: ranks: the global rank of each of the group's ranks, in order; of a group that was
        forgotten before this object was made, the number within the group.
    """

    pg: dist.ProcessGroup
    ranks: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        try:
            ranks = dist.get_process_group_ranks(self.pg)
        except KeyError:
            ranks = list(range(self.pg.size()))
        object.__setattr__(self, "ranks", tuple(ranks))

    def lost(
        self, error: RuntimeError, collective: str, *, since: float, peer: int | None = None
    ) -> LostPeerError:
        """Return the error that names what torch's error of a wait does not.

        Args:
            error: what a wait raised; the caller raises the result from it.
            collective: what was waited for, in words.
            since: perf_counter when that was started.
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
