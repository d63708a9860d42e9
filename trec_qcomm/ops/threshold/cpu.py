"""Values above a threshold, in numba. Same bytes as reference.py.

A segment is read once: its kept values are gathered, each with the gap before it, and then stored.
"""

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.sparsify.positions import bit_length, pack, unpack
from trec_qcomm.ops.sparsify.values import (
    FLT_MAX,
    FLT_MIN,
    FP32,
    INT8,
    load_values,
    store_values,
    value_nbytes,
    value_scale,
)

OK, BAD_SIZE, BAD_FORM, BAD_SCALE, BAD_COUNT, BAD_PLACES = 0, 1, 2, 3, 4, 5
BITMAP, MAX_WIDTH = 255, 31
_MAGNITUDE = np.int32(0x7FFFFFFF)
_STRETCH = 32  # values


@inner
def _most_values(offsets, dim):
    most = 0
    for s in range(offsets.size - 1):
        most = max(most, (offsets[s + 1] - offsets[s]) * dim)
    return most


@inner(forceinline=True)
def _any_above(words, at, size, level):
    above = False
    for d in range(size):
        above |= (words[at + np.uint64(d)] & _MAGNITUDE) > level
    return above


@inner
def _select(values, words, start, stride, num_rows, dim, level, kept, gaps):
    """Gather the kept values and their gaps; return how many there are, and all gaps combined by
    OR.

    Where few values are kept, most of the time goes into looking at the others, so they are tested
    a stretch at a time.
    """
    num_kept, bits, last = 0, np.int32(0), -1
    for i in range(num_rows):
        for first in range(0, dim, _STRETCH):
            size = min(_STRETCH, dim - first)
            begin, place = np.uint64(start + i * stride + first), i * dim + first
            if not _any_above(words, begin, size, level):
                continue
            for d in range(size):
                at = begin + np.uint64(d)
                if (words[at] & _MAGNITUDE) > level:
                    kept[num_kept], gaps[num_kept] = values[at], place + d - last - 1
                    bits |= gaps[num_kept]
                    last = place + d
                    num_kept += 1
    return num_kept, bits


@inner
def _write_bitmap(gaps, out):
    out[:], place = 0, -1
    for j in range(gaps.size):
        place += gaps[j] + 1
        out[place // 8] |= np.uint8(1 << (place % 8))


@inner
def _read_bitmap(data, numel, gaps):
    """Read the gaps from a bitmap; return whether exactly `gaps.size` bits are set."""
    count, last = 0, -1
    for place in range(numel):
        if data[place // 8] >> (place % 8) & 1:
            if count == gaps.size:
                return False
            gaps[count], last = place - last - 1, place
            count += 1
    return count == gaps.size


@kernel
def encode(values, offsets, start, stride, dim, payload, at, kind, levels, nbytes):
    """Write the segments. nbytes: [S] int64, written: the size of each."""
    words, most = values.view(np.int32), _most_values(offsets, dim)
    scratch, between = np.empty(most, np.float32), np.empty(most, np.int32)
    for s in range(start.size):
        n = offsets[s + 1] - offsets[s]
        num_kept, bits = _select(
            values, words, start[s], stride[s], n, dim, levels[s], scratch, between
        )  # fmt: skip
        kept, gaps, width = scratch[:num_kept], between[:num_kept], bit_length(bits)
        size, bitmap_size = (num_kept * width + 7) // 8, (n * dim + 7) // 8
        if size > bitmap_size:
            width, size = BITMAP, bitmap_size
        begin = 12 + num_kept * value_nbytes(kind)
        end = begin + size
        nbytes[s] = (end + 7) // 8 * 8
        data = payload[at[s] : at[s] + nbytes[s]]
        data[end:] = 0
        scale = value_scale(kept, kind)
        data[0], data[1], data[2], data[3] = kind, width, 0, 0
        data[4:8].view(np.float32)[0] = scale
        data[8:12].view(np.uint32)[0] = num_kept
        store_values(kept, kind, scale, data[12:begin])
        if width == BITMAP:
            _write_bitmap(gaps, data[begin:end])
        else:
            pack(gaps, width, data[begin:end])


@inner
def _decode_segment(data, numel, scratch, between):
    """Read a segment's values to scratch and gaps to `between`; return what is wrong (BAD_... or
    OK), and how many values there are."""
    if data.size < 12:
        return BAD_SIZE, 0
    kind, width = data[0], data[1]
    if kind > INT8 or (width > MAX_WIDTH and width != BITMAP):
        return BAD_FORM, 0
    scale = data[4:8].view(np.float32)[0]
    if kind != FP32 and not FLT_MIN <= scale <= FLT_MAX:
        return BAD_SCALE, 0
    num_kept = np.int64(data[8:12].view(np.uint32)[0])
    if num_kept > numel:
        return BAD_COUNT, 0
    begin = 12 + num_kept * value_nbytes(kind)
    size = (numel + 7) // 8 if width == BITMAP else (num_kept * np.int64(width) + 7) // 8
    if data.size != (begin + size + 7) // 8 * 8:
        return BAD_SIZE, 0
    gaps = between[:num_kept]
    if width == BITMAP:
        if not _read_bitmap(data[begin : begin + size], numel, gaps):
            return BAD_PLACES, 0
    else:
        unpack(data[begin : begin + size], np.int64(width), gaps)
    place = np.int64(-1)
    for j in range(num_kept):
        place += np.int64(gaps[j]) + 1
    if place >= numel:
        return BAD_PLACES, 0
    load_values(data[12:begin], kind, scale, scratch[:num_kept])
    return OK, num_kept


@kernel
def decode(payload, at, nbytes, offsets, start, stride, dim, out):
    """Write the rows; return what is wrong (BAD_... or OK), and in which segment."""
    most = _most_values(offsets, dim)
    scratch, between = np.empty(most, np.float32), np.empty(most, np.int32)
    for s in range(start.size):
        n = offsets[s + 1] - offsets[s]
        data = payload[at[s] : at[s] + nbytes[s]]
        bad, num_kept = _decode_segment(data, n * dim, scratch, between)
        if bad != OK:
            return bad, s
        for i in range(n):
            out[start[s] + i * stride[s] : start[s] + i * stride[s] + dim] = 0
        place = np.int64(-1)
        for j in range(num_kept):
            place += np.int64(between[j]) + 1
            out[start[s] + place // dim * stride[s] + place % dim] = scratch[j]
    return OK, -1
