"""Segments of values above a threshold, read in Triton.

No number from the bytes becomes an address before it is known to lie within the segment. A segment
with a wrong header is treated as one that keeps nothing, and no value is written outside its
segment. The values of a bad segment become anything.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.sparsify.gpu.packed_bits import num_set, packed_number
from trec_qcomm.ops.sparsify.gpu.read import header_words, note_codes
from trec_qcomm.ops.sparsify.gpu.values import (
    BAD_COUNT,
    BAD_FORM,
    BAD_PLACES,
    BAD_SIZE,
    OK,
    bad_fields,
    load_values,
    value_nbytes,
)
from trec_qcomm.ops.threshold import reference
from trec_qcomm.ops.threshold.gpu.value_chunks import all_places, chunks_of_program, places_of
from trec_qcomm.ops.threshold.gpu.write import BITMAP, HEADER

_MAX_WIDTH = tl.constexpr(reference.MAX_WIDTH)


@triton.jit(do_not_specialize=["num_rows"])
def check_headers(
    words, nbytes, num_kept, kinds, widths, first_bad,
    first, offsets, start, stride, at, num_segments, num_rows, dim,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Note the first bad segment, and write the headers' fields; a bad segment gets those of one
    that keeps nothing.

    Args: num_kept: [S] int64, written.  kinds, widths: [S] int32, written.
    """
    segment = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = segment < num_segments
    there, _, size, fields, scale, count = header_words(words, at, nbytes, segment, live, HEADER)
    kind, width = fields & 0xFF, (fields >> 8) & 0xFF
    begin = tl.load(offsets + segment, mask=live, other=0)
    numel = (tl.load(offsets + segment + 1, mask=live, other=0) - begin) * dim
    places = tl.where(width == BITMAP, numel + 7, count * width + 7) // 8
    end = HEADER + count * value_nbytes(kind) + places
    code = tl.where(size == (end + 7) // 8 * 8, OK, BAD_SIZE)
    code = tl.where(count > numel, BAD_COUNT, code)
    wrong = bad_fields(kind, scale)
    code = tl.where(wrong != OK, wrong, code)
    code = tl.where((width > _MAX_WIDTH) & (width != BITMAP), BAD_FORM, code)
    code = tl.where(live, tl.where(there, code, BAD_SIZE), OK)
    note_codes(first_bad, segment, code)
    good = code == OK
    tl.store(num_kept + segment, tl.where(good, count, 0), mask=live)
    tl.store(kinds + segment, tl.where(good, kind, 0), mask=live)
    tl.store(widths + segment, tl.where(good, width, 0), mask=live)


@triton.jit
def _gaps(payload, places, width, begin, there, f):
    """Return [SEVERAL, CHUNK] int64, how far the gaps number begin + f move a place; 0 where not
    `there`."""
    gap = packed_number(payload, places[:, None], begin[:, None], f, width[:, None], there, 5)
    return tl.where(there, gap + 1, 0)


@triton.jit(do_not_specialize=["num_rows"])
def add_up(
    payload, num_kept, kinds, widths, counts,
    first, offsets, start, stride, at, num_segments, num_rows, dim,
    STEPS: tl.constexpr, CHUNK: tl.constexpr, SEVERAL: tl.constexpr, CONTIGUOUS: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Write counts [C + 1] int64, in which the first chunk is number 1.

    With a bitmap, a chunk counts its kept values. With gaps, the chunk that begins at value v of a
    segment counts how many places its CHUNK gaps pass, from gap number v on.
    """
    chunk, segment, numel, begin = chunks_of_program(
        first, offsets, num_segments, dim, STEPS, CHUNK, SEVERAL
    )
    count, width = tl.load(num_kept + segment), tl.load(widths + segment)
    places = tl.load(at + segment) + HEADER + count * value_nbytes(tl.load(kinds + segment))
    live, drawn = begin < numel, width == BITMAP
    b = tl.arange(0, CHUNK // 8)[None, :]
    left = (numel - begin)[:, None] - b * 8
    left = tl.where(drawn[:, None], tl.minimum(tl.maximum(left, 0), 8), 0).to(tl.int32)
    bits = payload + (places + begin // 8)[:, None]
    byte = tl.load(bits + b, mask=left > 0, other=0).to(tl.int32)
    total = tl.sum(num_set(byte & ((1 << left) - 1)), 1).to(tl.int64)
    gaps = live & ~drawn & (begin < count)
    if tl.max(gaps.to(tl.int32), 0) > 0:
        f = tl.arange(0, CHUNK)[None, :]
        there = gaps[:, None] & (f < (count - begin)[:, None])
        total += tl.sum(_gaps(payload, places, width, begin, there, f), 1)
    tl.store(counts + chunk + 1, total, mask=live)


@triton.jit(do_not_specialize=["num_rows"])
def fill(
    payload, halves, words, out, before, num_kept, kinds, widths, first_bad,
    first, offsets, start, stride, at, num_segments, num_rows, dim,
    STEPS: tl.constexpr, CHUNK: tl.constexpr, SEVERAL: tl.constexpr, CONTIGUOUS: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Write all values of segments with bitmaps, and zeros for all others.

    Args: before: [C + 1], counts of all chunks before each.
    """
    chunk, segment, numel, begin = chunks_of_program(
        first, offsets, num_segments, dim, STEPS, CHUNK, SEVERAL
    )
    count, width = tl.load(num_kept + segment), tl.load(widths + segment)
    live, drawn = begin < numel, width == BITMAP
    earlier, place = tl.load(before + tl.load(first + segment)), tl.load(at + segment)
    total = tl.load(before + chunk + 1) - earlier
    wrong = tl.where(drawn, total != count, total > numel)
    wrong &= live & (begin + CHUNK >= numel)  # at the last chunk of a segment
    note_codes(first_bad, segment, tl.where(wrong, BAD_PLACES, OK))
    x, drawn = tl.zeros([SEVERAL, CHUNK], tl.int32), live & drawn
    if tl.max(drawn.to(tl.int32), 0) > 0:
        kind, f = tl.load(kinds + segment), tl.arange(0, CHUNK)[None, :]
        places = place + HEADER + count * value_nbytes(kind) + begin // 8
        inside = drawn[:, None] & (f < (numel - begin)[:, None])
        byte = tl.load(payload + places[:, None] + f // 8, mask=inside, other=0).to(tl.int32)
        keep = inside & (((byte >> (f % 8)) & 1) > 0)
        first_kept, j = tl.load(before + chunk) - earlier, tl.cumsum(keep.to(tl.int32), 1) - 1
        keep &= j < (count - first_kept)[:, None]
        scale = tl.load(words + (place >> 2) + 1, mask=count > 0, other=0)[:, None]
        x = load_values(
            payload, halves, words, (place + HEADER)[:, None], first_kept[:, None], j,
            kind[:, None], scale, keep,
        )  # fmt: skip
    to, inside = all_places(start, stride, segment, begin, numel, dim, CHUNK, CONTIGUOUS, VECTOR)
    tl.store(out + to, x, mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def scatter(
    payload, halves, words, out, before, num_kept, kinds, widths,
    first, offsets, start, stride, at, num_segments, num_rows, dim,
    STEPS: tl.constexpr, CHUNK: tl.constexpr, SEVERAL: tl.constexpr, CONTIGUOUS: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Write the values that come with gaps, none of them outside its segment."""
    chunk, segment, numel, begin = chunks_of_program(
        first, offsets, num_segments, dim, STEPS, CHUNK, SEVERAL
    )
    count, width = tl.load(num_kept + segment), tl.load(widths + segment)
    gaps = (begin < numel) & (width != BITMAP) & (begin < count)
    if tl.max(gaps.to(tl.int32), 0) > 0:
        kind, place, f = tl.load(kinds + segment), tl.load(at + segment), tl.arange(0, CHUNK)
        there = gaps[:, None] & (f[None, :] < (count - begin)[:, None])
        places = place + HEADER + count * value_nbytes(kind)
        passed = _gaps(payload, places, width, begin, there, f[None, :])
        earlier = tl.load(before + chunk) - tl.load(before + tl.load(first + segment))
        number = earlier[:, None] + tl.cumsum(passed, 1) - 1
        there &= number < numel[:, None]
        scale = tl.load(words + (place >> 2) + 1, mask=count > 0, other=0)[:, None]
        x = load_values(
            payload, halves, words, (place + HEADER)[:, None], begin[:, None], f[None, :],
            kind[:, None], scale, there,
        )  # fmt: skip
        number = tl.where(there, number, 0).to(tl.int32)
        to = places_of(start, stride, segment, begin * 0, number, dim, CONTIGUOUS)
        tl.store(out + to, x, mask=there)
