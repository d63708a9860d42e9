"""Positions of kept columns, as a bitmap or as packed column numbers, in numba."""

# mypy: ignore-errors

import numpy as np

from trec_qcomm.jit import inner
from trec_qcomm.ops.sparsify.masks import count_masks

BITMAP, COLUMNS, COUNTED_COLUMNS = 0, 1, 2
_ONE = np.uint64(1)


@inner
def bit_length(number):
    """Return the number of bits up to the highest 1; 0 for 0."""
    length = 0
    while number > 0:
        number >>= 1
        length += 1
    return length


@inner(forceinline=True)
def positions_nbytes(form, num_rows, dim, num_kept):
    """Return the size in bytes of the positions of a segment."""
    if form == BITMAP:
        return num_rows * ((dim + 7) // 8)
    nbytes = (num_kept * bit_length(dim - 1) + 7) // 8
    if form == COUNTED_COLUMNS:
        nbytes += (num_rows * bit_length(dim) + 7) // 8
    return nbytes


@inner
def pack(numbers, width, out):
    """Pack numbers of `width` bits each, without gaps. out: exactly the bytes that they take.

    Up to a width of 8, 8 numbers are `width` whole bytes and are made at once: ten times faster
    than one after the other.
    """
    num_grouped = numbers.size // 8 * 8 if width <= 8 else 0
    shift = np.uint64(width)
    for j in range(0, num_grouped, 8):
        word = np.uint64(0)
        for t in range(8):
            word |= np.uint64(numbers[j + t]) << (np.uint64(t) * shift)
        for b in range(width):
            out[j // 8 * width + b] = np.uint8(word >> np.uint64(8 * b))
    at, word, fill = num_grouped // 8 * width, np.uint64(0), np.uint64(0)
    for j in range(num_grouped, numbers.size):
        word |= np.uint64(numbers[j]) << fill
        fill += shift
        while fill >= np.uint64(8):
            out[at] = np.uint8(word)
            word >>= np.uint64(8)
            fill -= np.uint64(8)
            at += 1
    if fill > np.uint64(0):
        out[at] = np.uint8(word)


@inner
def unpack(data, width, numbers):
    """Unpack numbers: the inverse of `pack`. data: exactly the bytes that they take."""
    num_grouped = numbers.size // 8 * 8 if width <= 8 else 0
    shift = np.uint64(width)
    low_bits = (_ONE << shift) - _ONE
    for j in range(0, num_grouped, 8):
        word = np.uint64(0)
        for b in range(width):
            word |= np.uint64(data[j // 8 * width + b]) << np.uint64(8 * b)
        for t in range(8):
            numbers[j + t] = np.int32((word >> (np.uint64(t) * shift)) & low_bits)
    at, word, fill = num_grouped // 8 * width, np.uint64(0), np.uint64(0)
    for j in range(num_grouped, numbers.size):
        while fill < shift:
            word |= np.uint64(data[at]) << fill
            fill += np.uint64(8)
            at += 1
        numbers[j] = np.int32(word & low_bits)
        word >>= shift
        fill -= shift


@inner
def write_columns(columns, counts, dim, form, out):
    """Write packed column numbers, with the rows' counts if `form` says so.

    Args: columns: [K] int32.  counts: [n] int32.  out: exactly the bytes that they take.
    """
    begin = 0
    if form == COUNTED_COLUMNS:
        begin = (counts.size * bit_length(dim) + 7) // 8
        pack(counts, bit_length(dim), out[:begin])
    pack(columns, bit_length(dim - 1), out[begin:])


@inner
def _read_columns(data, counts, dim, form, columns, bits, place):
    """Set the masks; return whether the counts add up and each row's columns increase and exist.

    Args: data: exactly the bytes that they take.  counts: [n], columns: [K], both scratch.
    """
    begin = 0
    if form == COUNTED_COLUMNS:
        begin = (counts.size * bit_length(dim) + 7) // 8
        unpack(data[:begin], bit_length(dim), counts)
    elif counts.size > 0:
        counts[:] = columns.size // counts.size
    unpack(data[begin:], bit_length(dim - 1), columns)
    j = 0
    for i in range(counts.size):
        if counts[i] < 0 or counts[i] > columns.size - j:
            return False
        bits[place : place + (dim + 7) // 8] = 0
        last = -1
        for _ in range(counts[i]):
            d = np.int64(columns[j])
            if d <= last or d >= dim:
                return False
            bits[place + d // 8] |= np.uint8(1 << (d % 8))
            last = d
            j += 1
        place += (dim + 7) // 8
    return j == columns.size


@inner
def read_positions(data, form, dim, counts, columns, bits, place):
    """Set the masks; return whether they keep as many values as there is room for in `columns`."""
    if form != BITMAP:
        return _read_columns(data, counts, dim, form, columns, bits, place)
    bits[place : place + data.size] = data
    return count_masks(bits, place, counts.size, dim) == columns.size
