"""The layout of a batch for kernels that go through segments in groups of 1024 values.

A program has a *chunk*: some groups of one segment, one after the other. Of rans, a program has a
*stream*: 2^16 indices of one segment, or what remains.
Shapes: S segments, C chunks, G groups, T streams.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.core.transfer import upload
from trec_qcomm.ops.rans.reference import STREAM

GROUP = 1024
_MOST = 2**31 - 2**13  # values a segment, and between rows: their numbers are int32
_MANY_CHUNKS = 2**14  # enough to keep a GPU busy: where there are more, they get several groups


@dataclass(frozen=True, eq=False)
class Groups:
    """Args: vectors: num_values, start, gaps (between rows), at, extra: [S]; groups, chunks,
    streams: [S + 1], the first of each segment; all int64 on the device.  num_segments: S.
    num_groups: G.  num_chunks: C.  num_streams: T.  most_values: of a segment.
    per_chunk: groups a chunk.  dim: D.  vector: 4 or 1, a divisor of dim and of where rows begin.
    """

    vectors: tuple[Tensor, ...]
    num_segments: int
    num_groups: int
    num_chunks: int
    num_streams: int
    most_values: int
    per_chunk: int
    dim: int
    vector: int

    @classmethod
    def of(cls, segments: Segments, at: Tensor, extra: Tensor, device: torch.device) -> "Groups":
        """Args: at, extra: [S] int64 on CPU."""
        start, dim, num_values = segments.start, segments.dim, segments.num_rows * segments.dim
        gaps = torch.where(segments.num_rows > 1, segments.stride - dim, 0)
        for name, numbers in (("num_rows", num_values), ("stride", gaps)):
            if bool((numbers > _MOST).any()):
                most = int(numbers.max())
                raise ValueError(f"Segments.{name}: {most} values, and at most {_MOST} on a GPU")
        groups = -(-num_values // GROUP)
        num_groups = int(groups.sum())
        per_chunk = min(max(num_groups // _MANY_CHUNKS, 1), 8)
        chunks = -(-groups // per_chunk)
        streams = (num_values // STREAM).clamp(min=1).where(num_values > 0, 0)
        misplaced = (start | gaps) % 4
        vectors = upload(
            device, num_values, start, gaps, at, extra, exclusive_cumsum(groups),
            exclusive_cumsum(chunks), exclusive_cumsum(streams),
        )  # fmt: skip
        return cls(
            vectors, len(groups), num_groups, int(chunks.sum()), int(streams.sum()),
            int(num_values.max()) if len(groups) else 0, per_chunk, dim,
            4 if dim % 4 == 0 and not bool(misplaced.any()) else 1,
        )  # fmt: skip

    @property
    def layout(self) -> Sequence[Any]:
        """num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim: what every
        kernel takes."""
        num_values, start, gaps, at, _, groups, chunks, _ = self.vectors
        sizes = self.num_segments, self.per_chunk, self.dim
        return num_values, start, gaps, at, groups, chunks, *sizes

    @property
    def extra(self) -> Tensor:
        """[S] int64."""
        return self.vectors[4]

    @property
    def streams(self) -> Tensor:
        """[S + 1] int64."""
        return self.vectors[7]
