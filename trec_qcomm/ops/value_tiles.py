"""Tiles of values: how Triton kernels go through lists of rows that differ in length.

A list is rows of one length, for example the rows of a segment. All lists are laid end to end, and
a program takes a tile, BLOCK adjacent values. So neither short rows nor short lists leave lanes
idle. Imports triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.ops.device import segment_of

_TILE = 2048  # values that one program holds, in groups of 4


def vector_of(*numbers: Tensor) -> int:
    """Return how many values to move at once: 4 if all numbers are multiples of 4, else 1."""
    return 1 if any(bool((n % 4).any()) for n in numbers) else 4


def tiling(first: Tensor, vector: int, block: int = _TILE) -> tuple[int, dict[str, int]]:
    """Return the number of programs for all values of lists, and the options of their kernel.

    Args:
        first: [L + 1] int64, where each list's values begin, and the end of all.
        vector: 4 or 1, a divisor of `first` and of the length of all rows.
        block: values of a tile where vector is 4, else a quarter of it.
    """
    sizes = torch.diff(first)
    block = block * vector // 4  # as many addresses, whether of one value or of four
    options = {
        "STEPS": len(sizes).bit_length(),
        "WIDE": bool((sizes >= 2**31).any()),
        "VECTOR": vector,
        "BLOCK": block,
    }
    return -(-int(first[-1]) // block), options


@triton.jit
def lists_of_tile(first, num_lists, STEPS: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr):
    """Return, for each VECTOR values of this program, where they lie in the lists.

    Returns: whether there are any; their list; and the number of the first one in it, int64.
    """
    begin, total = tl.program_id(0).to(tl.int64) * BLOCK, tl.load(first + num_lists)
    number = begin + tl.arange(0, BLOCK // VECTOR) * VECTOR
    live, number = number < total, tl.minimum(number, total - VECTOR)
    lowest = segment_of(begin, first, num_lists, STEPS)
    list_number = tl.zeros_like(number) + lowest
    if lowest != segment_of(tl.minimum(begin + BLOCK, total) - 1, first, num_lists, STEPS):
        list_number = segment_of(number, first, num_lists, STEPS)
    return live, list_number, number - tl.load(first + list_number)


@triton.jit
def row_and_column(number, dim, WIDE: tl.constexpr):
    """Return the row and column of values that are numbered row by row.

    Args: WIDE: whether numbers may need more than 31 bits.
    """
    if WIDE:
        dim = tl.cast(dim, tl.int64)
        row, column = number // dim, number % dim
    else:
        number, dim = number.to(tl.int32), tl.cast(dim, tl.int32)
        row, column = number // dim, number % dim
    return row.to(tl.int64), column.to(tl.int64)
