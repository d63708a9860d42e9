"""Blocks of rows: how Triton kernels go through the rows of a batch of segments.

A block is some rows of one segment, and a program takes one block. So a program looks up its
segment once, and places within a block are 32-bit numbers. Imports triton.
"""

# mypy: ignore-errors

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import Segments
from trec_qcomm.ops.device import launch, segment_of, upload
from trec_qcomm.ops.frames.gpu import ITEMS, FramesOfSegments, check_part, seal_part, terms_of_bytes

_TILE = 2048  # values that one program holds
_PER_WARP = 512  # of them, for each warp
_REGISTERS = 255  # that a thread may use; told no number, the compiler takes fewer and spills


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """Batch of segments whose vectors lie on the device, divided into blocks of rows.

    Args:
        first: [S + 1] int64 on the device, the number of each segment's first block. A segment
            without rows has one block, too, for its header.
        offsets: [S + 1] int64 on the device; offsets, start and stride are fields of Segments.
        start, stride, at: [S] int64 on the device; `at` is where the segments' bytes begin.
        frame: [S] int64 on the device, the frame of each segment, if kernels see to frames.
        numbers: [S] int64 on the device, the number of each segment's first value.
        num_blocks: number of blocks of all segments.
        dim: D, values of a row.
        constants: constants of kernels. A program holds up to BLOCK_ROWS rows of BLOCK_DIM values.
            `segment_of` takes STEPS. Rows begin at multiples of VECTOR values. WIDE says whether
            places of values within a block may need more than 31 bits.
    """

    first: Tensor
    offsets: Tensor
    start: Tensor
    stride: Tensor
    at: Tensor
    numbers: Tensor
    frame: Tensor
    num_blocks: int
    dim: int
    constants: dict[str, int]

    @classmethod
    def from_segments(
        cls,
        segments: Segments,
        at: Tensor,
        device: torch.device,
        frames: FramesOfSegments | None = None,
    ) -> "RowBlocks":
        """Divide a batch of segments and upload it, once for each `at`.

        Args: at: [S] int64 on CPU, where the segments' bytes begin.  frames: frames that the
            kernel seals or checks; None: it does not look at frames.
        """
        frame = at if frames is None else frames.frame
        key = cls, device, frames is None
        return segments.kept(key, at, lambda: cls._uploaded(segments, at, frame, device))

    @classmethod
    def _uploaded(
        cls, segments: Segments, at: Tensor, frame: Tensor, device: torch.device
    ) -> "RowBlocks":
        block_dim = triton.next_power_of_2(segments.dim)
        block_rows = max(1, _TILE // block_dim)
        offsets, start, stride = segments.arrays  # numpy is faster on vectors this short
        first = np.zeros(len(offsets), np.int64)
        np.maximum(-(-np.diff(offsets) // block_rows), 1).cumsum(out=first[1:])
        vectors = upload(
            device, torch.from_numpy(first), segments.offsets, segments.start, segments.stride, at,
            segments.first_numbers, frame,
        )  # fmt: skip
        constants = {
            "STEPS": segments.num_segments.bit_length(),
            "VECTOR": 1 if ((start | stride) % 4).any() else 4,
            "WIDE": bool((stride >= 2**31 // block_rows).any()),
            "BLOCK_ROWS": block_rows,
            "BLOCK_DIM": block_dim,
        }
        return cls(*vectors, int(first[-1]), segments.dim, constants)

    @property
    def num_segments(self) -> int:
        """Number S of segments."""
        return self.start.numel()

    @property
    def layout(self) -> Sequence[Any]:
        """Arguments of every kernel: first, offsets, start, stride, at, num_segments, dim."""
        vectors = self.first, self.offsets, self.start, self.stride, self.at
        return *vectors, self.num_segments, self.dim

    def launch(
        self, kernel: Any, *args: Any, frames: FramesOfSegments | None = None, **constants: Any
    ) -> None:
        """Run a kernel over all blocks. A program finds its block by `rows_of_program`.

        Args: frames: frames that it seals or checks; None: it does not look at frames.
        """
        values = self.constants["BLOCK_ROWS"] * self.constants["BLOCK_DIM"]
        num_warps = min(32, max(1, values // _PER_WARP))
        of_frames: Sequence[Any] = (0, 0, 0, 0, 0)
        if frames is not None:
            on_device, first = frames.frames, 0 if frames.first is None else frames.first
            of_frames = on_device.headers, on_device.table, self.frame, first, frames.call
        launch(
            kernel, self.num_blocks, *args, *self.layout, *of_frames, **constants,
            **self.constants, FRAMES=frames is not None, num_warps=num_warps,
            maxnreg=min(_REGISTERS, 2048 // num_warps),
        )  # fmt: skip


@triton.jit
def rows_of_program(
    first, offsets, start, stride, num_segments,
    STEPS: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Return the rows of this program.

    Returns: their segment; the segment's number of rows; the index of this program's first row; the
        place of its first value; and for each row, [BLOCK_ROWS], whether it exists, and the
        distance of its values from that place.
    """
    block = tl.program_id(0)
    segment = segment_of(block, first, num_segments, STEPS)
    n = tl.load(offsets + segment + 1) - tl.load(offsets + segment)
    i = (block - tl.load(first + segment)) * BLOCK_ROWS
    step = tl.load(stride + segment)
    begin = tl.multiple_of(tl.load(start + segment) + i * step, VECTOR)
    row = tl.arange(0, BLOCK_ROWS)
    live = row < tl.minimum(n - i, BLOCK_ROWS).to(tl.int32)
    away = row * (step if WIDE else step.to(tl.int32))
    return segment, n, i, begin, live, tl.multiple_of(away, VECTOR)


@triton.jit
def place_of(segment, at, frame_of, table, FRAMES: tl.constexpr):
    """Return where a segment's bytes begin in the payload, and where its frame does."""
    origin = tl.cast(0, tl.int64)
    if FRAMES:
        origin = 8 * tl.load(table + 8 * tl.load(frame_of + segment))
    return tl.load(at + segment), origin


@triton.jit
def seal_rows(payload, total, segment, n, i, headers, table, frame_of, call, ROWS: tl.constexpr):
    """Add a program's rows to the frame that it encodes.

    Args: total: uint64, the sum of their terms.  n, i: results of `rows_of_program`.
    """
    row, items = _part(segment, n, i, table, frame_of, ROWS)
    words = payload.to(tl.pointer_type(tl.int64))
    seal_part(words, headers, row, total, items, tl.load(row + ITEMS), call)


@triton.jit
def check_rows(
    payload, total, end, origin, segment, n, i, headers, table, frame_of, first, call,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Add a program's rows to the frame that it decodes, and the zeros after a segment's last row
    to its first rows.

    Args: total: uint64, the sum of their terms.  n, i: results of `rows_of_program`.
        end: the byte where the segment's last row ends.  origin: where the frame begins.
    """
    row, items = _part(segment, n, i, table, frame_of, ROWS)
    words = payload.to(tl.pointer_type(tl.int64))
    if i == 0:
        t = tl.arange(0, 8)
        there = t < ((-end) & 7)
        byte = tl.load(payload.to(tl.pointer_type(tl.uint8)) + end + t, mask=there, other=0)
        total += tl.sum(terms_of_bytes(end - origin, t, byte, 1))
    check_part(words, headers, row, total, items, tl.load(row + ITEMS), first, call)


@triton.jit
def _part(segment, n, i, table, frame_of, ROWS: tl.constexpr):
    """Return the row of a segment's frame in the table, and the number of a program's items."""
    items = tl.minimum(n - i, ROWS) + (i == 0).to(tl.int64)
    return table + 8 * tl.load(frame_of + segment), items


@triton.jit
def note_segment(flag, bad, segment):
    """Lower flag [1] to this program's segment, if it is bad. -1 is the largest uint32."""
    if bad:
        tl.atomic_min(flag.to(tl.pointer_type(tl.uint32)), segment.to(tl.uint32), sem="relaxed")


@triton.jit
def store_zeros(payload, end):
    """Write zeros from byte `end`, a scalar, up to a multiple of 8: one lane a byte."""
    t = tl.arange(0, 8)
    tl.store(payload + end + t, tl.zeros_like(t).to(tl.uint8), mask=t < ((-end) & 7))
