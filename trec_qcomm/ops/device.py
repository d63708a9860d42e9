"""Launch Triton kernels, and functions that they share.

Imports triton. `TRITON_INTERPRET=1`, set before the import, runs the kernels on CPU tensors.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.checks import new_flag
from trec_qcomm.core.segments import ALIGNMENT
from trec_qcomm.core.transfer import download as download
from trec_qcomm.core.transfer import upload as upload


def launch(
    kernel: Any, num_programs: int, *args: Any, num_warps: int = 4, **constants: Any
) -> None:
    """Run `kernel` as a one-dimensional grid of `num_programs`, if there are any.

    Fused multiply-adds are off, because they round once where reference.py rounds twice.
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

    For other places Triton would compile a kernel anew, so a batch of another size would compile.
    """
    padded = -(-size * dtype.itemsize // 16) * 16 // dtype.itemsize
    return torch.empty(count, padded, dtype=dtype, device=device)[:, :size].unbind()


def no_segment(device: torch.device) -> Tensor:
    """Return [1] int32 of -1 (no segment is bad), to which `note_segment` writes."""
    return new_flag(device)


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
