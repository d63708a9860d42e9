"""How the kernels of this op go through all rows: as many as one warp holds at a time, whatever
segments they belong to, so that no warp waits for another. As `rows_of_block` of ops.device, but
the segment of rows that are all of one is found once; in most programs they are.
"""

# mypy: ignore-errors

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import Segments
from trec_qcomm.ops.device import OnDevice, launch, segment_of, upload

_TILE = 1024  # values of a program
_HEADERS = 128  # segments a program


@dataclass(frozen=True, eq=False)
class Blocks:
    """A batch of segments for kernels."""

    on: OnDevice

    @classmethod
    def of(
        cls, segments: Segments, at: Tensor, device: torch.device, *vectors: Tensor
    ) -> tuple["Blocks", tuple[Tensor, ...]]:
        """It, and more [S] int64 vectors on the device. Args: at: see OnDevice.of."""
        return cls(OnDevice.of(segments, at, device)), upload(device, *vectors)

    def launch(self, kernel: Any, *args: Any, **constants: Any) -> None:
        """Run a kernel that goes through all rows, found by `rows_of_program`."""
        dim = max(8, triton.next_power_of_2(self.on.dim))  # whole bytes of a bitmap
        rows = max(1, _TILE // dim)
        launch(
            kernel, -(-self.on.num_rows // rows), *args, *self.on.layout, **constants,
            num_warps=min(32, max(1, dim // _TILE)), STEPS=self.on.num_segments.bit_length(),
            VECTOR=self.on.vector, BLOCK_ROWS=rows, BLOCK_DIM=dim, WORDS=max(1, dim // 32),
        )  # fmt: skip

    def launch_headers(self, kernel: Any, *args: Any, **constants: Any) -> None:
        """Run a kernel that goes through all segments."""
        num = self.on.num_blocks_of(_HEADERS)
        launch(kernel, num, *args, *self.on.layout, **constants, BLOCK=_HEADERS)


@triton.jit
def rows_of_program(
    offsets, start, stride, num_segments, num_rows,
    STEPS: tl.constexpr, VECTOR: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """For each coded row of this program, [BLOCK_ROWS]: whether there is one, its number in the
    batch, its segment, its number in that, and where its values begin."""
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
