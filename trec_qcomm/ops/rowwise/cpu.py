"""Row-wise quantization in numba. Same bytes as reference.py.

A group of adjacent segments (ops.adjacent) is read twice: once for each row's smallest and largest
value, once to quantize. Rows that hold NaN or inf are read once more. Values are compared by
integer keys that are monotone in the float. LLVM vectorizes these comparisons, unlike float min and
max, and NaN and inf are the extremes. Shapes: T segments in a group, n rows each.
"""

import numpy as np
import torch

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.adjacent import group_end, largest_group
from trec_qcomm.ops.dispatch import arrays, seed_halves
from trec_qcomm.ops.float16 import half_bits_down, half_bits_up, half_value
from trec_qcomm.ops.rowwise.flushed import coarsest_ordinary, count_flushed

MIN_EXPONENT, MAX_EXPONENT = -114, 162

_KEY_INF = np.int32(0x7F800000)
_KEY_NEG_INF = np.int32(-0x7F800001)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_FLT_MAX = np.float32(3.4028234663852886e38)
# Up to this exponent, y (below 2^24) may become inf: from the largest float32, rounded up, or from
# damaged bytes.
_CLAMPED = -105


def encode(values, segments, payload, at, *, bits, stochastic, seed):
    """Write the segments.

    Returns: the first segment that holds NaN or inf, or -1; and [S] int64, the number of flushed
        values of each, or None if all are 0.
    """
    rows, data = arrays(values.float(), payload)
    counts = np.zeros(segments.num_segments, np.int64)
    where = *segments.arrays, segments.dim, data, at.numpy()
    options = bits, stochastic, segments.first_numbers.numpy(), *seed_halves(seed), counts
    nonfinite = _encode(rows, *where, *options)
    return nonfinite, torch.from_numpy(counts) if counts.any() else None


def decode(encoded, segments, out, *, bits):
    """Write the rows; return the first segment with an exponent that no encoder writes, or -1.

    Rows of 16 bits are decoded in float32; a finite value beyond their largest one becomes it.
    """
    wide = out.float()
    data, rows = arrays(encoded.payload, wide)
    bad = _decode(data, encoded.at.numpy(), *segments.arrays, segments.dim, rows, bits)
    if wide is not out:
        largest = torch.finfo(out.dtype).max
        out.copy_(torch.where(wide.isinf(), wide, wide.clamp(-largest, largest)))
    return bad


def decode_sum(encoded, segments, out, *, bits, held_at):
    """Write the sums; return the first segment of all parts with a wrong exponent, or -1."""
    from trec_qcomm.ops.rowwise import cpu_sum

    data, sums = arrays(encoded.payload, out)
    num_segments = segments.num_segments
    at = encoded.at.numpy().reshape(len(encoded.at) // max(num_segments, 1), num_segments)
    layout = *segments.arrays, segments.dim
    return cpu_sum.decode_sum(data, at, *layout, sums, bits, held_at)


@inner(forceinline=True)
def value_of(key):
    """Return the float32 of a key."""
    return np.int32(key ^ ((key >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)


@inner(forceinline=True)
def key_range(words):
    """Return the smallest and the largest key of a row's int32 bits."""
    lo, hi = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for d in range(words.size):
        key = words[d] ^ ((words[d] >> np.int32(31)) & np.int32(0x7FFFFFFF))
        lo = min(lo, key)
        hi = max(hi, key)
    return lo, hi


@inner
def finite_range(row):
    """Return the lowest and the highest of a row's finite values; 0 and 0 if it has none."""
    smallest, largest = np.float32(np.inf), np.float32(-np.inf)
    for d in range(row.size):
        if np.isfinite(row[d]):
            smallest = min(smallest, row[d])
            largest = max(largest, row[d])
    if smallest > largest:
        return np.float32(0), np.float32(0)
    return smallest, largest


@inner
def exponent_of(amax):
    """Return k such that amax * 2^k lies in [2^13, 2^14); 0 for 0."""
    if amax == 0:
        return np.int64(0)
    bits = np.int64(np.float32(amax).view(np.uint32) & _MAGNITUDE)
    if bits >= 1 << 23:
        return np.int64(13) - ((bits >> 23) - 127)
    k = np.int64(13 + 149)  # a denormal: bits is the value in units of 2^-149
    while bits > 1:
        bits >>= 1
        k -= 1
    return k


@inner(forceinline=True)
def _power_of_two(k):
    """Return 2^k as float32, for -126 <= k <= 127."""
    return np.int32(np.int32(k + 127) << np.int32(23)).view(np.float32)


@inner(forceinline=True)
def factors_of(k):
    """Return first and second such that x * 2^k == x * first * second, for |k| <= 252.

    The multiplication that may leave the normal range is the second.
    """
    near = min(max(k, -126), 126)
    main, rest = _power_of_two(near), _power_of_two(k - near)
    return (rest, main) if k < 0 else (main, rest)


@inner(forceinline=True)
def dither(number, seed_low, seed_high):
    """Return the dither in [0, 1) of the value of this number, as reference.dither defines it."""
    h = np.uint32(np.uint32(number) + seed_low)
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D))
    h = np.uint32(h ^ seed_high)
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B))
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(16))) >> np.uint32(8))
    return np.float32(np.int32(h)) * np.float32(2.0**-24)


