"""Chunks of values: how the kernels of this op divide all values of a batch among programs.

A chunk is CHUNK adjacent values of one segment. CHUNK is a power of 2 that depends on the longest
segment. A program takes SEVERAL chunks, as many as one warp holds.

A batch of few long segments becomes many chunks; a batch of short segments has one chunk for each.
A batch with both kinds wastes lanes: each short segment still takes a whole chunk.
"""

# mypy: ignore-errors

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import Segments, exclusive_cumsum
from trec_qcomm.ops.device import DeviceSegments, launch, segment_of, upload

_TILE = 1024  # values of a program
_HEADERS = 128  # segments a program


@dataclass(frozen=True, eq=False)
class ValueChunks:
    """A batch of segments on the device, cut into chunks of values.

    Args:
        batch: the segments.
        first: [S + 1] int64 on the device, the first chunk of each segment, and the end.
        num: C, the number of all chunks.
        size: CHUNK, values in a chunk.
        contiguous: whether the rows of every segment lie one behind the other.
        vector: 4 or 1; with 4, four values are moved at once, in 16 bytes.
    """

    batch: DeviceSegments
    first: Tensor
    num: int
    size: int
    contiguous: bool
    vector: int

    @classmethod
    def from_segments(
        cls, segments: Segments, at: Tensor, device: torch.device, vector: Tensor
    ) -> tuple["ValueChunks", Tensor]:
        """Upload a batch of segments, and one more [S] int64 vector with it.

        Args: at: [S] int64 on CPU, where the segments' bytes begin.
        Returns: the batch, and the vector on the device.
        """
        batch = DeviceSegments.from_segments(segments, at, device)
        numel = segments.num_rows * segments.dim
        most = int(numel.max()) if segments.num_segments else 0
        size = min(_TILE, max(32, triton.next_power_of_2(most)))
        first = exclusive_cumsum((numel + (size - 1)) // size)
        on_device = upload(device, first, vector)
        gaps = (segments.num_rows > 1) & (segments.stride != segments.dim)
        contiguous = not bool(gaps.any())
        # Whole: no four values that are moved at once cross the end of a row or segment.
        whole = not bool((numel % 4).any()) and (contiguous or segments.dim % 4 == 0)
        return cls(
            batch, on_device[0], int(first[-1]), size, contiguous, batch.vector if whole else 1
        ), on_device[1]

    def launch(self, kernel: Any, *args: Any, num_warps: int = 1, **constants: Any) -> None:
        """Run a kernel over all chunks; it finds its own by `chunks_of_program`."""
        several = _TILE // self.size
        launch(
            kernel, -(-self.num // several), *args, self.first, *self.batch.layout, **constants,
            num_warps=num_warps, STEPS=self.batch.num_segments.bit_length(), CHUNK=self.size,
            SEVERAL=several, CONTIGUOUS=self.contiguous, VECTOR=self.vector,
        )  # fmt: skip

    def launch_headers(self, kernel: Any, *args: Any, **constants: Any) -> None:
        """Run a kernel over all segments, for what is once a segment: its header."""
        num = self.batch.num_blocks_of(_HEADERS)
        launch(kernel, num, *args, self.first, *self.batch.layout, **constants, BLOCK=_HEADERS)


@triton.jit
def chunks_of_program(
    first, offsets, num_segments, dim,
    STEPS: tl.constexpr, CHUNK: tl.constexpr, SEVERAL: tl.constexpr,
):  # fmt: skip
    """Return for each chunk of this program, [SEVERAL]: its number, its segment, how many values
    the segment has (0 where there is no such chunk), and the first value of it in the chunk."""
    chunk = tl.program_id(0).to(tl.int64) * SEVERAL + tl.arange(0, SEVERAL)
    num = tl.load(first + num_segments)
    live, chunk = chunk < num, tl.minimum(chunk, num - 1)
    segment = segment_of(chunk, first, num_segments, STEPS)
    n = tl.load(offsets + segment + 1) - tl.load(offsets + segment)
    begin = (chunk - tl.load(first + segment)) * CHUNK
    return chunk, segment, tl.where(live, n * dim, 0), begin


@triton.jit
def places_of(start, stride, segment, begin, f, dim, CONTIGUOUS: tl.constexpr):
    """Return where the values number begin + f of segments lie. segment, begin: [SEVERAL].
    f: int32 tile."""
    place = tl.load(start + segment)
    if CONTIGUOUS:
        place = (place + begin)[:, None] + f
    else:
        row = begin // dim
        d = (begin - row * dim).to(tl.int32)[:, None] + f
        row = row[:, None] + d // dim
        place = place[:, None] + row * tl.load(stride + segment)[:, None] + d % dim
    return place


@triton.jit
def all_places(
    start, stride, segment, begin, numel, dim,
    CHUNK: tl.constexpr, CONTIGUOUS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Return [SEVERAL, CHUNK]: where all values of the chunks lie, and which of them exist."""
    f = tl.arange(0, CHUNK)[None, :]
    group = f // VECTOR * VECTOR  # the VECTOR values of a group share a place and a mask
    place = places_of(start, stride, segment, begin, group, dim, CONTIGUOUS) + (f - group)
    place = tl.max_contiguous(tl.multiple_of(place, [1, VECTOR]), [1, VECTOR])
    return place, group < (numel - begin)[:, None]
