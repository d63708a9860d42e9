"""Cast op in numba. Same bytes as reference.py.

Rows are read and written where they lie, adjacent segments together (ops.adjacent). Rows that lie
one after the other are treated as one long row.
"""

import numpy as np
import torch

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.adjacent import group_end
from trec_qcomm.ops.dispatch import arrays
from trec_qcomm.ops.float16 import bfloat_bits, half_bits, half_value

FP32, FP16, BF16 = 0, 1, 2
_KINDS = {"fp32": FP32, "fp16": FP16, "bf16": BF16}
_KINDS_OF_ROWS = {torch.float32: FP32, torch.float16: FP16, torch.bfloat16: BF16}
_FINITE_MAX = np.uint32(0x7F7FFFFF)
# The smallest float32 magnitude that rounds to inf.
_OVERFLOW_FP16 = np.uint32(0x477FF000)
_OVERFLOW_BF16 = np.uint32(0x7F7F8000)


def encode(values, segments, payload, at, *, dtype):
    """Write the segments.

    Returns: the first segment in which a finite value becomes inf, or -1; and None.
    """
    rows, data = arrays(values, payload)
    where, kind = (*segments.arrays, segments.dim, data, at.numpy()), _KINDS_OF_ROWS[values.dtype]
    if kind == FP32:
        return _encode(rows, *where, _KINDS[dtype]), None
    from trec_qcomm.ops.cast import cpu_16_bit  # which is made of what is here

    return cpu_16_bit.encode(rows, kind, *where, _KINDS[dtype]), None


def decode(encoded, segments, out, *, dtype):
    """Write the rows, in the dtype of `out`."""
    (data, rows), at = arrays(encoded.payload, out), encoded.at.numpy()
    where, kind = (*segments.arrays, segments.dim, rows), _KINDS_OF_ROWS[out.dtype]
    if kind == FP32:
        _decode(data, at, *where, _KINDS[dtype])
    else:
        from trec_qcomm.ops.cast import cpu_16_bit

        cpu_16_bit.decode(data, at, _KINDS[dtype], *where, kind)


def decode_sum(encoded, segments, out, *, dtype, held_at):
    """Write the sums."""
    from trec_qcomm.ops.cast import cpu_sum

    data, sums = arrays(encoded.payload, out)
    num_segments = segments.num_segments
    at = encoded.at.numpy().reshape(len(encoded.at) // max(num_segments, 1), num_segments)
    layout = *segments.arrays, segments.dim
    cpu_sum.decode_sum(data, at, *layout, sums, _KINDS[dtype], held_at)


@inner(forceinline=True)
def _overflows(row, least):
    """Return whether a finite value's magnitude, its bits as an integer, is at least `least`."""
    overflow = False
    for d in range(row.size):
        magnitude = np.uint32(np.float32(row[d]).view(np.uint32) & np.uint32(0x7FFFFFFF))
        overflow |= (magnitude >= least) & (magnitude <= _FINITE_MAX)
    return overflow


@inner(forceinline=True)
def lines(n, stride, dim):
    """Return how many lines to visit and how long each is.

    A line is a row, or all rows if they lie one after the other.
    """
    return (1, n * dim) if stride == dim else (n, dim)


@kernel
def _encode(values, offsets, start, stride, dim, payload, at, kind):
    """Write the segments; return the first in which a finite value becomes inf, or -1."""
    words = values.view(np.uint32)
    words_out = payload[: payload.size // 4 * 4].view(np.uint32)
    halves_out = payload[: payload.size // 2 * 2].view(np.uint16)
    size = 4 if kind == FP32 else 2
    overflows, begin = np.zeros(start.size, np.bool_), 0
    while begin < start.size:
        end = group_end(begin, offsets, start, stride, dim)
        n = offsets[begin + 1] - offsets[begin]
        for s in range(begin, end):
            payload[at[s] + n * dim * size : at[s] + (n * dim * size + 7) // 8 * 8] = 0
        num_lines, length = lines(n, stride[begin], dim)
        for i in range(num_lines):
            for s in range(begin, end):
                first = start[s] + i * stride[s]
                place = at[s] // size + i * length  # in values of the payload
                if kind == FP32:
                    line, to = words[first : first + length], words_out[place : place + length]
                    for d in range(length):
                        to[d] = line[d]
                elif kind == FP16:
                    row, half = values[first : first + length], halves_out[place : place + length]
                    for d in range(length):
                        half[d] = half_bits(row[d])
                    overflows[s] |= _overflows(row, _OVERFLOW_FP16)
                else:
                    row, half = values[first : first + length], halves_out[place : place + length]
                    for d in range(length):
                        half[d] = bfloat_bits(row[d])
                    overflows[s] |= _overflows(row, _OVERFLOW_BF16)
        begin = end
    for s in range(start.size):
        if overflows[s]:
            return s
    return -1


@kernel
def _decode(payload, at, offsets, start, stride, dim, out, kind):
    """Write the float32 rows."""
    words_out = out.view(np.uint32)
    words = payload[: payload.size // 4 * 4].view(np.uint32)
    halves = payload[: payload.size // 2 * 2].view(np.uint16)
    size, begin = 4 if kind == FP32 else 2, 0
    while begin < start.size:
        end = group_end(begin, offsets, start, stride, dim)
        num_lines, length = lines(offsets[begin + 1] - offsets[begin], stride[begin], dim)
        for i in range(num_lines):
            for s in range(begin, end):
                first = start[s] + i * stride[s]
                place = at[s] // size + i * length  # in values of the payload
                if kind == FP32:
                    line, to = words[place : place + length], words_out[first : first + length]
                    for d in range(length):
                        to[d] = line[d]
                elif kind == FP16:
                    half, row = halves[place : place + length], out[first : first + length]
                    for d in range(length):
                        row[d] = half_value(half[d])
                else:
                    half, to = halves[place : place + length], words_out[first : first + length]
                    for d in range(length):
                        to[d] = np.uint32(half[d]) << np.uint32(16)
        begin = end
