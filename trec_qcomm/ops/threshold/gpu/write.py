"""Segments of values above a threshold, written in Triton.

`kept` [C + 1] says how many values all chunks before a chunk keep, so that chunks can be written in
any order. Each lane makes one byte of the places, from the gaps that have bits in it.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.sparsify import reference as sparse
from trec_qcomm.ops.sparsify.gpu.packed_bits import bits_to_bytes, lowest_set, num_set, packed_byte
from trec_qcomm.ops.sparsify.gpu.values import (
    FP32,
    MAGNITUDE,
    raise_largest,
    scale_of,
    store_values,
    value_nbytes,
)
from trec_qcomm.ops.threshold import reference
from trec_qcomm.ops.threshold.gpu.value_chunks import all_places, chunks_of_program, places_of

BITMAP = tl.constexpr(reference.BITMAP)
HEADER = tl.constexpr(sparse.HEADER_NBYTES)


@triton.jit(do_not_specialize=["num_rows"])
def mark(
    values, levels, bitmaps, counts, amax,
    first, offsets, start, stride, at, num_segments, num_rows, dim,
    KIND: tl.constexpr, STEPS: tl.constexpr, CHUNK: tl.constexpr, SEVERAL: tl.constexpr,
    CONTIGUOUS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Mark which values are kept, count them, and find the largest finite magnitude.

    Args:
        bitmaps: written: CHUNK bits for each chunk.
        counts: [C + 1], written: how many values each chunk keeps; the first chunk is number 1.
        amax: [S] int32, raised to the bits of each segment's largest finite magnitude kept.
    """
    chunk, segment, numel, begin = chunks_of_program(
        first, offsets, num_segments, dim, STEPS, CHUNK, SEVERAL
    )
    live = begin < numel
    place, inside = all_places(start, stride, segment, begin, numel, dim, CHUNK, CONTIGUOUS, VECTOR)
    x = tl.load(values + place, mask=inside, other=0)
    keep = inside & ((x & MAGNITUDE) > tl.load(levels + segment).to(tl.int32)[:, None])
    to = (chunk * (CHUNK // 8))[:, None] + tl.arange(0, CHUNK // 8)[None, :]
    tl.store(bitmaps + to, bits_to_bytes(keep, SEVERAL, CHUNK // 8), mask=live[:, None])
    tl.store(counts + chunk + 1, tl.sum(keep.to(tl.int32), 1).to(tl.int64), mask=live)
    if KIND != FP32:
        raise_largest(amax, live, segment, x, keep)


@triton.jit(do_not_specialize=["num_rows"])
def gather(
    values, bitmaps, kept, amax, places, payload, halves, words,
    first, offsets, start, stride, at, num_segments, num_rows, dim,
    KIND: tl.constexpr, STEPS: tl.constexpr, CHUNK: tl.constexpr, SEVERAL: tl.constexpr,
    CONTIGUOUS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Store the kept values, and their places [K] int32 one behind the other.

    A lane has 32 values and in each turn stores one that is kept. Where few are kept there are few
    turns.
    """
    chunk, segment, numel, begin = chunks_of_program(
        first, offsets, num_segments, dim, STEPS, CHUNK, SEVERAL
    )
    lane = tl.arange(0, CHUNK // 32)[None, :]
    word = (chunk * (CHUNK // 32))[:, None] + lane
    word = tl.load(bitmaps + word, mask=(begin < numel)[:, None], other=0)
    count = num_set(word)
    j = tl.load(kept + chunk)[:, None] + tl.cumsum(count, 1) - count
    before = tl.load(kept + tl.load(first + segment))[:, None]
    scale = scale_of(tl.load(amax + segment), KIND)[:, None]
    to = (tl.load(at + segment) + HEADER)[:, None]
    while tl.max(tl.max(count, 1), 0) > 0:
        alone, bit = lowest_set(word)
        f, there = lane * 32 + bit, count > 0
        place = places_of(start, stride, segment, begin, f, dim, CONTIGUOUS)
        x = tl.load(values + place, mask=there, other=0)
        store_values(payload, halves, words, to, j - before, 0, x, scale, there, KIND)
        tl.store(places + j, (begin[:, None] + f).to(tl.int32), mask=there)
        word, count, j = word ^ alone, count - 1, j + 1


@triton.jit(do_not_specialize=["num_rows"])
def widest_gaps(
    places, kept, widest,
    first, offsets, start, stride, at, num_segments, num_rows, dim,
    STEPS: tl.constexpr, CHUNK: tl.constexpr, SEVERAL: tl.constexpr, CONTIGUOUS: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Raise widest [S] int32, 0 before, to each segment's largest gap."""
    AT_ONCE: tl.constexpr = 2 * CHUNK // 32
    chunk, segment, numel, begin = chunks_of_program(
        first, offsets, num_segments, dim, STEPS, CHUNK, SEVERAL
    )
    j = tl.load(kept + chunk)[:, None] + tl.arange(0, AT_ONCE)[None, :]
    end = tl.where(begin < numel, tl.load(kept + chunk + 1), 0)[:, None]
    before = tl.load(kept + tl.load(first + segment))[:, None]
    most = tl.zeros_like(j).to(tl.int32)
    while tl.max(tl.max((j < end).to(tl.int32), 1), 0) > 0:
        place = tl.load(places + j, mask=j < end, other=0)
        last = tl.load(places + j - 1, mask=(j < end) & (j > before), other=-1)
        most = tl.maximum(most, place - last - 1)
        j += AT_ONCE
    gap = tl.max(most, 1)
    tl.atomic_max(widest + segment, gap, mask=gap > tl.load(widest + segment))


@triton.jit(do_not_specialize=["num_rows"])
def headers(
    kept, amax, widest, widths, nbytes, payload, words,
    first, offsets, start, stride, at, num_segments, num_rows, dim,
    KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the header of each segment, the zeros that fill its last 8 bytes, nbytes [S] and
    widths [S] int32."""
    segment = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = segment < num_segments
    begin = tl.load(offsets + segment, mask=live, other=0)
    numel = (tl.load(offsets + segment + 1, mask=live, other=0) - begin) * dim
    before = tl.load(kept + tl.load(first + segment, mask=live, other=0))
    count = tl.load(kept + tl.load(first + segment + 1, mask=live, other=0)) - before
    gap, width = tl.load(widest + segment, mask=live, other=0), tl.zeros_like(segment)
    for t in tl.static_range(31):
        width += ((gap >> t) > 0).to(tl.int32)
    size, bitmap = (count * width + 7) // 8, (numel + 7) // 8
    width = tl.where(size > bitmap, BITMAP, width)
    end = HEADER + count * value_nbytes(KIND) + tl.minimum(size, bitmap)
    place = tl.load(at + segment, mask=live, other=0)
    word, largest = words + (place >> 2), tl.load(amax + segment, mask=live, other=0)
    tl.store(word, KIND + (width << 8), mask=live)
    tl.store(word + 1, scale_of(largest, KIND), mask=live)
    tl.store(word + 2, count.to(tl.int32), mask=live)
    tl.store(widths + segment, width, mask=live)
    tl.store(nbytes + segment, (end + 7) // 8 * 8, mask=live)
    for t in tl.static_range(7):
        beyond = live & (end + t < (end + 7) // 8 * 8)
        tl.store(payload + place + end + t, tl.zeros_like(segment).to(tl.uint8), mask=beyond)


@triton.jit(do_not_specialize=["num_rows"])
def positions(
    bitmaps, places, kept, widths, payload,
    first, offsets, start, stride, at, num_segments, num_rows, dim,
    KIND: tl.constexpr, STEPS: tl.constexpr, CHUNK: tl.constexpr, SEVERAL: tl.constexpr,
    CONTIGUOUS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write the places of kept values.

    They never take more bytes than a bitmap. So each chunk writes at most the bytes that it would
    have in a bitmap.
    """
    chunk, segment, numel, begin = chunks_of_program(
        first, offsets, num_segments, dim, STEPS, CHUNK, SEVERAL
    )
    width, base = tl.load(widths + segment), tl.load(kept + tl.load(first + segment))
    count = tl.load(kept + tl.load(first + segment + 1)) - base
    drawn, skipped, b = width == BITMAP, begin // 8, tl.arange(0, CHUNK // 8)[None, :]
    size = tl.where(drawn, numel + 7, count * width + 7) // 8
    there = (begin < numel)[:, None] & (b < (size - skipped)[:, None])
    inside = there & ~drawn[:, None]
    # The most gaps that may have bits in one byte, over the chunks that write any.
    num = tl.where(skipped < size, (width + 6) // tl.maximum(width, 1) + 1, 0)
    num = tl.max(tl.where(drawn, 0, num), 0)
    byte = packed_byte(
        places + base[:, None], count[:, None], skipped[:, None], b, inside,
        tl.maximum(width, 1)[:, None], num, GAPS=True,
    )  # fmt: skip
    source = bitmaps + (chunk * (CHUNK // 8))[:, None] + b
    byte |= tl.load(source, mask=there & drawn[:, None], other=0).to(tl.int32)
    to = payload + (tl.load(at + segment) + HEADER + count * value_nbytes(KIND) + skipped)[:, None]
    tl.store(to + b, byte.to(tl.uint8), mask=there)
