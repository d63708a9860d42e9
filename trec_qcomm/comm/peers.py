"""Peers: the ranks of a process group, and the numbers by which errors name them.

Knows: process groups. Does not know: what the ranks exchange.
"""

from dataclasses import dataclass, field

import torch.distributed as dist


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
