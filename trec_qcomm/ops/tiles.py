"""How Triton kernels go through lists of rows that differ in length. Imports triton.

A program takes a tile: BLOCK adjacent values of all lists laid end to end, so that neither short
rows nor short lists leave lanes idle.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.ops.device import segment_of

_TILE = 2048  # values that one program holds, in groups of 4


def vector_of(*numbers: Tensor) -> int:
    """4 where all of these are multiples of it, else 1."""
    return 1 if any(bool((n % 4).any()) for n in numbers) else 4


def tiling(first: Tensor, vector: int, block: int = _TILE) -> tuple[int, dict[str, int]]:
    """How many programs go through lists, and the options of their kernel.

    Args: first: [L + 1] int64, where each list's values begin, and all end.  vector: 4 or 1, a
        divisor of these and of the length of all rows.
    """
    sizes = torch.diff(first)
    block = block * vector // 4  # as many addresses, whatever they are of
    options = {
        "STEPS": len(sizes).bit_length(),
        "WIDE": bool((sizes >= 2**31).any()),
        "VECTOR": vector,
        "BLOCK": block,
    }
    return -(-int(first[-1]) // block), options


@triton.jit
def lists_of_tile(first, num_lists, STEPS: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr):
    """For each VECTOR values of this program: whether there are any, their list, and the number of
    the first one in that. int64, as all that counts values."""
    begin, total = tl.program_id(0).to(tl.int64) * BLOCK, tl.load(first + num_lists)
    number = begin + tl.arange(0, BLOCK // VECTOR) * VECTOR
    live, number = number < total, tl.minimum(number, total - VECTOR)
    lowest = segment_of(begin, first, num_lists, STEPS)
    which = tl.zeros_like(number) + lowest
    if lowest != segment_of(tl.minimum(begin + BLOCK, total) - 1, first, num_lists, STEPS):
        which = segment_of(number, first, num_lists, STEPS)
    return live, which, number - tl.load(first + which)


@triton.jit
def row_and_column(number, dim, WIDE: tl.constexpr):
    """Of values numbered row by row. WIDE: numbers may need more than 31 bits."""
    if WIDE:
        dim = tl.cast(dim, tl.int64)
        row, column = number // dim, number % dim
    else:
        number, dim = number.to(tl.int32), tl.cast(dim, tl.int32)
        row, column = number // dim, number % dim
    return row.to(tl.int64), column.to(tl.int64)
