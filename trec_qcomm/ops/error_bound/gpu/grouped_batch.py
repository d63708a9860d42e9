"""Batch of segments for kernels that go through them in groups of 1024 values.

A program handles a *chunk*: some groups of one segment, one after the other. A program of rans
handles a *stream*: 2^16 indices of one segment. The last stream also has the rest.
Shapes: S segments, C chunks, G groups, T streams.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.core.segments import Segments
from trec_qcomm.core.transfer import upload
from trec_qcomm.ops.rans.reference import STREAM

GROUP = 1024
_MAX_VALUES = 2**31 - 2**13  # in a segment, and between rows: numbers of values are int32
_MANY_CHUNKS = 2**14  # enough to keep a GPU busy; above this, a chunk gets several groups


@dataclass(frozen=True, eq=False)
class GroupedBatch:
    """Batch of segments on the device, divided into groups, chunks and streams.

    Args: vectors: int64 on the device. [S]: num_values, start, gaps (values between rows), at,
              bounds_or_nbytes. [S + 1], the first of each segment: group, chunk, stream offsets.
          num_segments: S.
          num_groups: G.
          num_chunks: C.
          num_streams: T.
          max_values: number of values of the largest segment.
          groups_per_chunk: number of groups in a chunk; a segment's last chunk may have fewer.
          dim: D, values in a row.
          vector: 4 or 1, a divisor of dim and of every place where a row begins.
    """

    vectors: tuple[Tensor, ...]
    num_segments: int
    num_groups: int
    num_chunks: int
    num_streams: int
    max_values: int
    groups_per_chunk: int
    dim: int
    vector: int

    @classmethod
    def from_segments(
        cls, segments: Segments, at: Tensor, bounds_or_nbytes: Tensor, device: torch.device
    ) -> "GroupedBatch":
        """Divide the segments and upload their layout.

        Args:   at: [S] int64 on CPU, where the segments' bytes are.
                bounds_or_nbytes: [S] int64 on CPU, to upload with the rest: to encode, the bits of
                    each segment's float64 bound; to decode, its nbytes.
        Raises: ValueError: a segment or a stride too large for int32 numbers.
        """
        _, start, stride = segments.arrays  # numpy is faster than torch on vectors this short
        num_rows, dim = segments.num_rows.numpy(), segments.dim
        num_values, gaps = num_rows * dim, np.where(num_rows > 1, stride - dim, 0)
        for name, numbers in (("num_rows", num_values), ("stride", gaps)):
            if (largest := int(numbers.max(initial=0))) > _MAX_VALUES:
                raise ValueError(
                    f"Segments.{name}: {largest} values, and at most {_MAX_VALUES} on a GPU"
                )
        groups = -(-num_values // GROUP)
        num_groups = int(groups.sum())
        groups_per_chunk = min(max(num_groups // _MANY_CHUNKS, 1), 8)
        chunks = -(-groups // groups_per_chunk)
        streams = np.where(num_values > 0, np.maximum(num_values // STREAM, 1), 0)
        offsets = np.zeros((3, len(groups) + 1), np.int64)
        np.cumsum((groups, chunks, streams), 1, out=offsets[:, 1:])
        placed, first = (
            map(torch.from_numpy, arrays) for arrays in ((num_values, start, gaps), offsets)
        )
        vectors = upload(device, *placed, at, bounds_or_nbytes, *first)
        return cls(
            vectors, len(groups), num_groups, int(chunks.sum()), int(streams.sum()),
            int(num_values.max(initial=0)), groups_per_chunk, dim,
            1 if dim % 4 or ((start | gaps) % 4).any() else 4,
        )  # fmt: skip

    @property
    def layout(self) -> Sequence[Any]:
        """Arguments of every kernel.

        They are num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments,
        groups_per_chunk and dim.
        """
        num_values, start, gaps, at, _, group_offsets, chunk_offsets, _ = self.vectors
        sizes = self.num_segments, self.groups_per_chunk, self.dim
        return num_values, start, gaps, at, group_offsets, chunk_offsets, *sizes

    @property
    def bounds_or_nbytes(self) -> Tensor:
        """Vector [S] int64 of `from_segments`, on the device."""
        return self.vectors[4]

    @property
    def stream_offsets(self) -> Tensor:
        """Number of the first stream of each segment, [S + 1] int64."""
        return self.vectors[7]
