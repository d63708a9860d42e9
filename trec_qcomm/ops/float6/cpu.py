"""Floats of 6 bits under an exponent a row, in numba. Same bytes as reference.py."""

import numpy as np
from numba import njit

from trec_qcomm.ops.rowwise.cpu import dither, factors_of

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INF = np.int32(0x7F800000)
_FLT_MAX = np.float32(3.4028234663852886e38)
_BIAS = 127
_SIGN = np.int32(32)


@njit(inline="always")
def _largest(words):
    """The largest bits of a magnitude in a row; magnitudes are ordered as their bits are."""
    largest = np.int32(0)
    for d in range(words.size):
        largest = max(largest, words[d] & _MAGNITUDE)
    return largest


@njit(nogil=True, cache=True)
def _largest_finite(words):
    largest = np.int32(0)
    for d in range(words.size):
        magnitude = words[d] & _MAGNITUDE
        if magnitude < _INF:
            largest = max(largest, magnitude)
    return largest


@njit(inline="always")
def _code(x, first, second, u, mantissa_bits, top):
    """See reference.quantize. Of NaN and inf it means nothing."""
    bits = np.float32(np.float32(x * first) * second).view(np.int32)
    magnitude = np.int32(bits & _MAGNITUDE)
    f = max(np.int32((magnitude >> np.int32(23)) - np.int32(127) + top), np.int32(1))
    inverse = np.int32((np.int32(127) + mantissa_bits + top - f) << np.int32(23)).view(np.float32)
    t = np.float32(magnitude.view(np.float32) * inverse)
    code = np.int32((f - np.int32(1)) << mantissa_bits) + np.int32(np.float32(t + u))
    return code + (_SIGN if (bits < 0) & (code > 0) else np.int32(0))


@njit(nogil=True, cache=True)
def _mark_nonfinite(row, infinite, q):
    for d in range(row.size):
        if np.isnan(row[d]):
            q[d] = np.uint8(_SIGN)
        elif np.isinf(row[d]):
            q[d] = np.uint8(infinite if row[d] > 0 else infinite + _SIGN)


@njit(inline="always")
def _pack(q, packed):
    """q: codes, zero-padded to a multiple of 4."""
    whole = packed.size // 3
    for j in range(whole):
        a, b, c, d = q[4 * j], q[4 * j + 1], q[4 * j + 2], q[4 * j + 3]
        packed[3 * j] = np.uint8(a | (b << np.uint8(6)))
        packed[3 * j + 1] = np.uint8((b >> np.uint8(2)) | (c << np.uint8(4)))
        packed[3 * j + 2] = np.uint8((c >> np.uint8(4)) | (d << np.uint8(2)))
    if packed.size > 3 * whole:
        a, b, c = q[4 * whole], q[4 * whole + 1], q[4 * whole + 2]
        packed[3 * whole] = np.uint8(a | (b << np.uint8(6)))
        if packed.size > 3 * whole + 1:
            packed[3 * whole + 1] = np.uint8((b >> np.uint8(2)) | (c << np.uint8(4)))


@njit(inline="always")
def _unpack(packed, q):
    """q: room for codes up to a multiple of 4; those of missing bytes mean nothing."""
    whole = packed.size // 3
    for j in range(whole):
        a, b, c = packed[3 * j], packed[3 * j + 1], packed[3 * j + 2]
        q[4 * j] = a & np.uint8(63)
        q[4 * j + 1] = ((a >> np.uint8(6)) | (b << np.uint8(2))) & np.uint8(63)
        q[4 * j + 2] = ((b >> np.uint8(4)) | (c << np.uint8(4))) & np.uint8(63)
        q[4 * j + 3] = c >> np.uint8(2)
    if packed.size > 3 * whole:
        a = packed[3 * whole]
        b = packed[3 * whole + 1] if packed.size > 3 * whole + 1 else np.uint8(0)
        q[4 * whole] = a & np.uint8(63)
        q[4 * whole + 1] = ((a >> np.uint8(6)) | (b << np.uint8(2))) & np.uint8(63)
        q[4 * whole + 2] = b >> np.uint8(4)


@njit(nogil=True, cache=True)
def encode(
    values, offsets, start, stride, dim, payload, at, nbytes, exponent_bits, stochastic,
    seed_low, seed_high,
):  # fmt: skip
    """nbytes: [S]."""
    mantissa_bits, top = np.int32(5 - exponent_bits), np.int32((1 << exponent_bits) - 1)
    words, width = values.view(np.int32), (6 * dim + 7) // 8
    q = np.zeros(dim + 4, np.uint8)
    for s in range(start.size):
        n = offsets[s + 1] - offsets[s]
        data = payload[at[s] : at[s] + nbytes[s]]
        data[n * (1 + width) :] = 0
        for i in range(n):
            begin = start[s] + i * stride[s]
            row, bits = values[begin : begin + dim], words[begin : begin + dim]
            largest = _largest(bits)
            finite = largest < _INF
            if not finite:
                largest = _largest_finite(bits)
            e = max((largest >> 23) - 126, -126)
            data[i] = np.uint8(e + _BIAS)
            first, second = factors_of(-e)
            if stochastic:
                number = np.uint32((offsets[s] + i) * dim)
                for d in range(dim):
                    u = dither(number + np.uint32(d), seed_low, seed_high)
                    q[d] = np.uint8(_code(row[d], first, second, u, mantissa_bits, top))
            else:
                half = np.float32(0.5)
                for d in range(dim):
                    q[d] = np.uint8(_code(row[d], first, second, half, mantissa_bits, top))
            if not finite:
                _mark_nonfinite(row, (top << mantissa_bits) + 1, q)
            _pack(q, data[n + i * width : n + (i + 1) * width])


@njit(nogil=True, cache=True)
def _meanings(exponent_bits):
    """[64] float32: what each code means where e is 0."""
    mantissa_bits, top = 5 - exponent_bits, (1 << exponent_bits) - 1
    largest = top << mantissa_bits
    meanings = np.full(64, np.nan, np.float32)
    for code in range(largest + 1):
        f = code >> mantissa_bits
        k = code & ((1 << mantissa_bits) - 1)
        if f > 0:
            k += 1 << mantissa_bits
        meanings[code] = np.float32(k) * np.float32(2.0) ** (max(f, 1) - top - mantissa_bits)
        if code > 0:
            meanings[code + 32] = -meanings[code]
    meanings[largest + 1], meanings[largest + 33] = np.inf, -np.inf
    return meanings


@njit(nogil=True, cache=True)
def decode(payload, at, offsets, start, stride, dim, out, exponent_bits):
    """Returns the first segment with an exponent byte of 0, or -1."""
    meanings, width = _meanings(exponent_bits), (6 * dim + 7) // 8
    infinite = (((1 << exponent_bits) - 1) << (5 - exponent_bits)) + 1
    q = np.zeros(dim + 4, np.uint8)
    for s in range(start.size):
        n = offsets[s + 1] - offsets[s]
        data = payload[at[s] : at[s] + n * (1 + width)]
        for i in range(n):
            if data[i] == 0:
                return s
            e = np.int64(data[i]) - _BIAS
            first, second = factors_of(e)
            _unpack(data[n + i * width : n + (i + 1) * width], q)
            begin = start[s] + i * stride[s]
            row = out[begin : begin + dim]
            for d in range(dim):
                row[d] = np.float32(meanings[q[d]] * first) * second
            if e == 128:  # to 2^128 may have been rounded up
                for d in range(dim):
                    if np.isinf(row[d]) and q[d] % 32 != infinite:
                        row[d] = _FLT_MAX if row[d] > 0 else -_FLT_MAX
    return -1
