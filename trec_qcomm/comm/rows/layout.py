"""Layout: which rank owns which columns, and where a rank's rows lie in a buffer.

Each function that returns `Places` stands for one order of rows in a buffer. Places are num_rows,
start and stride, [S] int64 each, as core.segments.Segments has them.
Shapes: S segments in P frames.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from trec_qcomm.comm.frames.plan import FramePlan, plan_frames
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.segments import exclusive_cumsum

Places = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class FeatureShard:
    """Adjacent columns that hold one table's rows for one feature and one column shard.

    Args: table, feature: names.  column: the shard's first column in the table.  dim: columns.
    """

    table: str
    feature: str
    column: int
    dim: int


@dataclass(frozen=True)
class Layout:
    """Columns of every rank, as FeatureShards in order; equal on all ranks.

    Args:
        shards_by_rank: one tuple per rank of the process group.
        dtype: dtype of all rows and of their gradients, one of core.segments.VALUE_DTYPES.
    """

    shards_by_rank: tuple[tuple[FeatureShard, ...], ...]
    dtype: torch.dtype = torch.float32

    def dim_sum(self, rank: int) -> int:
        """Return the number of columns of a rank's matrix."""
        return sum(shard.dim for shard in self.shards_by_rank[rank])

    def fingerprint(self, rank: int) -> int:
        """Return the 32-bit hash of a rank's shards and dtype, the layout field of its frames.

        The hashed text is part of the wire format: no name of a class or a field may change it.
        """
        shards = [
            f"Block(table={s.table!r}, feature={s.feature!r}, column={s.column!r}, dim={s.dim!r})"
            for s in self.shards_by_rank[rank]
        ]
        text = ", ".join(shards) + ("," if len(shards) == 1 else "")  # as Python writes a tuple
        dtype = "" if self.dtype == torch.float32 else f" {self.dtype}"
        return zlib.crc32(f"({text}){dtype}".encode())

    def tables(self) -> list[str]:
        """Return the names of all tables, each once, sorted."""
        return sorted({shard.table for shards in self.shards_by_rank for shard in shards})

    def plan_frames(
        self,
        owners: Sequence[int],
        rank: int,
        codecs: Mapping[str, Codec],
        *,
        fan_out: int = 1,
        repeats: int = 1,
        num_summands: int = 1,
    ) -> FramePlan:
        """Plan frames that hold the shards of these owners, one frame an owner.

        Args:
            owners: for each of P frames, the rank whose shards it holds. This is always this rank
                for rows that it sends and gradients that it receives. It is each rank once for rows
                that this rank receives and gradients that it sends.
            rank: this rank.
            codecs: {table: codec}.
            repeats: number of times that the shards follow one another.
            fan_out: number of ranks that get a single frame.
            num_summands: number of decoded values that the receivers add up.
        """
        return plan_frames(
            [[(b.table, b.dim) for b in self.shards_by_rank[owner]] * repeats for owner in owners],
            layouts=[self.fingerprint(owner) for owner in owners],
            codecs=codecs,
            table_numbers={name: t for t, name in enumerate(self.tables())},
            rank=rank,
            fan_out=fan_out,
            num_summands=num_summands,
            value_nbytes=self.dtype.itemsize,
        )


def in_matrix(plan: FramePlan, batch_sizes: Sequence[int], width: int) -> Places:
    """Place rows in a [sum(batch_sizes), width] matrix: frame p has the samples of rank p.

    The segments of a frame lie side by side. Args: batch_sizes: P ints, the B_r.
    """
    counts = torch.tensor(plan.segments_per_frame, dtype=torch.int64)
    ends = exclusive_cumsum(plan.dims)  # one more than S, for empty frames at the end
    columns = ends[:-1] - ends[exclusive_cumsum(counts)[:-1]][plan.frame]
    num_rows = torch.tensor(batch_sizes, dtype=torch.int64)[plan.frame]
    first_row = torch.tensor([0, *accumulate(batch_sizes)], dtype=torch.int64)[plan.frame]
    return num_rows, first_row * width + columns, torch.full_like(num_rows, width)


def side_by_side(plan: FramePlan, num_samples: int) -> Places:
    """Place rows in a [num_samples, sum of dims] matrix: a frame has some columns."""
    num_rows = torch.full_like(plan.dims, num_samples)
    stride = torch.full_like(num_rows, int(plan.dims.sum()))
    return num_rows, exclusive_cumsum(plan.dims)[:-1], stride


def behind_one_another(plan: FramePlan, first_frame: Places, size: int) -> Places:
    """Place frames with equal segments one after the other, `size` values apart.

    Args: first_frame: places of the first frame's segments.
    """
    num_frames = len(plan.segments_per_frame)
    num_rows, start, stride = (tensor.repeat(num_frames) for tensor in first_frame)
    return num_rows, start + plan.frame * size, stride


def packed(plan: FramePlan, num_rows: Tensor) -> Places:
    """Place segments one after the other, in the order of the frames.

    Args: num_rows: [S] int64.
    """
    return num_rows, exclusive_cumsum(num_rows * plan.dims)[:-1], plan.dims