@inner(forceinline=True)
def quantize(values, at, dim, first, second, low, inverse, top, q):
    """Write the codes of a row, rounded to nearest."""
    for d in range(dim):
        y = np.float32(values[at + np.uint64(d)] * first) * second
        t = np.float32(np.float32(y - low) * inverse) + np.float32(0.5)
        q[d] = np.uint8(min(np.int32(t), top))


@inner(forceinline=True)
def quantize_stochastic(
    values, at, dim, first, second, low, inverse, top, q, number, seed_low, seed_high
):
    """Write the codes of a row, rounded by the dither of their numbers."""
    for d in range(dim):
        y = np.float32(values[at + np.uint64(d)] * first) * second
        u = dither(number + np.uint32(d), seed_low, seed_high)
        t = np.float32(np.float32(y - low) * inverse) + u
        q[d] = np.uint8(min(np.int32(t), top))


@inner(forceinline=True)
def pack(q, bits, packed, at, width):
    """Write a row's codes, lowest bits first. q: codes, zero-padded to whole bytes."""
    if bits == 8:
        for j in range(width):
            packed[at + np.uint64(j)] = q[j]
    elif bits == 4:
        for j in range(width):
            packed[at + np.uint64(j)] = q[2 * j] | np.uint8(q[2 * j + 1] << np.uint8(4))
    else:
        for j in range(width):
            low = q[4 * j] | np.uint8(q[4 * j + 1] << np.uint8(2))
            high = q[4 * j + 2] | np.uint8(q[4 * j + 3] << np.uint8(2))
            packed[at + np.uint64(j)] = low | np.uint8(high << np.uint8(4))


@inner(forceinline=True)
def unpack(packed, at, width, bits, q):
    """Read a row's codes into q, which has room for a multiple of 4."""
    if bits == 8:
        for j in range(width):
            q[j] = packed[at + np.uint64(j)]
    elif bits == 4:
        for j in range(width):
            byte = packed[at + np.uint64(j)]
            q[2 * j] = byte & np.uint8(15)
            q[2 * j + 1] = byte >> np.uint8(4)
    else:
        for j in range(width):
            byte = packed[at + np.uint64(j)]
            q[4 * j] = byte & np.uint8(3)
            q[4 * j + 1] = (byte >> np.uint8(2)) & np.uint8(3)
            q[4 * j + 2] = (byte >> np.uint8(4)) & np.uint8(3)
            q[4 * j + 3] = byte >> np.uint8(6)


@inner
def mark_nonfinite(values, at, dim, top, q):
    """Write the codes of a row's NaN and inf."""
    for d in range(dim):
        value = values[at + np.uint64(d)]
        if np.isnan(value):
            q[d] = top
        elif value == np.float32(np.inf):
            q[d] = top - 2
        elif value == np.float32(-np.inf):
            q[d] = top - 1


@inner(forceinline=True)
def _grid(lo, hi, finite, top):
    """Return low, scale and the largest code of a row whose scaled values lie in lo..hi."""
    levels = top if finite else top - 3
    if levels == 0:
        middle = np.float32(lo * np.float32(0.5)) + np.float32(hi * np.float32(0.5))
        return half_bits_down(middle), np.uint16(0), levels
    low = half_bits_down(lo)
    width = np.float32(hi - half_value(low))
    return low, half_bits_up(np.float32(width / np.float32(levels))), levels


