"""Row-wise quantization in numba. Same bytes as reference.py.

Rows of adjacent segments (ops.adjacent) are encoded some at a time: first the smallest and largest
value of each, then the headers, then the codes, while the rows are in the cache. Values are
compared by integer keys that are monotone in the float. LLVM vectorizes these comparisons, unlike
float min and max, and NaN and inf are the extremes. Shapes: T segments in a group, n rows each.
"""

import numpy as np
import torch

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.adjacent import group_end, largest_group
from trec_qcomm.ops.dispatch import arrays, seed_halves
from trec_qcomm.ops.rowwise.flushed import count_flushed
from trec_qcomm.ops.rowwise.headers import exponent_of, header_of, is_huge, low_of, scale_of
from trec_qcomm.ops.rowwise.reference import HUGE, MARK, MIN_EXPONENT, write_rounded

_KEY_INF = np.int32(0x7F800000)
_KEY_NEG_INF = np.int32(-0x7F800001)
_FLT_MAX = np.float32(3.4028234663852886e38)
_FLT_MIN = np.float32(2.0**-126)  # no scale is below; LLVM must see that none is 0
_ROWS = 128  # that are encoded at a time


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
    """Write the rows; return the first segment with an exponent that no encoder writes, or -1."""
    wide = out.float()
    data, rows = arrays(encoded.payload, wide)
    bad = _decode(data, encoded.at.numpy(), *segments.arrays, segments.dim, rows, bits)
    if wide is not out:
        write_rounded(wide, out)
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
def key_range(words, at, dim):
    """Return the smallest and the largest key of a row's int32 bits, words[at : at + dim]."""
    lo, hi = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for d in range(dim):
        word = words[at + np.uint64(d)]
        key = np.int32(word ^ np.int32(np.int32(word >> np.int32(31)) & np.int32(0x7FFFFFFF)))
        lo = min(lo, key)
        hi = max(hi, key)
    return lo, hi


@inner
def _finite_range(row):
    """Return the lowest and the highest of a row's finite values; 0 and 0 if it has none."""
    smallest, largest = np.float32(np.inf), np.float32(-np.inf)
    for d in range(row.size):
        if np.isfinite(row[d]):
            smallest = min(smallest, row[d])
            largest = max(largest, row[d])
    if smallest > largest:
        return np.float32(0), np.float32(0)
    return smallest, largest


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
def _quantize(values, at, dim, factor, low, inverse, top, q):
    """Write the codes of a row, rounded to nearest."""
    for d in range(dim):
        above = np.float32(values[at + np.uint64(d)] * factor) - low
        t = np.float32(above * inverse) + np.float32(0.5)
        q[d] = np.uint8(min(np.int32(t), top))


@inner(forceinline=True)
def _quantize_stochastic(
    values, at, dim, factor, low, inverse, top, q, number, seed_low, seed_high
):
    """Write the codes of a row, rounded by the dither of their numbers."""
    for d in range(dim):
        above = np.float32(values[at + np.uint64(d)] * factor) - low
        u = dither(number + np.uint32(d), seed_low, seed_high)
        t = np.float32(above * inverse) + u
        q[d] = np.uint8(min(np.int32(t), top))


@inner(forceinline=True)
def _pack(q, bits, packed, at, width):
    """Write a row's codes, lowest bits first. q: codes, zero-padded."""
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
def _unpack(packed, at, width, bits, q):
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
def _mark_nonfinite(values, at, dim, top, q):
    """Write the codes of a row's NaN and inf."""
    for d in range(dim):
        value = values[at + np.uint64(d)]
        if np.isnan(value):
            q[d] = top
        elif value == np.float32(np.inf):
            q[d] = top - 2
        elif value == np.float32(-np.inf):
            q[d] = top - 1


@inner
def _scan(values, words, start, stride, dim, begin, end, lows, highs, finite):
    """Find the range of the finite values of rows begin..end - 1 of every segment of a group.

    Args: words: values as int32.  start: [T].  lows, highs, finite: written, row by row.
    """
    place = 0
    for i in range(begin, end):
        for t in range(start.size):
            at = start[t] + i * stride
            lo, hi = key_range(words, np.uint64(at), dim)
            finite[place] = (lo > _KEY_NEG_INF) & (hi < _KEY_INF)
            lows[place], highs[place] = value_of(lo), value_of(hi)
            if not finite[place]:
                lows[place], highs[place] = _finite_range(values[at : at + dim])
            place += 1


@inner
def _grids(lows, highs, finite, num_rows, bits, headers, inverses, factors):
    """Write each row's header, and what quantizes it; `lows` becomes the decoded lows.

    It is a separate loop, so that the latencies of the rows overlap.
    """
    for k in range(num_rows):
        headers[k] = header_of(lows[k], highs[k], finite[k], bits)
    for k in range(num_rows):
        header = headers[k]
        lows[k] = low_of(header)
        factors[k] = np.float32(0.25) if is_huge(header) else np.float32(1)
        inverses[k] = np.float32(1) / max(scale_of(header, bits), _FLT_MIN)
    if bits == 2:
        for k in range(num_rows):
            if not finite[k]:
                inverses[k] = 0  # one code is left


