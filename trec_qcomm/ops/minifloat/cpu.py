"""Floats of 6 or 8 bits and one exponent a row, in numba. Same bytes as reference.py."""

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.dispatch import arrays, seed_halves
from trec_qcomm.ops.rowwise.cpu import dither
from trec_qcomm.ops.rowwise.headers import power_of_two
from trec_qcomm.ops.rowwise.reference import write_rounded

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INF = np.int32(0x7F800000)
_FLT_MAX = np.float32(3.4028234663852886e38)
_BIAS = 127
_1, _2 = np.uint64(1), np.uint64(2)


def encode(values, segments, payload, at, *, bits, exponent_bits, stochastic, seed):
    """Write the segments; return -1, because no value is refused."""
    rows, data = arrays(values.float(), payload)
    where = rows, *segments.arrays, segments.dim, data, at.numpy(), segments.first_numbers.numpy()
    _encode(*where, bits, exponent_bits, stochastic, *seed_halves(seed))
    return -1, None


def decode(encoded, segments, out, *, bits, exponent_bits):
    """Write the rows; return the first segment with an exponent byte of 0, or -1."""
    wide = out.float()
    data, rows = arrays(encoded.payload, wide)
    where = data, encoded.at.numpy(), *segments.arrays, segments.dim, rows
    bad = _decode(*where, bits, exponent_bits)
    if wide is not out:
        write_rounded(wide, out)
    return bad


@inner(forceinline=True)
def _factors_of(k):
    """Return first and second such that x * 2^k == x * first * second, for |k| <= 252.

    The multiplication that may leave the normal range is the second.
    """
    near = min(max(k, -126), 126)
    main, rest = power_of_two(near), power_of_two(k - near)
    return (rest, main) if k < 0 else (main, rest)


@inner
def _parameters(bits, exponent_bits):
    """Return M, F and the sign's bit, as reference.parameters does."""
    top = np.int32((1 << exponent_bits) - 1)
    return np.int32(bits - 1 - exponent_bits), top, np.int32(1 << (bits - 1))


@inner(forceinline=True)
def _largest(words, at, dim):
    """Return the bits of a row's largest magnitude; magnitudes are ordered as their bits are."""
    largest = np.int32(0)
    for d in range(dim):
        largest = max(largest, words[at + np.uint64(d)] & _MAGNITUDE)
    return largest


@inner
def _largest_finite(words, at, dim):
    largest = np.int32(0)
    for d in range(dim):
        magnitude = words[at + np.uint64(d)] & _MAGNITUDE
        if magnitude < _INF:
            largest = max(largest, magnitude)
    return largest


@inner(forceinline=True)
def _code(x, first, second, u, mantissa_bits, top, sign):
    """Return the code of a finite value, as reference.quantize defines it.

    numba adds and shifts int32 to int64. LLVM makes it int32 again, twice as many values at a time,
    if the result becomes int32 at once, and a shift is seen to be below 32 (`& 31`).
    """
    bits = np.float32(np.float32(x * first) * second).view(np.int32)
    magnitude = np.int32(bits & _MAGNITUDE)
    f = max(np.int32((magnitude >> np.int32(23)) - np.int32(127) + top), np.int32(1))
    inverse = np.int32((np.int32(127) + mantissa_bits + top - f) << np.int32(23)).view(np.float32)
    t = np.float32(magnitude.view(np.float32) * inverse)
    code = np.int32(((f - np.int32(1)) << (mantissa_bits & 31)) + np.int32(np.float32(t + u)))
    return np.int32(code + (sign if (bits < 0) & (code > 0) else np.int32(0)))


@inner
def _mark_nonfinite(values, at, dim, infinite, sign, q, to):
    for d in range(dim):
        value = values[at + np.uint64(d)]
        if np.isnan(value):
            q[to + np.uint64(d)] = np.uint8(sign)
        elif np.isinf(value):
            q[to + np.uint64(d)] = np.uint8(infinite if value > 0 else infinite + sign)


@inner(forceinline=True)
def _pack(q, packed, at, width):
    """Write a row's codes in 6 bits each. q: codes, zero-padded to a multiple of 4."""
    whole = width // 3
    for j in range(whole):
        a, b, c, d = q[4 * j], q[4 * j + 1], q[4 * j + 2], q[4 * j + 3]
        place = at + np.uint64(3 * j)
        packed[place] = np.uint8(a | (b << np.uint8(6)))
        packed[place + _1] = np.uint8((b >> np.uint8(2)) | (c << np.uint8(4)))
        packed[place + _2] = np.uint8((c >> np.uint8(4)) | (d << np.uint8(2)))
    if width > 3 * whole:
        a, b, c = q[4 * whole], q[4 * whole + 1], q[4 * whole + 2]
        place = at + np.uint64(3 * whole)
        packed[place] = np.uint8(a | (b << np.uint8(6)))
        if width > 3 * whole + 1:
            packed[place + _1] = np.uint8((b >> np.uint8(2)) | (c << np.uint8(4)))


