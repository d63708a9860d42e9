"""Segments that a shard of a table sends in a step: how many, of how many rows, over which hop.

    sharding          hops                                      rows of a segment
    TW, CW, TWCW      all ranks                                 the bags of the peer's batch
    RW                all ranks, summed                         those that have an id in the shard
    TWRW, GRID        ranks of a node, summed                   bags of the node's share of batches
                      then ranks of equal place in other nodes  the bags of the peer's batch

Backward is the same in reverse: who received rows sends as many gradients.

Knows: shardings by TorchRec's names. Does not know: TorchRec, codecs, bytes.
Shapes: N ranks, G of them in a node, M nodes; L ids a bag.
"""

from dataclasses import dataclass

SHARDINGS = (
    "table_wise",
    "column_wise",
    "table_column_wise",
    "row_wise",
    "table_row_wise",
    "grid_shard",
)
TWO_LEVEL = ("table_row_wise", "grid_shard")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Ranks of a job. Args: num_ranks: N.  node_size: G, which divides N.

    Raises: ValueError: ranks that do not fill their nodes.
    """

    num_ranks: int
    node_size: int = 1

    def __post_init__(self) -> None:
        if self.num_ranks < 1 or self.node_size < 1 or self.num_ranks % self.node_size:
            raise ValueError(
                f"num_ranks, node_size: {self.num_ranks} ranks in nodes of {self.node_size}"
            )

    @property
    def num_nodes(self) -> int:
        """Number of nodes, M."""
        return self.num_ranks // self.node_size


@dataclass(frozen=True, kw_only=True)
class Hop:
    """One exchange of one shard.

    Args:
        num_peers: ranks that take part, this one included.
        num_batches: batches whose rows go to each peer.
        share: share of a batch's bags of which a row is sent.
        num_terms: summands that a received row is the sum of, forward.
        is_intra: whether it is the hop inside a node.
    """

    num_peers: int
    num_batches: int = 1
    share: float = 1.0
    num_terms: int = 1
    is_intra: bool = False


def hops_of(
    sharding: str, place: Place, *, rows_share: float, num_ids: float, is_pooled: bool = True
) -> tuple[Hop, ...]:
    """Return the hops of one shard.

    Args:
        sharding: one of SHARDINGS.
        rows_share: share of the table's rows that the shard has.
        num_ids: ids of a bag, L, which fall anywhere.
        is_pooled: whether a bag's rows are summed; else each id has a row of its own.
    Raises: ValueError: another sharding.
    """
    if sharding not in SHARDINGS:
        raise ValueError(f"sharding: {sharding!r} is not one of {', '.join(SHARDINGS)}")
    num = place.num_ranks
    if sharding == "row_wise":
        if not is_pooled:
            return (Hop(num_peers=num, share=rows_share),)
        return (Hop(num_peers=num, share=_filled(rows_share, num_ids), num_terms=num),)
    if sharding not in TWO_LEVEL:
        return (Hop(num_peers=num),)
    inside = Hop(
        num_peers=place.node_size,
        num_batches=place.num_nodes,
        num_terms=place.node_size,
        is_intra=True,
    )
    return (inside, Hop(num_peers=place.num_nodes))


def _filled(rows_share: float, num_ids: float) -> float:
    """Return the share of bags that have an id in a shard: 1 - (1 - share)^L."""
    return 1.0 - float((1.0 - min(rows_share, 1.0)) ** num_ids)
