"""Blocks of rows: how the kernels of this op divide all rows of a batch among programs.

A block is as many rows as one warp holds, whatever segments they belong to, so no warp waits for
another. Where all rows of a program belong to one segment, as in most programs, that segment is
searched for once.
"""

# mypy: ignore-errors

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import Segments
from trec_qcomm.ops.device import DeviceSegments, launch, segment_of, upload

_TILE = 1024  # values of a program
_HEADERS = 128  # segments a program


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """A batch of segments on the device, whose rows kernels take in blocks."""

    batch: DeviceSegments

    @classmethod
    def from_segments(
        cls, segments: Segments, at: Tensor, device: torch.device, *vectors: Tensor
    ) -> tuple["RowBlocks", tuple[Tensor, ...]]:
        """Upload a batch of segments, and more [S] int64 vectors with it.

        Args: at: [S] int64 on CPU, where the segments' bytes begin.
        Returns: the batch, and the vectors on the device.
        """
        return cls(DeviceSegments.from_segments(segments, at, device)), upload(device, *vectors)

    def launch(self, kernel: Any, *args: Any, **constants: Any) -> None:
        """Run a kernel over all rows; it finds its own by `rows_of_program`."""
        dim = max(8, triton.next_power_of_2(self.batch.dim))  # whole bytes of a bitmap
        rows = max(1, _TILE // dim)
        launch(
            kernel, -(-self.batch.num_rows // rows), *args, *self.batch.layout, **constants,
            num_warps=min(32, max(1, dim // _TILE)), STEPS=self.batch.num_segments.bit_length(),
            VECTOR=self.batch.vector, BLOCK_ROWS=rows, BLOCK_DIM=dim, WORDS=max(1, dim // 32),
        )  # fmt: skip

    def launch_headers(self, kernel: Any, *args: Any, **constants: Any) -> None:
        """Run a kernel over all segments, for what is once a segment: its header."""
        num = self.batch.num_blocks_of(_HEADERS)
        launch(kernel, num, *args, *self.batch.layout, **constants, BLOCK=_HEADERS)


@triton.jit
def rows_of_program(
    offsets, start, stride, num_segments, num_rows,
    STEPS: tl.constexpr, VECTOR: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Return for each coded row of this program, [BLOCK_ROWS]: whether there is one, its number in
    the batch, its segment, its number in the segment, and where its values begin."""
    first = tl.program_id(0).to(tl.int64) * BLOCK_ROWS
    row = first + tl.arange(0, BLOCK_ROWS)
    live = row < num_rows
    row = tl.minimum(row, num_rows - 1)
    only = segment_of(first, offsets, num_segments, STEPS)
    segment = tl.zeros_like(row) + only
    if tl.load(offsets + only + 1) < tl.minimum(first + BLOCK_ROWS, num_rows):
        segment = segment_of(row, offsets, num_segments, STEPS)
    i = row - tl.load(offsets + segment)
    begin = tl.load(start + segment) + i * tl.load(stride + segment)
    return live, row, segment, i, tl.multiple_of(begin, VECTOR)
