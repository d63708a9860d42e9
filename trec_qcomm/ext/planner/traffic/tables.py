"""Expected bytes of one table in a step, from what was measured of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trec_qcomm.ext.planner.traffic.data_parallel import TouchedRows
from trec_qcomm.ext.planner.traffic.ids import ids_nbytes
from trec_qcomm.ext.planner.traffic.shardings import Hop, Place, hops_of
from trec_qcomm.ext.planner.traffic.sizes import Sizes
from trec_qcomm.wire.frame import SEGMENT_ENTRY_NBYTES


@dataclass(frozen=True, kw_only=True)
class MeasuredTable:
    """What was measured of a table with one configuration.

    Args:
        dim: columns of the table.
        num_bags: bags of a feature in the batch of one rank.
        num_distinct: different ones of these.
        num_sent: number of bags that are sent: the distinct ones where equal ones merge.
        forward, backward: sizes of segments of its rows, and of their gradients.
        intra_forward, intra_backward: sizes of segments of the hop inside a node.
        num_rows: rows of the table; None: not known, then its shards are taken to be equal.
        num_joint: different bags of the batches of `num_joint_ranks` ranks of a step together;
            None: not known.
        num_joint_ranks: number of these ranks.
    """

    dim: int
    num_bags: float
    num_distinct: float
    num_sent: float
    forward: Sizes
    backward: Sizes
    intra_forward: Sizes
    intra_backward: Sizes
    num_rows: int | None = None
    num_joint: float | None = None
    num_joint_ranks: int = 1

    @property
    def distinct_share(self) -> float:
        """Share of the bags that is sent."""
        return self.num_sent / self.num_bags if self.num_bags else 1.0

    def segment_nbytes(self, direction: str, hop: Hop, dim: int) -> float:
        """Return the payload bytes of a segment of a hop. Args: direction: forward or backward."""
        sizes: Sizes = getattr(self, f"intra_{direction}" if hop.is_intra else direction)
        terms = hop.num_terms if direction == "forward" else 1
        return sizes.nbytes(self.num_sent * hop.share * hop.num_batches, dim, num_terms=terms)

    def ids_nbytes(self, rows_share: float, num_ids: float, *, packed: bool) -> float:
        """Return the bytes of ids and lengths from one rank to one shard. Args: see ids.py."""
        return ids_nbytes(
            self.num_sent, num_ids, rows_share=rows_share, num_rows=self.num_rows, packed=packed
        )

    def num_touched(self, num_rows: int, num_ids: float, num_ranks: int) -> float:
        """Return the rows that the batches of so many ranks touch together, for one feature.

        Args: num_rows: rows of the table.  num_ids: ids of a bag, all taken to be different.
        """
        joint = None if self.num_joint is None else self.num_joint * num_ids
        return TouchedRows(
            num_rows=num_rows,
            by_one=self.num_distinct * num_ids,
            by_several=joint,
            num_several=self.num_joint_ranks,
        ).by(num_ranks)


@dataclass(frozen=True, kw_only=True)
class TableBytes:
    """Bytes of a table that all ranks together send to others in a step.

    Args:
        forward, backward: rows and gradients.
        intra_forward, intra_backward: rows and gradients in the hop inside a node.
        ids: ids and lengths.
    """

    forward: float
    backward: float
    intra_forward: float = 0.0
    intra_backward: float = 0.0
    ids: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Sharded:
    """How a table is sharded.

    Args:
        sharding: TorchRec's name of it.
        num_column_parts: blocks of columns that it is cut into.
        num_ids: ids of a bag.
    """

    sharding: str
    num_column_parts: int = 1
    num_ids: float = 1.0

    def row_shares(self, num_rows: int | None, place: Place) -> Sequence[float]:
        """Return the share of a table's rows that each shard of a block of columns has."""
        parts = {
            "row_wise": place.num_ranks,
            "table_row_wise": place.node_size,
            "grid_shard": place.node_size,
        }.get(self.sharding, 1)
        if num_rows is None or parts == 1:
            return [1 / parts] * parts
        block = -(-num_rows // parts)
        return [max(0, min(block, num_rows - p * block)) / num_rows for p in range(parts)]


def sent_nbytes(
    table: MeasuredTable, how: Sharded, place: Place, *, packed_ids: bool = False
) -> TableBytes:
    """Return the bytes of one pooled feature, with its entries in frames' headers.

    The rest of these headers does not depend on the tables, and is not counted.
    """
    shares, dim = how.row_shares(table.num_rows, place), table.dim // how.num_column_parts
    sums = dict.fromkeys(("forward", "backward", "intra_forward", "intra_backward"), 0.0)
    for share, num_shards in Counter(shares).items():
        for hop in hops_of(how.sharding, place, rows_share=share, num_ids=how.num_ids):
            for direction in ("forward", "backward"):
                nbytes = table.segment_nbytes(direction, hop, dim) + SEGMENT_ENTRY_NBYTES
                name = f"intra_{direction}" if hop.is_intra else direction
                sums[name] += num_shards * how.num_column_parts * (hop.num_peers - 1) * nbytes
    ids = sum(
        num_shards * table.ids_nbytes(share, how.num_ids, packed=packed_ids)
        for share, num_shards in Counter(shares).items()
    )
    ids *= how.num_column_parts * (place.num_ranks - 1)
    return TableBytes(**sums, ids=ids)
