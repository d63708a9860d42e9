"""Masks of rows, in numba: count kept columns, gather their values, scatter them again.

A mask is read 64 columns at a time, as one word whose lowest set bit is the next column kept.
"""

# mypy: ignore-errors

import numpy as np

from trec_qcomm.jit import inner, kernel

_ONE = np.uint64(1)
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)  # its 64 windows of 6 bits are all different
_LOWEST = np.zeros(64, np.uint8)
_LOWEST[[(0x03F79D71B4CB0A89 << bit & 0xFFFFFFFFFFFFFFFF) >> 58 for bit in range(64)]] = range(64)


@inner(forceinline=True)
def _lowest(word):
    """Return the number of the lowest bit set in a uint64 that is not 0."""
    alone = word & (~word + _ONE)
    return np.int64(_LOWEST[(alone * _DE_BRUIJN) >> np.uint64(58)])


@inner(forceinline=True)
def _num_set(word):
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    pairs = np.uint64(0x3333333333333333)
    word = (word & pairs) + ((word >> np.uint64(2)) & pairs)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@inner(forceinline=True)
def _mask_word(bits, place, first, dim):
    """Return columns first .. first + 63 of the row's mask at `place`; 0 beyond dim."""
    left, word = dim - first, np.uint64(0)
    place += first // 8
    if left >= 64:
        for b in range(8):
            word |= np.uint64(bits[place + b]) << np.uint64(8 * b)
        return word
    for b in range((left + 7) // 8):
        word |= np.uint64(bits[place + b]) << np.uint64(8 * b)
    return word & ((_ONE << np.uint64(left)) - _ONE)


@inner
def count_masks(bits, place, num_rows, dim):
    """Return how many columns the masks of these rows keep."""
    count = 0
    for _ in range(num_rows):
        for first in range(0, dim, 64):
            count += _num_set(_mask_word(bits, place, first, dim))
        place += (dim + 7) // 8
    return count


@kernel
def masked_counts(offsets, dim, bits, mask_at, counts):
    """Count the values that the masks keep in each segment. counts: [S] int64, written."""
    for s in range(mask_at.size):
        counts[s] = count_masks(bits, mask_at[s], offsets[s + 1] - offsets[s], dim)


@inner(forceinline=True)
def gather(row, bits, place, kept, num_kept):
    """Append the values that the mask at `place` keeps to `kept`; return how many are in it."""
    for first in range(0, row.size, 64):
        word = _mask_word(bits, place, first, row.size)
        while word != 0:
            kept[num_kept] = row[first + _lowest(word)]
            num_kept += 1
            word &= word - _ONE
    return num_kept


@inner(forceinline=True)
def gather_columns(row, bits, place, kept, columns, num_kept):
    """Append the values that the mask at `place` keeps to `kept`, and their columns to `columns`;
    return how many are in it."""
    for first in range(0, row.size, 64):
        word = _mask_word(bits, place, first, row.size)
        while word != 0:
            d = first + _lowest(word)
            kept[num_kept], columns[num_kept] = row[d], d
            num_kept += 1
            word &= word - _ONE
    return num_kept


@inner(forceinline=True)
def scatter(row, bits, place, kept, num_kept):
    """Write the next values of `kept` to the columns that the mask at `place` keeps, and 0 to the
    others; return how many have been written. The inverse of `gather`."""
    for d in range(row.size):
        row[d] = np.float32(0)
    for first in range(0, row.size, 64):
        word = _mask_word(bits, place, first, row.size)
        while word != 0:
            row[first + _lowest(word)] = kept[num_kept]
            num_kept += 1
            word &= word - _ONE
    return num_kept
