"""Expected bytes of a table in a step, for the planner's estimator and the simulation.

A shard sends these segments, of so many rows, over these hops:

    sharding          hops                                      rows of a segment
    TW, CW, TWCW      all ranks                                 the bags of the peer's batch
    RW                all ranks, summed                         those that have an id in the shard
    TWRW, GRID        ranks of a node, summed                   bags of the node's share of batches
                      then ranks of equal place in other nodes  the bags of the peer's batch

Backward is the same in reverse: a rank that received rows sends as many gradients.

Ids: TorchRec sends an id in 8 bytes, and the length of a bag in 4. Packed, an id of a sorted
segment takes the bits of the gap to the next id (ops.batch.packed_ids: low bits as they are, the
rest in unary), and lengths that are all equal take nothing. Ids are taken to fall anywhere.

DATA_PARALLEL tables: ranks first tell one another which rows they touched, one bit a row. They then
all-reduce the rows that at least one rank touched (comm.touched_rows). So the bytes depend on how
many rows the batches of all ranks touch together. With N ranks that is between the rows of one
batch and N times as many. It is measured for one number of ranks. For other numbers it is a power
of the ranks, as for most vocabularies.

Knows: codecs, shardings by TorchRec's names. Does not know: TorchRec, records, links, seconds.
Shapes: N ranks, G of them in a node, M nodes; L ids a bag; R rows of a table, U of them touched.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trec_qcomm.core.codec import Codec
from trec_qcomm.core.segments import ALIGNMENT
from trec_qcomm.ext.planner.sizes import FixedSizes, Sizes
from trec_qcomm.wire.frame import HEADER_NBYTES, SEGMENT_ENTRY_NBYTES

SHARDINGS = (
    "table_wise",
    "column_wise",
    "table_column_wise",
    "row_wise",
    "table_row_wise",
    "grid_shard",
)
TWO_LEVEL = ("table_row_wise", "grid_shard")
ID_NBYTES, LENGTH_NBYTES = 8, 4
SEGMENT_NBYTES = 8  # of a packed segment: its head, and the words that end in mid-byte
UNKNOWN_GAP = 64.0
_MOST_BITS = 56


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
        """Number M of nodes."""
        return self.num_ranks // self.node_size


@dataclass(frozen=True, kw_only=True)
class Hop:
    """One exchange of one shard.

    Args:
        num_peers: ranks that take part, this one included.
        num_batches: batches whose rows go to each peer.
        share: share of a batch's bags for which a row is sent.
        num_terms: number of summands of a received row, in forward.
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
        num_ids: L, number of ids of a bag, which fall anywhere.
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


def ids_nbytes(
    num_bags: float, num_ids: float, *, rows_share: float, num_rows: int | None, packed: bool
) -> float:
    """Return the bytes that one rank sends one shard.

    Args:
        num_bags: number of bags that the rank sends: distinct bags if equal bags are merged.
        num_ids: number of ids of a bag.
        rows_share: share of the table's rows, and so of the ids, that the shard has.
        num_rows: rows of the table, for packed ids. None: unknown; one row in UNKNOWN_GAP is taken
            to be in a batch.
        packed: whether ids are packed.
    """
    ids = num_bags * num_ids * rows_share
    if not packed:
        return ids * ID_NBYTES + num_bags * LENGTH_NBYTES
    gap = UNKNOWN_GAP if num_rows is None else max(num_rows / max(num_bags * num_ids, 1.0), 1.0)
    return SEGMENT_NBYTES + ids * bits_of_gap(gap) / 8


def bits_of_gap(mean: float) -> float:
    """Return the bits of a gap between sorted random ids: k low bits, the rest in unary.

    Args: mean: mean gap, >= 1; the gap less one is coded, because ids differ.
    """
    rest = mean - 1.0
    best = math.inf
    for bits in range(_MOST_BITS):
        # The mean of floor(gap / 2^k), of gaps that are geometric.
        high = 0.0 if rest <= 0 else 1.0 / ((1 + 1 / rest) ** (2**bits) - 1)
        best = min(best, bits + 1 + high)
        if high < 1e-3:
            break
    return best if rest > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class TouchedRows:
    """Rows of a table that the batches of a step touch.

    Args:
        num_rows: R, rows of the table.
        by_one: rows that the batch of one rank touches.
        by_several: rows that the batches of `num_several` ranks touch together; None: unknown.
        num_several: number of ranks for `by_several`.
    """

    num_rows: int
    by_one: float
    by_several: float | None = None
    num_several: int = 1

    def by(self, num_ranks: int) -> float:
        """Return U, the rows that so many ranks touch together.

        It is at most R (1 - (1 - u/R)^N), with u rows touched by one rank. That is the number if
        all rows are alike, and the largest if the ranks' batches are drawn alike. A table of no
        rows has 0.
        """
        if self.num_rows == 0:
            return 0.0
        one = min(self.by_one, self.num_rows)
        most = self.num_rows * (1.0 - float((1.0 - one / self.num_rows) ** num_ranks))
        if self.by_several is None or self.num_several < 2 or one <= 0:
            return most
        several = min(max(self.by_several, one), self.num_rows)
        power = math.log(several / one) / math.log(self.num_several)
        return min(most, one * float(num_ranks**power))