@inner
def _scan(values, words, start, stride, dim, lows, highs, finite, amax):
    """Find the range of every row of a group, and the largest finite magnitude of each segment.

    The first loop writes wrong ranges for rows with NaN or inf; the second replaces them.

    Args: words: values as int32.  start: [T].  lows, highs, finite: [T, n], written.
        amax: [T], written.
    """
    amax[:] = 0
    all_finite = True
    for i in range(lows.shape[1]):
        for t in range(start.size):
            begin = start[t] + i * stride
            lo, hi = key_range(words[begin : begin + dim])
            finite[t, i] = (lo > _KEY_NEG_INF) & (hi < _KEY_INF)
            lows[t, i], highs[t, i] = value_of(lo), value_of(hi)
            magnitude = max(-lows[t, i], highs[t, i])
            amax[t] = max(amax[t], magnitude if finite[t, i] else np.float32(0))
            all_finite &= finite[t, i]
    if all_finite:
        return
    for i in range(lows.shape[1]):
        for t in range(start.size):
            if not finite[t, i]:
                begin = start[t] + i * stride
                lows[t, i], highs[t, i] = finite_range(values[begin : begin + dim])
                amax[t] = max(amax[t], max(-lows[t, i], highs[t, i]))


@inner
def grids(first, second, top, lows, highs, finite, low_bits, scale_bits, inverses, levels):
    """Write each row's low, scale and number of levels, [n]; `lows` becomes the decoded lows.

    It is a separate loop, so that the latencies of the rows overlap. Inside `_codes` it would cost
    14 of 46 ns for a row of 64 values.
    """
    for i in range(lows.size):
        lo = np.float32(lows[i] * first) * second
        hi = np.float32(highs[i] * first) * second
        low_bits[i], scale_bits[i], levels[i] = _grid(lo, hi, finite[i], top)
        scale = half_value(scale_bits[i])
        lows[i] = half_value(low_bits[i])
        inverses[i] = np.float32(1) / scale if scale > 0 else np.float32(0)
        if not finite[i]:
            scale_bits[i] |= np.uint16(0x8000)


@inner
def _codes(
    values, start, stride, dim, factors, lows, inverses, levels, finite, payload, codes_at, bits,
    stochastic, number, seed_low, seed_high, look_below, flushed,
):  # fmt: skip
    """Quantize and pack every row of a group.

    Args: codes_at, number, look_below: [T].  factors: [T, 2].  flushed: [T] int64, raised.
    """
    top = (1 << bits) - 1
    width = (dim * bits + 7) // 8
    q = np.zeros(dim + 4, np.uint8)  # zero beyond dim: the padding of a row's last byte
    for i in range(lows.shape[1]):
        for t in range(start.size):
            begin, place = np.uint64(start[t] + i * stride), np.uint64(codes_at[t] + i * width)
            first, second = factors[t, 0], factors[t, 1]
            low, inverse, level = lows[t, i], inverses[t, i], levels[t, i]
            if stochastic:
                first_number = np.uint32(number[t] + i * dim)
                quantize_stochastic(
                    values, begin, dim, first, second, low, inverse, level, q, first_number,
                    seed_low, seed_high,
                )  # fmt: skip
            else:
                quantize(values, begin, dim, first, second, low, inverse, level, q)
            if not finite[t, i]:
                mark_nonfinite(values, begin, dim, top, q)
            if 0 < inverse <= look_below[t]:
                flushed[t] += count_flushed(values, begin, dim, first, second, inverse)
            pack(q, bits, payload, place, width)


