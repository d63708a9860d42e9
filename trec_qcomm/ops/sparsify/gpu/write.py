"""Segments of kept columns, written from their masks, in Triton: headers, values, positions.

`kept` [R + 1] says how many values all rows before a row keep, so that rows, values and bytes can
be written in any order. Each lane makes one byte of the positions, from the numbers that have bits
in it: nothing is written twice, and no lane waits for another.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.sparsify import reference
from trec_qcomm.ops.sparsify.gpu.packed_bits import lowest_set, mask_words, num_set, packed_byte
from trec_qcomm.ops.sparsify.gpu.row_blocks import rows_of_program
from trec_qcomm.ops.sparsify.gpu.values import scale_of, store_values, value_nbytes

MASKED = tl.constexpr(reference.BITMAP)  # as a FORM: forward_mask, which has no positions
COLUMNS = tl.constexpr(reference.COLUMNS)
COUNTED_COLUMNS = tl.constexpr(reference.COUNTED_COLUMNS)
HEADER = tl.constexpr(reference.HEADER_NBYTES)
MASKED_HEADER = tl.constexpr(reference.MASKED_HEADER_NBYTES)


@triton.jit
def _num_kept(kept, offsets, segment, live):
    """Return for each segment: its rows, how many values all segments before it keep, and how many
    it keeps."""
    begin = tl.load(offsets + segment, mask=live, other=0)
    end = tl.load(offsets + segment + 1, mask=live, other=0)
    before = tl.load(kept + begin, mask=live, other=0).to(tl.int64)
    return end - begin, before, tl.load(kept + end, mask=live, other=0).to(tl.int64) - before


@triton.jit
def _sizes(
    n, count, dim, FORM: tl.constexpr, WIDTH: tl.constexpr, COUNT_WIDTH: tl.constexpr
):  # fmt: skip
    """Return for each segment: whether its positions are numbers, how many bytes the rows' counts
    take, and how many all positions take."""
    counts = n * 0
    if FORM == COUNTED_COLUMNS:
        counts = (n * COUNT_WIDTH + 7) // 8
    packed, bitmap = counts + (count * WIDTH + 7) // 8, n * ((dim + 7) // 8)
    return packed < bitmap, counts, tl.minimum(packed, bitmap)


@triton.jit(do_not_specialize=["num_rows"])
def headers(
    kept, amax, nbytes, payload, words,
    offsets, start, stride, at, num_segments, num_rows, dim,
    KIND: tl.constexpr, FORM: tl.constexpr, WIDTH: tl.constexpr, COUNT_WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the header of each segment, the zeros that fill its last 8 bytes, and nbytes [S]."""
    segment = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = segment < num_segments
    n, _, count = _num_kept(kept, offsets, segment, live)
    place = tl.load(at + segment, mask=live, other=0)
    word, form = words + (place >> 2), tl.zeros_like(segment)
    end = count * value_nbytes(KIND)
    if FORM == MASKED:
        end += MASKED_HEADER
    else:
        numbered, _, positions_nbytes = _sizes(n, count, dim, FORM, WIDTH, COUNT_WIDTH)
        end += HEADER + positions_nbytes
        form = tl.where(numbered, FORM << 8, 0)
        tl.store(word + 2, count.to(tl.int32), mask=live)
    scale = scale_of(tl.load(amax + segment, mask=live, other=0), KIND)
    tl.store(word, form + KIND, mask=live)
    tl.store(word + 1, scale, mask=live)
    tl.store(nbytes + segment, (end + 7) // 8 * 8, mask=live)
    for t in tl.static_range(7):
        beyond = live & (end + t < (end + 7) // 8 * 8)
        tl.store(payload + place + end + t, tl.zeros_like(segment).to(tl.uint8), mask=beyond)


@triton.jit(do_not_specialize=["num_rows"])
def rows(
    values, bits, mask_at, kept, amax, columns, payload, halves, words,
    offsets, start, stride, at, num_segments, num_rows, dim,
    KIND: tl.constexpr, FORM: tl.constexpr, WIDTH: tl.constexpr, COUNT_WIDTH: tl.constexpr,
    STEPS: tl.constexpr, VECTOR: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Write the values that the masks keep; where positions are numbers, also their columns, [K]
    int16.

    A lane has 32 columns and in each turn stores one that is kept. Where few are kept there are few
    turns, and little is loaded.
    """
    live, row, segment, i, begin = rows_of_program(
        offsets, start, stride, num_segments, num_rows, STEPS, VECTOR, BLOCK_ROWS
    )
    mask = tl.load(mask_at + segment) + i * ((dim + 7) // 8)
    word = mask_words(bits, mask, live, dim, WORDS)
    count = num_set(word)
    j = tl.load(kept + row).to(tl.int64)[:, None] + tl.cumsum(count, 1) - count
    n, before, num = _num_kept(kept, offsets, segment, live)
    numbered, _, _ = _sizes(n, num, dim, FORM, WIDTH, COUNT_WIDTH)
    place = tl.load(at + segment) + (MASKED_HEADER if FORM == MASKED else HEADER)
    place, before = place[:, None], before[:, None]
    scale = scale_of(tl.load(amax + segment), KIND)[:, None]
    first = (tl.arange(0, WORDS) * 32)[None, :]
    while tl.max(tl.max(count, 1), 0) > 0:
        alone, bit = lowest_set(word)
        d, there = first + bit, count > 0
        x = tl.load(values + begin[:, None] + d, mask=there, other=0)
        store_values(payload, halves, words, place, j - before, 0, x, scale, there, KIND)
        if FORM != MASKED:
            tl.store(columns + j, d.to(tl.int16), mask=there & numbered[:, None])
        word, count, j = word ^ alone, count - 1, j + 1


@triton.jit(do_not_specialize=["num_rows"])
def positions(
    bits, mask_at, kept, counts, columns, payload,
    offsets, start, stride, at, num_segments, num_rows, dim,
    KIND: tl.constexpr, FORM: tl.constexpr, WIDTH: tl.constexpr, COUNT_WIDTH: tl.constexpr,
    STEPS: tl.constexpr, VECTOR: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Write the positions of kept columns.

    They never take more bytes than a bitmap. So each row writes at most the bytes that it would
    have in a bitmap.
    """
    live, row, segment, i, _ = rows_of_program(
        offsets, start, stride, num_segments, num_rows, STEPS, VECTOR, BLOCK_ROWS
    )
    n, before, count = _num_kept(kept, offsets, segment, live)
    numbered, counted, size = _sizes(n, count, dim, FORM, WIDTH, COUNT_WIDTH)
    width, b = (dim + 7) // 8, tl.arange(0, BLOCK_DIM // 8)[None, :]
    first = i * width
    there = live[:, None] & (b < width) & (b < (size - first)[:, None])
    packed = there & numbered[:, None]
    mask = bits + (tl.load(mask_at + segment) + first)[:, None]
    byte = tl.load(mask + b, mask=there & ~packed, other=0).to(tl.int32)
    if WIDTH > 0:
        inside = packed & (b >= (counted - first)[:, None])
        numbers = columns + before[:, None]
        byte |= packed_byte(
            numbers, count[:, None], (first - counted)[:, None], b, inside, WIDTH,
            (WIDTH + 6) // WIDTH + 1, GAPS=False,
        )  # fmt: skip
    if FORM == COUNTED_COLUMNS:
        inside = packed & (b < (counted - first)[:, None])
        numbers = counts + (1 + row - i)[:, None]
        byte |= packed_byte(
            numbers, n[:, None], first[:, None], b, inside, COUNT_WIDTH,
            (COUNT_WIDTH + 6) // COUNT_WIDTH + 1, GAPS=False,
        )  # fmt: skip
    place = tl.load(at + segment) + HEADER + count * value_nbytes(KIND) + first
    tl.store(payload + place[:, None] + b, byte.to(tl.uint8), mask=there)
