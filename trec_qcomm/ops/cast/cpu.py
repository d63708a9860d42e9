"""Cast op in numba. Same bytes as reference.py; rows are read and written where they lie."""

import numpy as np
from numba import njit

from trec_qcomm.ops.half import bfloat_bits, half_bits, half_value

FP32, FP16, BF16 = 0, 1, 2
_FINITE_MAX = np.uint32(0x7F7FFFFF)
# The smallest float32 magnitude that rounds to inf.
_OVERFLOW_FP16 = np.uint32(0x477FF000)
_OVERFLOW_BF16 = np.uint32(0x7F7F8000)


@njit(nogil=True, cache=True)
def encode(values, offsets, start, stride, dim, payload, at, kind):
    """Returns the first segment in which a finite value becomes inf, or -1."""
    itemsize = 4 if kind == FP32 else 2
    least = _OVERFLOW_FP16 if kind == FP16 else _OVERFLOW_BF16
    first_overflow = -1
    for s in range(start.size):
        num_rows = offsets[s + 1] - offsets[s]
        nbytes = num_rows * dim * itemsize
        end = (nbytes + 7) // 8 * 8
        data = payload[at[s] : at[s] + end]
        overflow = False
        for i in range(num_rows):
            row = values[start[s] + i * stride[s] : start[s] + i * stride[s] + dim]
            place = data[i * dim * itemsize : (i + 1) * dim * itemsize]
            if kind == FP32:
                words, out32 = row.view(np.uint32), place.view(np.uint32)
                for d in range(dim):
                    out32[d] = words[d]
                continue
            out = place.view(np.uint16)
            if kind == FP16:
                for d in range(dim):
                    out[d] = half_bits(row[d])
            else:
                for d in range(dim):
                    out[d] = bfloat_bits(row[d])
            for d in range(dim):
                mag = np.uint32(np.float32(row[d]).view(np.uint32) & np.uint32(0x7FFFFFFF))
                overflow |= (mag >= least) & (mag <= _FINITE_MAX)
        data[nbytes:] = 0
        if overflow and first_overflow < 0:
            first_overflow = s
    return first_overflow


@njit(nogil=True, cache=True)
def decode(payload, at, offsets, start, stride, dim, out, kind):
    """Writes the float32 rows."""
    itemsize = 4 if kind == FP32 else 2
    for s in range(start.size):
        num_rows = offsets[s + 1] - offsets[s]
        data = payload[at[s] : at[s] + num_rows * dim * itemsize]
        for i in range(num_rows):
            row = out[start[s] + i * stride[s] : start[s] + i * stride[s] + dim]
            place = data[i * dim * itemsize : (i + 1) * dim * itemsize]
            if kind == FP32:
                words, in32 = row.view(np.uint32), place.view(np.uint32)
                for d in range(dim):
                    words[d] = in32[d]
                continue
            halves = place.view(np.uint16)
            if kind == FP16:
                for d in range(dim):
                    row[d] = half_value(halves[d])
            else:
                words = row.view(np.uint32)
                for d in range(dim):
                    words[d] = np.uint32(halves[d]) << np.uint32(16)
