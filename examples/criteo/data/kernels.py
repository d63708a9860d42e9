"""The loops over bytes, counts and categories, compiled by numba and kept in __pycache__.

Knows: the text format of a line, sorted arrays. Does not know: files, chunks, which table it is.
They run without the GIL and neither allocate nor raise. Shapes: B bytes of text, L lines in it, N
rows, V categories of a vocabulary, 26 categories of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

NOT_A_DIGIT = 99
NUM_BITS = 16  # of a category, by which find_ids knows where to look
_TAB, _NEWLINE, _MINUS = 9, 10, 45


def _kernel(function: Callable[..., Any]) -> Any:
    """Compile a function; where no cache can be written it is compiled in each process."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)


@_kernel
def parse(text, digits, label, dense, categories, good):  # type: ignore[no-untyped-def]
    """Parse whole lines of 40 fields; return the number of good ones, which come first.

    Args:
        text: [B] uint8, ends with a newline.
        digits: [256] uint8, the value of a digit's byte, or NOT_A_DIGIT.
        label: [L] uint8, out.  dense: [L, 13] float32, out; a missing integer is NaN.
        categories: [L, 26] int64, out; a missing category is -1.
        good: [L] bool, out: which lines are well-formed.
    """
    at, line, row = 0, 0, 0
    while at < len(text):
        ok, field, byte = True, 0, _TAB
        while byte == _TAB:
            start = at
            is_negative = field < 14 and text[at] == _MINUS
            if is_negative:
                at += 1
            first = at
            base = 10 if field < 14 else 16
            value = np.int64(0)
            byte = text[at]
            while byte != _TAB and byte != _NEWLINE:
                digit = digits[byte]
                ok &= digit < base
                value = value * base + digit
                at += 1
                byte = text[at]
            length = at - first
            if field < 14:
                ok &= length <= 18 and not (is_negative and length == 0)
                value = -value if is_negative else value
                if field == 0:
                    ok &= length > 0 and 0 <= value <= 1
                    label[row] = value
                else:
                    dense[row, field - 1] = np.nan if at == start else np.float64(value)
            elif field < 40:
                ok &= length <= 8
                categories[row, field - 14] = -1 if length == 0 else value
            field += 1
            at += 1
        ok &= field == 40
        good[line] = ok
        line += 1
        row += ok
    return row


@_kernel
def to_columns(categories, columns):  # type: ignore[no-untyped-def]
    """Turn rows of categories into columns of 32 bits.

    Args:
        categories: [N, 26] int64; -1 is missing.
        columns: [27, N] uint32, out: the categories, then 26 bits that say which are missing.
    """
    for row in range(categories.shape[0]):
        bits = np.uint32(0)
        for k in range(categories.shape[1]):
            value = categories[row, k]
            if value < 0:
                bits |= np.uint32(1) << np.uint32(k)
                value = 0
            columns[k, row] = value
        columns[categories.shape[1], row] = bits


@_kernel
def merge_counts(values, counts, more, more_counts, limit, merged, total):  # type: ignore[no-untyped-def]
    """Merge two sorted lists of distinct values, and add up counts to at most `limit`.

    Args:
        values, more: [V], [W] uint32, ascending.  counts, more_counts: [V], [W] uint32.
        merged, total: [V + W] uint32, out.
    Returns: how many values there are in `merged`.
    """
    i, j, n = 0, 0, 0
    while i < len(values) or j < len(more):
        is_left = j == len(more) or (i < len(values) and values[i] <= more[j])
        is_right = i == len(values) or (j < len(more) and more[j] <= values[i])
        count = np.int64(0)
        if is_left:
            merged[n] = values[i]
            count += counts[i]
            i += 1
        if is_right:
            merged[n] = more[j]
            count += more_counts[j]
            j += 1
        total[n] = min(count, limit)
        n += 1
    return n


@_kernel
def find_ids(categories, starts, values, first_id, out):  # type: ignore[no-untyped-def]
    """Look values up in a vocabulary.

    Args:
        categories: [V] uint32, ascending.
        starts: [2**NUM_BITS + 1] int64, where the categories of each leading bits start.
        values: [N] uint32.
        first_id: id of the first category.
        out: [N] int32, out: ids; 0 of a value that is not in the vocabulary.
    """
    for row in range(len(values)):
        value = values[row]
        leading = np.int64(value) >> (32 - NUM_BITS)
        low, end = starts[leading], starts[leading + 1]
        high = end
        while low < high:
            middle = (low + high) // 2
            if categories[middle] < value:
                low = middle + 1
            else:
                high = middle
        out[row] = first_id + low if low < end and categories[low] == value else 0
