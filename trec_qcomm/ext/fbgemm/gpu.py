"""Copy of coded rows in Triton. Same bytes as reference.py; one launch.

Bytes are moved as words of the largest size that divides a coded row.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import aligned, exclusive_cumsum
from trec_qcomm.ext.fbgemm import rows
from trec_qcomm.ops.device import launch, upload
from trec_qcomm.ops.value_tiles import lists_of_tile, tiling, vector_of

_WORDS = {4: torch.int32, 2: torch.int16, 1: torch.uint8}


def copy(
    source: Tensor,
    source_at: Tensor,
    target: Tensor,
    target_at: Tensor,
    sizes: Tensor,
    *,
    width: int,
    pads: bool,
) -> None:
    """Copy the segments; see `rows`."""
    size = next(size for size in _WORDS if width % size == 0)
    num_segments = len(sizes)
    first = exclusive_cumsum((aligned(sizes) if pads else sizes) // size)
    vectors = (source_at[:num_segments] // size, target_at[:num_segments] // size, sizes // size)
    programs, options = tiling(first, vector_of(first, *vectors))
    launch(
        _copy, programs, _words(source, size), _words(target, size),
        *upload(source.device, first, *vectors), num_segments,
        **{name: options[name] for name in ("STEPS", "VECTOR", "BLOCK")},
    )  # fmt: skip


encode, decode = partial(rows.encode, copy), partial(rows.decode, copy)


def _words(data: Tensor, size: int) -> Tensor:
    return data[: data.numel() // size * size].view(_WORDS[size])


@triton.jit
def _copy(
    source, target, first, source_at, target_at, count, num_segments, STEPS: tl.constexpr,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy `count` words of each segment, and zeros up to the segment's end in `first`."""
    live, segment, number = lists_of_tile(first, num_segments, STEPS, VECTOR, BLOCK)
    v = tl.arange(0, VECTOR)[None, :]
    begin = tl.multiple_of(tl.load(source_at + segment) + number, VECTOR)
    place = tl.multiple_of(tl.load(target_at + segment) + number, VECTOR)
    copied = live & (number < tl.load(count + segment))
    word = tl.load(source + begin[:, None] + v, mask=copied[:, None], other=0)
    tl.store(target + place[:, None] + v, word, mask=live[:, None])
