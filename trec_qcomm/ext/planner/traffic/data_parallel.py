"""Expected bytes of the all-reduce of DATA_PARALLEL tables' gradients: of their touched rows.

Ranks first tell one another which rows they touched, a bit a row, and then all-reduce the rows that
some rank touched (comm.touched_rows). So what is sent depends on how many rows the batches of all
ranks touch together: with N ranks between those of one batch and N times as many. That is measured
for one number of ranks; for others it is a power of the ranks, as for most vocabularies.

Knows: codecs, algorithms by name. Does not know: TorchRec, records, seconds.
Shapes: N ranks, R rows of a table, U of them touched by some rank.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trec_qcomm.core.codec import Codec
from trec_qcomm.core.segments import ALIGNMENT
from trec_qcomm.ext.planner.traffic.sizes import FixedSizes
from trec_qcomm.wire.frame import HEADER_NBYTES, SEGMENT_ENTRY_NBYTES


@dataclass(frozen=True, kw_only=True)
class TouchedRows:
    """Rows of a table that the batches of a step touch.

    Args:
        num_rows: R, rows of the table.
        by_one: rows that the batch of one rank touches.
        by_several: rows that the batches of `num_several` ranks touch together; None: not known.
        num_several: number of these ranks.
    """

    num_rows: int
    by_one: float
    by_several: float | None = None
    num_several: int = 1

    def by(self, num_ranks: int) -> float:
        """Return U, the rows that so many ranks touch together.

        At most R (1 - (1 - u/R)^N), with u rows touched by one: as many as if all rows were alike,
        and that is the most where the ranks' batches are drawn alike. A table of no rows has 0.
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
    """A DATA_PARALLEL table. Args: dim: columns.  num_rows: R.  num_touched: U."""

    dim: int
    num_rows: int
    num_touched: float


def reduced_nbytes(
    tables: Sequence[TouchedTable], codec: Codec, algorithm: str, num_ranks: int
) -> float:
    """Return the bytes that a rank sends in the all-reduce of some tables, the mean over ranks.

    Args:
        tables: tables of one bucket.
        codec: codec of the rows; one without a fixed size counts with its upper bound.
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
