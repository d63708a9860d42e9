"""Cast op in numba, for rows of float16 and bfloat16. Same bytes as reference.py.

Rows of the message's dtype are copied bit for bit. Others are converted value by value, in
registers. Shapes: values and rows are arrays of their bits, uint16.
"""

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.adjacent import group_end
from trec_qcomm.ops.cast.cpu import FP16, lines
from trec_qcomm.ops.copying import copy
from trec_qcomm.ops.float16 import bfloat_bits, bfloat_value, half_bits, half_value


@inner(forceinline=True)
def _overflows(row, recoded):
    """Return whether a finite bfloat16 of a row is inf as float16."""
    overflow = False
    for d in range(row.size):
        is_inf = (recoded[d] & np.uint16(0x7FFF)) == np.uint16(0x7C00)
        overflow |= is_inf & ((row[d] & np.uint16(0x7FFF)) < np.uint16(0x7F80))
    return overflow


@inner(forceinline=True)
def _recode(row, kind, out, kind_out):
    """Write the bits of a row as the other kind: FP16 or BF16."""
    if kind == kind_out:
        copy(row, out)
    elif kind == FP16:
        for d in range(row.size):
            out[d] = bfloat_bits(half_value(row[d]))
    else:
        for d in range(row.size):
            out[d] = half_bits(bfloat_value(row[d]))


@kernel
def encode(values, kind_of_values, offsets, start, stride, dim, payload, at, kind):
    """Write the segments; return the first in which a finite value becomes inf, or -1."""
    halves = payload[: payload.size // 2 * 2].view(np.uint16)
    overflows, begin = np.zeros(start.size, np.bool_), 0
    while begin < start.size:
        end = group_end(begin, offsets, start, stride, dim)
        n = offsets[begin + 1] - offsets[begin]
        for s in range(begin, end):
            payload[at[s] + n * dim * 2 : at[s] + (n * dim * 2 + 7) // 8 * 8] = 0
        num_lines, length = lines(n, stride[begin], dim)
        for i in range(num_lines):
            for s in range(begin, end):
                first, place = start[s] + i * stride[s], at[s] // 2 + i * length
                row, half = values[first : first + length], halves[place : place + length]
                _recode(row, kind_of_values, half, kind)
                if kind != kind_of_values and kind == FP16:
                    overflows[s] |= _overflows(row, half)
        begin = end
    for s in range(start.size):
        if overflows[s]:
            return s
    return -1


@kernel
def decode(payload, at, kind, offsets, start, stride, dim, out, kind_of_out):
    """Write the rows."""
    halves = payload[: payload.size // 2 * 2].view(np.uint16)
    begin = 0
    while begin < start.size:
        end = group_end(begin, offsets, start, stride, dim)
        num_lines, length = lines(offsets[begin + 1] - offsets[begin], stride[begin], dim)
        for i in range(num_lines):
            for s in range(begin, end):
                first, place = start[s] + i * stride[s], at[s] // 2 + i * length
                half, row = halves[place : place + length], out[first : first + length]
                _recode(half, kind, row, kind_of_out)
        begin = end