@dataclass(frozen=True, kw_only=True)
class TouchedTable:
    """DATA_PARALLEL table. Args: dim: columns.  num_rows: R.  num_touched: U."""

    dim: int
    num_rows: int
    num_touched: float


def reduced_nbytes(
    tables: Sequence[TouchedTable], codec: Codec, algorithm: str, num_ranks: int
) -> float:
    """Return the bytes that a rank sends in the all-reduce of some tables, the mean over ranks.

    Args:
        tables: tables of one bucket.
        codec: codec of the rows; a codec without a fixed size counts with its upper bound.
        algorithm: ring, two_shot or recursive_doubling.
        num_ranks: N.
    """
    if num_ranks < 2 or not tables:
        return 0.0
    bits = -(-sum(table.num_rows for table in tables) // 8)
    bits += -bits % ALIGNMENT
    payload = sum(_chunks_nbytes(table, codec, num_ranks) for table in tables)
    if algorithm == "recursive_doubling":
        times = _doublings(num_ranks)
        headers = times * HEADER_NBYTES
    else:
        times = 2 * (num_ranks - 1) / num_ranks
        headers = 2 * (num_ranks - 1) * HEADER_NBYTES
    return (num_ranks - 1) * bits + times * payload + headers


def _chunks_nbytes(table: TouchedTable, codec: Codec, num_ranks: int) -> float:
    """Return the bytes of the touched rows in N chunks, with their entries in frames' headers."""
    rows = table.num_touched / num_ranks
    return num_ranks * (
        FixedSizes(codec).nbytes(rows, table.dim) + min(rows, 1.0) * SEGMENT_ENTRY_NBYTES
    )


def _doublings(num_ranks: int) -> float:
    """Return how often a rank sends all of the values in a recursive doubling, the mean."""
    stages = num_ranks.bit_length() - 1
    beyond = num_ranks - (1 << stages)
    return ((1 << stages) * stages + 3 * beyond) / num_ranks


@dataclass(frozen=True, kw_only=True)
class MeasuredTable:
    """Measurements of a table with one configuration.

    Args:
        dim: columns of the table.
        num_bags: bags of a feature in the batch of one rank.
        num_distinct: distinct bags among these.
        num_sent: number of bags that are sent: the distinct bags if equal bags are merged.
        forward, backward: sizes of segments of its rows, and of their gradients.
        intra_forward, intra_backward: sizes of segments of the hop inside a node.
        num_rows: rows of the table. None: unknown; its shards are taken to be equal.
        num_joint: distinct bags of the batches of `num_joint_ranks` ranks of a step together;
            None: unknown.
        num_joint_ranks: number of ranks for `num_joint`.
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
        """Share of the bags that are sent."""
        return self.num_sent / self.num_bags if self.num_bags else 1.0

    def segment_nbytes(self, direction: str, hop: Hop, dim: int) -> float:
        """Return the payload bytes of a segment of a hop. Args: direction: forward or backward."""
        sizes: Sizes = getattr(self, f"intra_{direction}" if hop.is_intra else direction)
        terms = hop.num_terms if direction == "forward" else 1
        return sizes.nbytes(self.num_sent * hop.share * hop.num_batches, dim, num_terms=terms)

    def ids_nbytes(self, rows_share: float, num_ids: float, *, packed: bool) -> float:
        """Return the bytes of ids and lengths from one rank to one shard, by `ids_nbytes`."""
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
        sharding: TorchRec's name of the sharding.
        num_column_parts: number of blocks of columns.
        num_ids: number of ids of a bag.
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
