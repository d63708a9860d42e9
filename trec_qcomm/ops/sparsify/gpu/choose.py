"""Selection of the columns of a row to keep, in Triton: the k largest, those above a level, or
those that a mask names.

The k-th largest magnitude is found by bisection between integer keys, for all rows of a program at
once; a level with exactly k keys above it ends the search of a row. If k is small, the largest keys
are found one by one instead. Every step is a pass over registers, so the speed of `top_k` is bound
by the search and not by memory.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.sparsify.gpu.packed_bits import bits_to_bytes, lowest_set, mask_words, num_set
from trec_qcomm.ops.sparsify.gpu.row_blocks import rows_of_program
from trec_qcomm.ops.sparsify.gpu.values import FP32, INF, MAGNITUDE, raise_largest


@triton.jit
def _note_masks(
    bits, begin, live, keep, dim, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr
):  # fmt: skip
    """Write keep, [R, D], as masks that begin at `begin`, [R] int64; bits beyond the last column
    become 0."""
    m = tl.arange(0, BLOCK_DIM // 8)
    packed = bits_to_bytes(keep, BLOCK_ROWS, BLOCK_DIM // 8)
    there = live[:, None] & (m * 8 < dim)[None, :]
    tl.store(bits + begin[:, None] + m[None, :], packed, mask=there)


@triton.jit
def _keep_largest(key, live, k, FEW: tl.constexpr):
    """Return [R, D], the k largest keys of each row; of equal keys those in the lowest columns.

    Args: key: [R, D] int32, -1 where there is no column.  FEW: whether k is so small that finding
        the largest different keys one by one is faster.
    """
    high = tl.max(key, 1)
    num_kept = tl.zeros_like(high)  # keys above high
    if FEW:
        level, rank = high, 1
        while rank < k:
            level = tl.max(tl.where(key < level[:, None], key, -1), 1)
            rank += 1
        low = tl.maximum(level, 0) - 1
        exact = tl.sum((key > low[:, None]).to(tl.int32), 1) == k
        high, num_kept = tl.where(exact, low, high), tl.where(exact, k, num_kept)
    else:
        low = tl.min(tl.where(key < 0, MAGNITUDE, key), 1) - 1
    low = tl.where(live, low, high)
    # k or more keys are above low and fewer above high, or exactly k above both.
    while tl.max((low + 1 < high).to(tl.int32), 0) > 0:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        num_above = tl.sum((key > middle[:, None]).to(tl.int32), 1)
        low = tl.where(num_above >= k, middle, low)
        num_kept = tl.where(num_above <= k, num_above, num_kept)
        high = tl.where(num_above <= k, middle, high)
    keep = key > high[:, None]
    ties = tl.where(live, k - num_kept, 0)
    if tl.max(ties, 0) > 0:
        equal = (key == high[:, None]).to(tl.int32)
        keep |= (equal > 0) & (tl.cumsum(equal, 1) <= ties[:, None])
    return keep


@triton.jit(do_not_specialize=["num_rows"])
def top_k(
    values, bits, mask_at, amax, k,
    offsets, start, stride, at, num_segments, num_rows, dim,
    KIND: tl.constexpr, FEW: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Note the k largest values of each row in the masks, and the largest finite one in amax."""
    live, _, segment, i, begin = rows_of_program(
        offsets, start, stride, num_segments, num_rows, STEPS, VECTOR, BLOCK_ROWS
    )
    d = tl.arange(0, BLOCK_DIM)
    inside = live[:, None] & (d < dim)[None, :]
    x = tl.load(values + begin[:, None] + d[None, :], mask=inside, other=0)
    key = tl.where(inside, x & MAGNITUDE, -1)
    keep = _keep_largest(key, live, k, FEW)
    mask = tl.load(mask_at + segment) + i * ((dim + 7) // 8)
    _note_masks(bits, mask, live, keep, dim, BLOCK_ROWS, BLOCK_DIM)
    if KIND != FP32:
        raise_largest(amax, live, segment, x, keep)


@triton.jit(do_not_specialize=["num_rows"])
def above(
    values, bits, mask_at, amax, levels, counts,
    offsets, start, stride, at, num_segments, num_rows, dim,
    KIND: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Note the values with keys above their segment's level in the masks, the largest finite one in
    amax, and how many each row keeps in counts [R + 1], where row 0 is number 1."""
    live, row, segment, i, begin = rows_of_program(
        offsets, start, stride, num_segments, num_rows, STEPS, VECTOR, BLOCK_ROWS
    )
    d = tl.arange(0, BLOCK_DIM)
    inside = live[:, None] & (d < dim)[None, :]
    x = tl.load(values + begin[:, None] + d[None, :], mask=inside, other=0)
    keep = inside & ((x & MAGNITUDE) > tl.load(levels + segment).to(tl.int32)[:, None])
    mask = tl.load(mask_at + segment) + i * ((dim + 7) // 8)
    _note_masks(bits, mask, live, keep, dim, BLOCK_ROWS, BLOCK_DIM)
    tl.store(counts + 1 + row, tl.sum(keep.to(tl.int32), 1), mask=live)
    if KIND != FP32:
        raise_largest(amax, live, segment, x, keep)


@triton.jit(do_not_specialize=["num_rows"])
def largest_masked(
    values, bits, mask_at, amax,
    offsets, start, stride, at, num_segments, num_rows, dim,
    STEPS: tl.constexpr, VECTOR: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Note in amax the largest finite magnitude of the columns that the masks name."""
    live, _, segment, i, begin = rows_of_program(
        offsets, start, stride, num_segments, num_rows, STEPS, VECTOR, BLOCK_ROWS
    )
    word = mask_words(bits, tl.load(mask_at + segment) + i * ((dim + 7) // 8), live, dim, WORDS)
    source = values + begin[:, None] + (tl.arange(0, WORDS) * 32)[None, :]
    count, largest = num_set(word), tl.zeros_like(word)
    while tl.max(tl.max(count, 1), 0) > 0:
        alone, d = lowest_set(word)
        key = tl.load(source + d, mask=count > 0, other=0) & MAGNITUDE
        largest = tl.maximum(largest, tl.where(key < INF, key, 0))
        word, count = word ^ alone, count - 1
    raise_largest(amax, live, segment, largest, largest > 0)


@triton.jit(do_not_specialize=["num_rows"])
def count_masked(
    bits, mask_at, counts,
    offsets, start, stride, at, num_segments, num_rows, dim,
    STEPS: tl.constexpr, VECTOR: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Count the columns that each row's mask names, in counts [R + 1], where row 0 is number 1."""
    live, row, segment, i, _ = rows_of_program(
        offsets, start, stride, num_segments, num_rows, STEPS, VECTOR, BLOCK_ROWS
    )
    word = mask_words(bits, tl.load(mask_at + segment) + i * ((dim + 7) // 8), live, dim, WORDS)
    tl.store(counts + 1 + row, tl.sum(num_set(word), 1), mask=live)