@inner(forceinline=True)
def _unpack(packed, at, width, q):
    """Read a row's codes into q, which has room for a multiple of 4. Codes after the last column
    are arbitrary."""
    whole = width // 3
    for j in range(whole):
        place = at + np.uint64(3 * j)
        a, b, c = packed[place], packed[place + _1], packed[place + _2]
        q[4 * j] = a & np.uint8(63)
        q[4 * j + 1] = ((a >> np.uint8(6)) | (b << np.uint8(2))) & np.uint8(63)
        q[4 * j + 2] = ((b >> np.uint8(4)) | (c << np.uint8(4))) & np.uint8(63)
        q[4 * j + 3] = c >> np.uint8(2)
    if width > 3 * whole:
        place = at + np.uint64(3 * whole)
        a = packed[place]
        b = packed[place + _1] if width > 3 * whole + 1 else np.uint8(0)
        q[4 * whole] = a & np.uint8(63)
        q[4 * whole + 1] = ((a >> np.uint8(6)) | (b << np.uint8(2))) & np.uint8(63)
        q[4 * whole + 2] = b >> np.uint8(4)


@kernel
def _encode(
    values, offsets, start, stride, dim, payload, at, numbers, bits, exponent_bits, stochastic,
    seed_low, seed_high,
):  # fmt: skip
    """Write the segments. Codes of 8 bits are written where they belong, others are packed.

    Args: numbers: [S], the number of each segment's first value, for the dither.
    """
    mantissa_bits, top, sign = _parameters(bits, exponent_bits)
    words, width, is_packed = values.view(np.int32), (bits * dim + 7) // 8, bits < 8
    q = np.zeros(dim + 4, np.uint8) if is_packed else payload
    for s in range(start.size):
        n = offsets[s + 1] - offsets[s]
        codes_at = at[s] + n
        payload[codes_at + n * width : at[s] + (n * (1 + width) + 7) // 8 * 8] = 0
        for i in range(n):
            begin = np.uint64(start[s] + i * stride[s])
            largest = _largest(words, begin, dim)
            finite = largest < _INF
            if not finite:
                largest = _largest_finite(words, begin, dim)
            e = max((largest >> 23) - 126, -126)
            payload[at[s] + i] = np.uint8(e + _BIAS)
            first, second = _factors_of(-e)
            place = np.uint64(codes_at + i * width)
            to = np.uint64(0) if is_packed else place
            if stochastic:
                number = np.uint32(numbers[s] + i * dim)
                for d in range(dim):
                    u = dither(number + np.uint32(d), seed_low, seed_high)
                    x = values[begin + np.uint64(d)]
                    code = _code(x, first, second, u, mantissa_bits, top, sign)
                    q[to + np.uint64(d)] = np.uint8(code)
            else:
                half = np.float32(0.5)
                for d in range(dim):
                    x = values[begin + np.uint64(d)]
                    code = _code(x, first, second, half, mantissa_bits, top, sign)
                    q[to + np.uint64(d)] = np.uint8(code)
            if not finite:
                _mark_nonfinite(values, begin, dim, (top << mantissa_bits) + 1, sign, q, to)
            if is_packed:
                _pack(q, payload, place, width)


@inner(forceinline=True)
def _value(code, mantissa_bits, top, sign):
    """Return the value of a finite value's code under e = 0.

    The bits of the code are moved to where float32 has them. Exponent bits of 0 are first read as
    if they were 1; what that adds is then subtracted.
    """
    magnitude = np.int32(code & np.int32(sign - np.int32(1)))
    subnormal = magnitude < np.int32(1 << mantissa_bits)
    bias = np.int32((np.int32(127) - top + subnormal) << np.int32(23))
    value = np.int32((magnitude << ((23 - mantissa_bits) & 31)) + bias).view(np.float32)
    value -= bias.view(np.float32) if subnormal else np.float32(0)
    return -value if code >= sign else value


@inner
def _unmark_nonfinite(q, source, dim, largest, sign, out, at):
    """Write the values that are not finite: the code largest + 1 is inf; those above it and the
    negative zero are NaN."""
    for d in range(dim):
        code = q[source + np.uint64(d)]
        magnitude = code & (sign - 1)
        if magnitude == largest + 1:
            out[at + np.uint64(d)] = np.inf if code < sign else -np.inf
        elif magnitude > largest or code == sign:
            out[at + np.uint64(d)] = np.nan


@kernel
def _decode(payload, at, offsets, start, stride, dim, out, bits, exponent_bits):
    """Write the rows; return the first segment with an exponent byte of 0, or -1."""
    mantissa_bits, top, sign = _parameters(bits, exponent_bits)
    largest, width, is_packed = top << mantissa_bits, (bits * dim + 7) // 8, bits < 8
    magnitude_bits = np.int32(sign - np.int32(1))
    q = np.zeros(dim + 4, np.uint8) if is_packed else payload
    for s in range(start.size):
        n = offsets[s + 1] - offsets[s]
        for i in range(n):
            exponent = payload[at[s] + i]
            if exponent == 0:
                return s
            e = np.int64(exponent) - _BIAS
            first, second = _factors_of(e)
            place = np.uint64(at[s] + n + i * width)
            source = np.uint64(0) if is_packed else place
            if is_packed:
                _unpack(payload, place, width, q)
            begin, worst = np.uint64(start[s] + i * stride[s]), np.int32(0)
            for d in range(dim):
                code = np.int32(q[source + np.uint64(d)])
                x = np.float32(_value(code, mantissa_bits, top, sign) * first) * second
                out[begin + np.uint64(d)] = x
                worst = max(worst, sign if code == sign else np.int32(code & magnitude_bits))
            if e == 128:  # a value may have been rounded up to 2^128, which is no float32
                for d in range(dim):
                    x = out[begin + np.uint64(d)]
                    out[begin + np.uint64(d)] = min(max(x, -_FLT_MAX), _FLT_MAX)
            if worst > largest:
                _unmark_nonfinite(q, source, dim, largest, sign, out, begin)
    return -1
