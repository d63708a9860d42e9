"""Selection of the columns of a row to keep, in numba: the k largest, or those above a level.

The k-th largest magnitude is found by bisection between integer keys: counting the keys above a
level is a loop that LLVM vectorizes, and a level with exactly k keys above it ends the search. The
search begins at the level of the row before. It takes 3 to 5 steps for rows that are alike, and
never more than 40.
"""

# mypy: ignore-errors

import numpy as np

from trec_qcomm.jit import inner
from trec_qcomm.ops.sparsify.masks import gather_columns

_MAGNITUDE = np.int32(0x7FFFFFFF)


@inner(forceinline=True)
def _num_above(keys, level):
    count = np.int32(0)
    for d in range(keys.size):
        count += np.int32(keys[d] > level)
    return count


@inner(forceinline=True)
def _bounds(keys):
    """Return the smallest and the largest key."""
    low, high = _MAGNITUDE, np.int32(0)
    for d in range(keys.size):
        low = min(low, keys[d])
        high = max(high, keys[d])
    return np.int64(low), np.int64(high)


@inner
def _top_level(keys, k, guess):
    """Return level and ties: the k largest are the keys above level, and the first `ties` of those
    equal to it.

    The search tries `guess` (>= 0) first. It goes on from there in growing steps until the level
    lies between two known ones, and then halves the interval.
    """
    if k == keys.size:
        return np.int64(-1), np.int64(0)
    low, high, above_high = np.int64(-1), np.int64(_MAGNITUDE), 0
    middle, step, direction = min(np.int64(guess), high - 1), np.int64(1 << 20), 0
    while high - low > 1:  # k or more keys are above low, fewer than k above high
        above = _num_above(keys, np.int32(middle))
        if above == k:
            return middle, np.int64(0)
        if above > k:
            low, side = middle, 1
        else:
            high, above_high, side = middle, above, -1
        if direction == 0:
            smallest, largest = _bounds(keys)
            low, high, direction = max(low, smallest - 1), min(high, largest), side
        middle = (low + high) >> 1
        if side == direction and step > 0:
            away = low + step if side > 0 else high - step
            middle, step = (away, step * 2) if low < away < high else (middle, 0)
        else:
            step = 0
    return high, np.int64(k - above_high)


@inner(forceinline=True)
def _mark(keys, level, ties, flags):
    for d in range(keys.size):
        flags[d] = np.uint8(keys[d] > level)
    if ties > 0:
        for d in range(keys.size):
            if keys[d] == level and ties > 0:
                flags[d] = 1
                ties -= 1


@inner(forceinline=True)
def _pack_flags(flag_words, bits, place):
    """Pack flags to bits. flag_words: uint64, each with eight flags of 0 or 1 as its bytes."""
    for b in range(flag_words.size):
        packed = (flag_words[b] * np.uint64(0x0102040810204080)) >> np.uint64(56)
        bits[place + b] = np.uint8(packed)


@inner
def select(
    values, words, start, stride, num_rows, k, level, bits, place, keys, flags, flag_words, kept,
    columns, counts,
):  # fmt: skip
    """Note each row's mask, and gather the values that it keeps and their columns; return how many
    values are kept.

    Args:
        words: values as int32.
        keys: [D], scratch.
        flags: [8 N], scratch; flag_words: the same memory as [N] uint64.
    """
    num_kept, dim, level, ties = 0, keys.size, np.int64(level), np.int64(0)
    for i in range(num_rows):
        begin = start + i * stride
        row = words[begin : begin + dim]
        for d in range(dim):
            keys[d] = row[d] & _MAGNITUDE
        if k > 0:
            level, ties = _top_level(keys, k, max(level, 0))
        _mark(keys, np.int32(level), ties, flags)
        _pack_flags(flag_words, bits, place)
        before, row_values = num_kept, values[begin : begin + dim]
        num_kept = gather_columns(row_values, bits, place, kept, columns, num_kept)
        counts[i] = num_kept - before
        place += (dim + 7) // 8
    return num_kept
