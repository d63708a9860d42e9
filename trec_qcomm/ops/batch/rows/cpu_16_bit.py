"""Add rows of float16 and bfloat16 at their places, in numba. Same results as reference.py."""

import numpy as np

from trec_qcomm.jit import kernel
from trec_qcomm.ops.float16 import bfloat_bits, bfloat_value, half_bits, half_value


@kernel
def add(packed, position, offsets, dim, out, is_half):
    """Add the rows to `out`, with one rounding an addition.

    Args:
        packed, out: bits of the values, uint16.
        offsets: [S + 1], the first row of each segment, and the end.
        is_half: whether they are float16, else bfloat16.
    """
    at = 0
    for s in range(dim.size):
        d = dim[s]
        for u in range(offsets[s], offsets[s + 1]):
            row, place = packed[at : at + d], out[position[u] : position[u] + d]
            if is_half:
                for i in range(d):
                    place[i] = half_bits(np.float32(half_value(place[i]) + half_value(row[i])))
            else:
                for i in range(d):
                    total = np.float32(bfloat_value(place[i]) + bfloat_value(row[i]))
                    place[i] = bfloat_bits(total)
            at += d