@kernel
def _encode(
    values, offsets, start, stride, dim, payload, at, bits, stochastic, numbers, seed_low,
    seed_high, flushed,
):  # fmt: skip
    """Write the segments; return the first one that holds NaN or inf, or -1.

    Args: numbers: [S], the number of each segment's first value, for the dither.
        flushed: [S] int64, zeros, which become the number of flushed values.
    """
    most_segments = largest_group(offsets, start, stride, dim)
    most_rows = max(_ROWS, most_segments)
    lows, highs = np.empty(most_rows, np.float32), np.empty(most_rows, np.float32)
    headers, finite = np.empty(most_rows, np.int32), np.empty(most_rows, np.bool_)
    factors, inverses = np.empty(most_rows, np.float32), np.empty(most_rows, np.float32)
    top, width = (1 << bits) - 1, (dim * bits + 7) // 8
    q = np.zeros(dim + 4, np.uint8)  # zero beyond dim: the padding of a row's last byte
    words = values.view(np.int32)
    heads = payload[: payload.size // 4 * 4].view(np.int32)
    first_nonfinite, begin = start.size, 0
    while begin < start.size:
        end = group_end(begin, offsets, start, stride, dim)
        n, step, starts = offsets[begin + 1] - offsets[begin], stride[begin], start[begin:end]
        num_rows = max(1, _ROWS // (end - begin))
        for i in range(0, n, num_rows):
            last = min(n, i + num_rows)
            _scan(values, words, starts, step, dim, i, last, lows, highs, finite)
            _grids(
                lows, highs, finite, (last - i) * (end - begin), bits, headers, inverses, factors
            )
            place = 0
            for row in range(i, last):
                for s in range(begin, end):
                    source = np.uint64(start[s] + row * step)
                    heads[(at[s] >> 2) + row] = headers[place]
                    low, factor, inverse = lows[place], factors[place], inverses[place]
                    level = np.int32(top if finite[place] else top - 3)
                    if stochastic:
                        _quantize_stochastic(
                            values, source, dim, factor, low, inverse, level, q,
                            np.uint32(numbers[s] + row * dim), seed_low, seed_high,
                        )  # fmt: skip
                    else:
                        _quantize(values, source, dim, factor, low, inverse, level, q)
                    if not finite[place]:
                        _mark_nonfinite(values, source, dim, top, q)
                        first_nonfinite = min(first_nonfinite, s)
                    _pack(q, bits, payload, np.uint64(at[s] + 4 * n + row * width), width)
                    place += 1
        for s in range(begin, end):
            size = n * (4 + width)
            payload[at[s] + size : at[s] + (size + 7) // 8 * 8] = 0
            rows_heads = heads[at[s] // 4 : at[s] // 4 + n]
            flushed[s] = count_flushed(values, start[s], step, dim, rows_heads, bits)
        begin = end
    return first_nonfinite if first_nonfinite < start.size else -1


@inner
def _unmark_nonfinite(q, top, out, at, dim):
    for d in range(dim):
        code = q[d]
        if code == top - 2:
            out[at + np.uint64(d)] = np.inf
        elif code == top - 1:
            out[at + np.uint64(d)] = -np.inf
        elif code == top:
            out[at + np.uint64(d)] = np.nan


@inner(forceinline=True)
def decode_row(payload, heads, at, i, n, width, begin, dim, out, bits, q):
    """Decode row i of the n rows of a segment to out[begin:].

    Args: heads: payload as int32.  at: where the segment begins.  q: memory for codes.
    """
    _unpack(payload, np.uint64(at + 4 * n + i * width), width, bits, q)
    head = heads[(at >> 2) + i]
    low, scale = low_of(head), scale_of(head, bits)
    factor = np.float32(4) if is_huge(head) else np.float32(1)
    for d in range(dim):
        y = np.float32(np.float32(np.int32(q[d])) * scale) + low
        out[begin + np.uint64(d)] = np.float32(y * factor)
    if exponent_of(head) >= HUGE:  # may be beyond the largest float32
        for d in range(dim):
            x = out[begin + np.uint64(d)]
            out[begin + np.uint64(d)] = min(max(x, -_FLT_MAX), _FLT_MAX)
    if head & MARK:
        _unmark_nonfinite(q, (1 << bits) - 1, out, begin, dim)


@inner
def is_damaged(heads, at, n):
    """Return whether a segment of n rows has an exponent that no encoder writes."""
    damaged = False
    for i in range(at // 4, at // 4 + n):
        damaged |= exponent_of(heads[i]) < MIN_EXPONENT
    return damaged


@kernel
def _decode(payload, at, offsets, start, stride, dim, out, bits):
    """Write the rows; return the first segment with an exponent that no encoder writes, or -1."""
    heads = payload[: payload.size // 4 * 4].view(np.int32)
    q = np.empty(dim + 4, np.uint8)
    width, begin = (dim * bits + 7) // 8, 0
    while begin < start.size:
        end = group_end(begin, offsets, start, stride, dim)
        n = offsets[begin + 1] - offsets[begin]
        for s in range(begin, end):
            if is_damaged(heads, at[s], n):
                return s
        for i in range(n):
            for s in range(begin, end):
                to = np.uint64(start[s] + i * stride[begin])
                decode_row(payload, heads, at[s], i, n, width, to, dim, out, bits, q)
        begin = end
    return -1
