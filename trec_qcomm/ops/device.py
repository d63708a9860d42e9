"""Segments on a GPU: how Triton kernels find their rows, and how kernels are launched.

A kernel goes through the coded rows of all segments in blocks of BLOCK_ROWS, whatever segments the
rows belong to. So one launch takes 10,000 segments of one row as well as one segment of a million.

Imports triton. `TRITON_INTERPRET=1`, set before that, runs the kernels on CPU tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.checks import new_flag
from trec_qcomm.core.segments import ALIGNMENT, Segments
from trec_qcomm.core.transfer import download, upload

_TILE = 4096  # values that one program holds


def launch(
    kernel: Any, num_programs: int, *args: Any, num_warps: int = 4, **constants: Any
) -> None:
    """Run `kernel` as a one-dimensional grid of `num_programs`; do nothing if that is 0.

    Fused multiply-adds are off: they round once where reference.py rounds twice.
    """
    if num_programs:
        kernel[(num_programs,)](*args, **constants, num_warps=num_warps, enable_fp_fusion=False)


def words(payload: Tensor, dtype: torch.dtype) -> Tensor:
    """View [W] uint8 as words of `dtype`, less the last W % 8 bytes, which no segment reaches."""
    return payload[: payload.numel() // ALIGNMENT * ALIGNMENT].view(dtype)


def new_vectors(
    count: int, size: int, *, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """Allocate vectors [size] in one piece, each at a multiple of 16 bytes.

    Triton compiles a kernel anew for others, so a batch of another size would compile.
    """
    padded = -(-size * dtype.itemsize // 16) * 16 // dtype.itemsize
    return torch.empty(count, padded, dtype=dtype, device=device)[:, :size].unbind()


def no_segment(device: torch.device) -> Tensor:
    """Return [1] int32 of -1 (no segment is bad), which `note_first` writes to."""
    return new_flag(device)


@dataclass(frozen=True, eq=False)
class DeviceSegments:
    """A batch of segments whose vectors lie on the device, as kernels take them.

    Args:
        offsets: [S + 1] int64 on the device; offsets, start and stride are those of Segments.
        start, stride: [S] int64 on the device.
        at: [S] int64 on the device, where the segments' bytes begin.
        numbers: [S] int64 on the device, the number of each segment's first value.
        num_rows: R, rows of all segments.
        dim: D, values of a row.
        vector: 4 or 1, a divisor of every start and stride; with 4, rows are moved in 16 bytes.
    """

    offsets: Tensor
    start: Tensor
    stride: Tensor
    at: Tensor
    numbers: Tensor
    num_rows: int
    dim: int
    vector: int

    @classmethod
    def from_segments(
        cls, segments: Segments, at: Tensor, device: torch.device
    ) -> "DeviceSegments":
        """Upload a batch of segments, once for each `at`.

        Args: at: [S] int64 on CPU, where their bytes begin.
        """
        key = cls, device
        return segments.kept(key, at, lambda: cls._uploaded(segments, at, device))

    @classmethod
    def _uploaded(cls, segments: Segments, at: Tensor, device: torch.device) -> "DeviceSegments":
        offsets, start, stride = segments.arrays  # numpy is faster on vectors this short
        layout = segments.offsets, segments.start, segments.stride, at, segments.first_numbers
        vector = 1 if ((start | stride) % 4).any() else 4
        return cls(*upload(device, *layout), int(offsets[-1]), segments.dim, vector)

    @property
    def num_segments(self) -> int:
        """Number of segments, S."""
        return self.start.numel()

    @property
    def tiling(self) -> dict[str, int]:
        """Constants of kernels that go through all rows: a program holds BLOCK_ROWS whole rows of
        BLOCK_DIM values; `segment_of` takes STEPS; rows begin at multiples of VECTOR values."""
        dim = triton.next_power_of_2(self.dim)
        return {
            "BLOCK_ROWS": max(1, _TILE // dim),
            "BLOCK_DIM": dim,
            "STEPS": self.num_segments.bit_length(),
            "VECTOR": self.vector,
        }

    @property
    def num_blocks(self) -> int:
        """Number of programs that go through all rows, BLOCK_ROWS each."""
        return -(-self.num_rows // self.tiling["BLOCK_ROWS"])

    @property
    def layout(self) -> Sequence[Any]:
        """Arguments that every kernel takes, in this order: offsets, start, stride, at,
        num_segments, num_rows, dim."""
        return (
            self.offsets, self.start, self.stride, self.at, self.num_segments, self.num_rows,
            self.dim,
        )  # fmt: skip


@triton.jit
def segment_of(row, offsets, num_segments, STEPS: tl.constexpr):
    """Return the segment s of coded rows: offsets[s] <= row < offsets[s + 1].

    A binary search: the offsets are few and stay in the first cache; a table with one entry for
    each row would not.
    """
    low = tl.zeros_like(row)
    high = low + num_segments - 1
    for _ in tl.static_range(STEPS):
        middle = (low + high + 1) >> 1
        begins = tl.load(offsets + middle) <= row
        low = tl.where(begins, middle, low)
        high = tl.where(begins, high, middle - 1)
    return low


@triton.jit
def power_of_two(n):
    """Return 2^n as float32, for -126 <= n <= 127."""
    return ((n + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def note_first(flag, bad, segment):
    """Lower flag [1] to the first segment that is bad. -1 (none is) is the largest uint32."""
    if tl.max(bad.to(tl.int32), 0) > 0:
        first = tl.min(tl.where(bad, segment, 0x7FFFFFFF), 0)
        tl.atomic_min(flag.to(tl.pointer_type(tl.uint32)), first.to(tl.uint32))


__all__ = [
    "DeviceSegments",
    "download",
    "launch",
    "no_segment",
    "note_first",
    "power_of_two",
    "segment_of",
    "upload",
    "words",
]
