"""Cast op in numba. Same bytes as reference.py; rows are read and written where they lie,
run by run (ops.runs).
"""

import numpy as np
from numba import njit

from trec_qcomm.ops.half import bfloat_bits, half_bits, half_value
from trec_qcomm.ops.runs import run_end

FP32, FP16, BF16 = 0, 1, 2
_FINITE_MAX = np.uint32(0x7F7FFFFF)
# The smallest float32 magnitude that rounds to inf.
_OVERFLOW_FP16 = np.uint32(0x477FF000)
_OVERFLOW_BF16 = np.uint32(0x7F7F8000)


@njit(inline="always")
def _encode_row(row, place, kind):
    """Returns whether a finite value becomes inf."""
    overflow = False
    if kind == FP32:
        words, out32 = row.view(np.uint32), place.view(np.uint32)
        for d in range(row.size):
            out32[d] = words[d]
        return overflow
    out, least = place.view(np.uint16), _OVERFLOW_BF16
    if kind == FP16:
        least = _OVERFLOW_FP16
        for d in range(row.size):
            out[d] = half_bits(row[d])
    else:
        for d in range(row.size):
            out[d] = bfloat_bits(row[d])
    for d in range(row.size):
        mag = np.uint32(np.float32(row[d]).view(np.uint32) & np.uint32(0x7FFFFFFF))
        overflow |= (mag >= least) & (mag <= _FINITE_MAX)
    return overflow


@njit(inline="always")
def _decode_row(place, row, kind):
    if kind == FP16:
        halves = place.view(np.uint16)
        for d in range(row.size):
            row[d] = half_value(halves[d])
    elif kind == BF16:
        words, halves = row.view(np.uint32), place.view(np.uint16)
        for d in range(row.size):
            words[d] = np.uint32(halves[d]) << np.uint32(16)
    else:
        words, in32 = row.view(np.uint32), place.view(np.uint32)
        for d in range(row.size):
            words[d] = in32[d]


@njit(nogil=True, cache=True)
def encode(values, offsets, start, stride, dim, payload, at, kind):
    """Returns the first segment in which a finite value becomes inf, or -1."""
    width = dim * (4 if kind == FP32 else 2)
    first_overflow, begin = start.size, 0
    while begin < start.size:
        end = run_end(begin, offsets, start, stride, dim)
        n = offsets[begin + 1] - offsets[begin]
        for s in range(begin, end):
            payload[at[s] + n * width : at[s] + (n * width + 7) // 8 * 8] = 0
        for i in range(n):
            for s in range(begin, end):
                row = values[start[s] + i * stride[s] : start[s] + i * stride[s] + dim]
                place = payload[at[s] + i * width : at[s] + (i + 1) * width]
                if _encode_row(row, place, kind):
                    first_overflow = min(first_overflow, s)
        begin = end
    return first_overflow if first_overflow < start.size else -1


@njit(nogil=True, cache=True)
def decode(payload, at, offsets, start, stride, dim, out, kind):
    """Writes the float32 rows."""
    width = dim * (4 if kind == FP32 else 2)
    begin = 0
    while begin < start.size:
        end = run_end(begin, offsets, start, stride, dim)
        for i in range(offsets[begin + 1] - offsets[begin]):
            for s in range(begin, end):
                row = out[start[s] + i * stride[s] : start[s] + i * stride[s] + dim]
                _decode_row(payload[at[s] + i * width : at[s] + (i + 1) * width], row, kind)
        begin = end