@kernel
def _encode(
    values, offsets, start, stride, dim, payload, at, bits, stochastic, numbers, seed_low,
    seed_high, flushed,
):  # fmt: skip
    """Write the segments; return the first one that holds NaN or inf, or -1.

    Args: numbers: [S], the number of each segment's first value, for the dither.
        flushed: [S] int64, zeros, which become the number of flushed values.
    """
    most_segments, most_rows = largest_group(offsets, start, stride, dim)
    lows, highs = np.empty(most_rows, np.float32), np.empty(most_rows, np.float32)
    inverses, levels = np.empty(most_rows, np.float32), np.empty(most_rows, np.int32)
    finite = np.empty(most_rows, np.bool_)
    amax, factors = np.empty(most_segments, np.float32), np.empty((most_segments, 2), np.float32)
    look_below = np.empty(most_segments, np.float32)
    width = (dim * bits + 7) // 8
    words, first_nonfinite, begin = values.view(np.int32), -1, 0
    while begin < start.size:
        end = group_end(begin, offsets, start, stride, dim)
        n = offsets[begin + 1] - offsets[begin]
        num, shape = (end - begin) * n, (end - begin, n)
        group_lows, group_highs = lows[:num].reshape(shape), highs[:num].reshape(shape)
        group_inverses, group_levels = inverses[:num].reshape(shape), levels[:num].reshape(shape)
        group_finite = finite[:num].reshape(shape)
        starts = start[begin:end]
        _scan(
            values, words, starts, stride[begin], dim, group_lows, group_highs, group_finite, amax
        )
        for t in range(end - begin):
            k = exponent_of(amax[t])
            factors[t, 0], factors[t, 1] = factors_of(k)
            size = 8 + n * (4 + width)
            data = payload[at[begin + t] : at[begin + t] + (size + 7) // 8 * 8]
            data[:8] = 0
            data[size:] = 0
            data[:2].view(np.int16)[0] = k
            grids(
                factors[t, 0], factors[t, 1], (1 << bits) - 1, group_lows[t], group_highs[t],
                group_finite[t], data[8 + 2 * n : 8 + 4 * n].view(np.uint16),
                data[8 : 8 + 2 * n].view(np.uint16), group_inverses[t], group_levels[t],
            )  # fmt: skip
            look_below[t] = coarsest_ordinary(
                values, starts[t], stride[begin], dim, factors[t, 0], factors[t, 1],
                group_inverses[t],
            )  # fmt: skip
            if first_nonfinite < 0 and not group_finite[t].all():
                first_nonfinite = begin + t
        _codes(
            values, starts, stride[begin], dim, factors, group_lows, group_inverses, group_levels,
            group_finite, payload, at[begin:end] + (8 + 4 * n), bits, stochastic,
            numbers[begin:end], seed_low, seed_high, look_below, flushed[begin:end],
        )  # fmt: skip
        begin = end
    return first_nonfinite


@inner
def scaling(halves, at):
    """Return three facts of the segment that begins at `at`.

    They are: whether encoders write such an exponent, the two factors of its values, and whether
    the values may be beyond the largest float32.
    """
    k = np.int64(np.int16(halves[at // 2]))
    first, second = factors_of(-k)
    return MIN_EXPONENT <= k <= MAX_EXPONENT, first, second, k <= _CLAMPED


@inner
def _unmark_nonfinite(q, top, out, at, dim):
    for d in range(dim):
        if q[d] == top - 2:
            out[at + np.uint64(d)] = np.inf
        elif q[d] == top - 1:
            out[at + np.uint64(d)] = -np.inf
        elif q[d] == top:
            out[at + np.uint64(d)] = np.nan


@inner(forceinline=True)
def decode_row(payload, halves, at, i, n, width, factors, clamp, begin, dim, out, bits, q):
    """Decode row i of the n rows of a segment to out[begin:].

    Args: at: where the segment begins.  factors: [2].  q: memory for codes.
    """
    place = np.uint64(at + 8 + 4 * n + i * width)
    unpack(payload, place, width, bits, q)
    scale_bits = halves[at // 2 + 4 + i]
    scale = half_value(scale_bits & np.uint16(0x7FFF))
    low = half_value(halves[at // 2 + 4 + n + i])
    first, second = factors[0], factors[1]
    for d in range(dim):
        y = np.float32(np.float32(np.int32(q[d])) * scale) + low
        out[begin + np.uint64(d)] = np.float32(y * first) * second
    if clamp:
        for d in range(dim):
            y = np.float32(np.float32(np.int32(q[d])) * scale) + low
            if np.isfinite(y):
                x = out[begin + np.uint64(d)]
                out[begin + np.uint64(d)] = min(max(x, -_FLT_MAX), _FLT_MAX)
    if scale_bits & np.uint16(0x8000):
        _unmark_nonfinite(q, (1 << bits) - 1, out, begin, dim)


@inner
def _rows(payload, halves, at, n, factors, clamp, start, stride, dim, out, bits, q):
    """Decode every row of a group. halves: payload as [W / 2] uint16.  factors: [T, 2]."""
    width = (dim * bits + 7) // 8
    for i in range(n):
        for t in range(start.size):
            begin = np.uint64(start[t] + i * stride)
            decode_row(
                payload, halves, at[t], i, n, width, factors[t], clamp[t], begin, dim, out, bits, q
            )


@kernel
def _decode(payload, at, offsets, start, stride, dim, out, bits):
    """Write the rows; return the first segment with an exponent that no encoder writes, or -1."""
    most_segments, _ = largest_group(offsets, start, stride, dim)
    factors, clamp = np.empty((most_segments, 2), np.float32), np.empty(most_segments, np.bool_)
    halves = payload[: payload.size // 2 * 2].view(np.uint16)
    q = np.empty(dim + 4, np.uint8)
    begin = 0
    while begin < start.size:
        end = group_end(begin, offsets, start, stride, dim)
        for t in range(end - begin):
            is_good, factors[t, 0], factors[t, 1], clamp[t] = scaling(halves, at[begin + t])
            if not is_good:
                return begin + t
        n = offsets[begin + 1] - offsets[begin]
        _rows(
            payload, halves, at[begin:end], n, factors, clamp, start[begin:end], stride[begin],
            dim, out, bits, q,
        )  # fmt: skip
        begin = end
    return -1
