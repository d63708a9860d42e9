"""Row-wise quantization of float16 and bfloat16 rows, in numba. Same bytes as reference.py.

A row is widened to float32 when it is read, and rounded when it is written. So only one row at a
time is float32. Shapes: values and rows are arrays of their bits, uint16.
"""

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.float16 import bfloat_bits, bfloat_value, half_bits, half_value
from trec_qcomm.ops.rowwise.cpu import (
    decode_row,
    exponent_of,
    factors_of,
    finite_range,
    grids,
    key_range,
    mark_nonfinite,
    pack,
    quantize,
    quantize_stochastic,
    scaling,
    value_of,
)
from trec_qcomm.ops.rowwise.flushed import count_flushed

_HALF_MAX = np.float32(65504)
_BFLOAT_MAX = np.float32(3.3895313892515355e38)
_INF = np.float32(np.inf)
_KEY_INF = np.int32(0x7F800000)
_KEY_NEG_INF = np.int32(-0x7F800001)


@inner
def _widen(bits, is_half, x):
    """Write a row as float32."""
    if is_half:
        for d in range(x.size):
            x[d] = half_value(bits[d])
    else:
        for d in range(x.size):
            x[d] = bfloat_value(bits[d])


@inner
def _narrow(x, is_half, bits):
    """Write a float32 row in 16 bits. A finite value beyond the largest one becomes it."""
    largest = _HALF_MAX if is_half else _BFLOAT_MAX
    for d in range(x.size):
        if abs(x[d]) != _INF and x[d] == x[d]:
            x[d] = min(max(x[d], -largest), largest)
    if is_half:
        for d in range(x.size):
            bits[d] = half_bits(x[d])
    else:
        for d in range(x.size):
            bits[d] = bfloat_bits(x[d])


@inner
def _scan(values, start, stride, is_half, x, lows, highs, finite):
    """Find the range of every row of a segment; return the largest finite magnitude."""
    amax = np.float32(0)
    for i in range(lows.size):
        begin = start + i * stride
        _widen(values[begin : begin + x.size], is_half, x)
        lo, hi = key_range(x.view(np.int32))
        finite[i] = (lo > _KEY_NEG_INF) & (hi < _KEY_INF)
        if finite[i]:
            lows[i], highs[i] = value_of(lo), value_of(hi)
        else:
            lows[i], highs[i] = finite_range(x)
        amax = max(amax, max(-lows[i], highs[i]))
    return amax


@kernel
def encode(
    values, is_half, offsets, start, stride, dim, payload, at, bits, stochastic, numbers, seed_low,
    seed_high, flushed,
):  # fmt: skip
    """Write the segments; return the first one that holds NaN or inf, or -1.

    Args: is_half: whether values are float16, else bfloat16.  The others are those of cpu.encode.
    """
    most = 0
    for s in range(start.size):
        most = max(most, offsets[s + 1] - offsets[s])
    all_lows, all_highs = np.empty(most, np.float32), np.empty(most, np.float32)
    all_inverses, all_levels = np.empty(most, np.float32), np.empty(most, np.int32)
    all_finite, x, q = (
        np.empty(most, np.bool_),
        np.empty(dim, np.float32),
        np.zeros(dim + 4, np.uint8),
    )
    width, top, first_nonfinite = (dim * bits + 7) // 8, (1 << bits) - 1, -1
    for s in range(start.size):
        n = offsets[s + 1] - offsets[s]
        lows, highs, inverses = all_lows[:n], all_highs[:n], all_inverses[:n]
        levels, finite = all_levels[:n], all_finite[:n]
        k = exponent_of(_scan(values, start[s], stride[s], is_half, x, lows, highs, finite))
        first, second = factors_of(k)
        size = 8 + n * (4 + width)
        data = payload[at[s] : at[s] + (size + 7) // 8 * 8]
        data[:8] = 0
        data[size:] = 0
        data[:2].view(np.int16)[0] = k
        grids(
            first, second, top, lows, highs, finite,
            data[8 + 2 * n : 8 + 4 * n].view(np.uint16), data[8 : 8 + 2 * n].view(np.uint16),
            inverses, levels,
        )  # fmt: skip
        if first_nonfinite < 0 and not finite.all():
            first_nonfinite = s
        zero = np.uint64(0)
        for i in range(n):
            begin = start[s] + i * stride[s]
            _widen(values[begin : begin + dim], is_half, x)
            low, inverse, level = lows[i], inverses[i], levels[i]
            if stochastic:
                number = np.uint32(numbers[s] + i * dim)
                quantize_stochastic(
                    x, zero, dim, first, second, low, inverse, level, q, number, seed_low, seed_high
                )
            else:
                quantize(x, zero, dim, first, second, low, inverse, level, q)
            if not finite[i]:
                mark_nonfinite(x, zero, dim, top, q)
            if inverse > 0:
                flushed[s] += count_flushed(x, zero, dim, first, second, inverse)
            pack(q, bits, payload, np.uint64(at[s] + 8 + 4 * n + i * width), width)
    return first_nonfinite


@kernel
def decode(payload, at, offsets, start, stride, dim, out, is_half, bits):
    """Write the rows; return the first segment with an exponent that no encoder writes, or -1."""
    halves = payload[: payload.size // 2 * 2].view(np.uint16)
    x, q, factors = np.empty(dim, np.float32), np.empty(dim + 4, np.uint8), np.empty(2, np.float32)
    width = (dim * bits + 7) // 8
    for s in range(start.size):
        is_good, factors[0], factors[1], clamp = scaling(halves, at[s])
        if not is_good:
            return s
        n = offsets[s + 1] - offsets[s]
        for i in range(n):
            begin = start[s] + i * stride[s]
            decode_row(
                payload, halves, at[s], i, n, width, factors, clamp, np.uint64(0), dim, x, bits, q
            )
            _narrow(x, is_half, out[begin : begin + dim])
    return -1
