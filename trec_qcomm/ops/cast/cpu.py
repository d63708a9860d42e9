"""Cast op in numba. Same bytes as reference.py; rows are read and written where they lie,
run by run (ops.runs). Rows that lie one behind the other are one long row.
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


@njit(forceinline=True)
def _overflows(row, least):
    """Whether a finite value has a magnitude, as an integer, of at least `least`."""
    overflow = False
    for d in range(row.size):
        magnitude = np.uint32(np.float32(row[d]).view(np.uint32) & np.uint32(0x7FFFFFFF))
        overflow |= (magnitude >= least) & (magnitude <= _FINITE_MAX)
    return overflow


@njit(forceinline=True)
def _lines(n, stride, dim):
    """(number, values) of the lines to visit: rows one behind the other are a single long one."""
    return (1, n * dim) if stride == dim else (n, dim)


@njit(nogil=True, cache=True)
def encode(values, offsets, start, stride, dim, payload, at, kind):
    """Returns the first segment in which a finite value becomes inf, or -1."""
    words, halves = values.view(np.uint32), payload[: payload.size // 2 * 2].view(np.uint16)
    places = payload[: payload.size // 4 * 4].view(np.uint32)
    size = 4 if kind == FP32 else 2
    first_overflow, begin = start.size, 0
    while begin < start.size:
        end = run_end(begin, offsets, start, stride, dim)
        n = offsets[begin + 1] - offsets[begin]
        for s in range(begin, end):
            payload[at[s] + n * dim * size : at[s] + (n * dim * size + 7) // 8 * 8] = 0
        num_lines, length = _lines(n, stride[begin], dim)
        for i in range(num_lines):
            for s in range(begin, end):
                place, first = at[s] // size + i * length, start[s] + i * stride[s]
                if kind == FP32:
                    line, to32 = words[first : first + length], places[place : place + length]
                    for d in range(length):
                        to32[d] = line[d]
                elif kind == FP16:
                    row, to16 = values[first : first + length], halves[place : place + length]
                    for d in range(length):
                        to16[d] = half_bits(row[d])
                    overflow = _overflows(row, _OVERFLOW_FP16)
                    first_overflow = min(first_overflow, s if overflow else start.size)
                else:
                    row, to16 = values[first : first + length], halves[place : place + length]
                    for d in range(length):
                        to16[d] = bfloat_bits(row[d])
                    overflow = _overflows(row, _OVERFLOW_BF16)
                    first_overflow = min(first_overflow, s if overflow else start.size)
        begin = end
    return first_overflow if first_overflow < start.size else -1


@njit(nogil=True, cache=True)
def decode(payload, at, offsets, start, stride, dim, out, kind):
    """Writes the float32 rows."""
    words, halves = out.view(np.uint32), payload[: payload.size // 2 * 2].view(np.uint16)
    places = payload[: payload.size // 4 * 4].view(np.uint32)
    size, begin = 4 if kind == FP32 else 2, 0
    while begin < start.size:
        end = run_end(begin, offsets, start, stride, dim)
        num_lines, length = _lines(offsets[begin + 1] - offsets[begin], stride[begin], dim)
        for i in range(num_lines):
            for s in range(begin, end):
                place, first = at[s] // size + i * length, start[s] + i * stride[s]
                if kind == FP32:
                    line, from32 = words[first : first + length], places[place : place + length]
                    for d in range(length):
                        line[d] = from32[d]
                elif kind == FP16:
                    row, from16 = out[first : first + length], halves[place : place + length]
                    for d in range(length):
                        row[d] = half_value(from16[d])
                else:
                    line, from16 = words[first : first + length], halves[place : place + length]
                    for d in range(length):
                        line[d] = np.uint32(from16[d]) << np.uint32(16)
        begin = end
