"""Segments of kept columns, read in Triton.

No number from the bytes becomes an address before it is known to lie within the segment. A segment
with a wrong header is treated as one that keeps nothing, and a value's number is compared with how
many values there are. The rows of a bad segment become anything.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.device import note_first
from trec_qcomm.ops.sparsify import reference
from trec_qcomm.ops.sparsify.gpu.packed_bits import (
    lowest_set,
    mask_words,
    num_set,
    packed_number,
    store_mask_words,
)
from trec_qcomm.ops.sparsify.gpu.row_blocks import rows_of_program
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
from trec_qcomm.ops.sparsify.gpu.write import COLUMNS, COUNTED_COLUMNS, HEADER, MASKED_HEADER

_BITMAP = tl.constexpr(reference.BITMAP)


@triton.jit
def note_codes(first_bad, segment, code):
    """Note the first segment whose code is not OK, as 8 times its number plus the code. segment,
    code: [BLOCK]."""
    note_first(first_bad, code != OK, segment * 8 + code)


@triton.jit
def header_words(words, at, nbytes, segment, live, NUM_BYTES: tl.constexpr):
    """Return for each segment whether its header is there, its place, its nbytes, and the header's
    first three words (the third as int64)."""
    place = tl.load(at + segment, mask=live, other=0)
    size = tl.load(nbytes + segment, mask=live, other=0)
    there = live & (size >= NUM_BYTES)
    word = words + (place >> 2)
    fields = tl.load(word, mask=there, other=0)
    scale = tl.load(word + 1, mask=there, other=0)
    last = tl.load(word + 2, mask=there & (NUM_BYTES >= 12), other=0)
    return there, place, size, fields, scale, last.to(tl.uint32, bitcast=True).to(tl.int64)


@triton.jit(do_not_specialize=["num_rows"])
def check_headers(
    words, nbytes, num_kept, kinds, forms, positions_at, first_bad,
    offsets, start, stride, at, num_segments, num_rows, dim,
    WIDTH: tl.constexpr, COUNT_WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Note the first bad segment, and write the headers' fields; a bad segment gets those of one
    that keeps no column.

    Args: num_kept, positions_at: [S] int64, written.  kinds, forms: [S] int32, written.
    """
    segment = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = segment < num_segments
    there, place, size, fields, scale, count = header_words(
        words, at, nbytes, segment, live, HEADER
    )
    kind, form = fields & 0xFF, (fields >> 8) & 0xFF
    begin = tl.load(offsets + segment, mask=live, other=0)
    n = tl.load(offsets + segment + 1, mask=live, other=0) - begin
    counts = tl.where(form == COUNTED_COLUMNS, (n * COUNT_WIDTH + 7) // 8, 0)
    packed = counts + (count * WIDTH + 7) // 8
    position = HEADER + count * value_nbytes(kind)
    end = position + tl.where(form == _BITMAP, n * ((dim + 7) // 8), packed)
    code = tl.where(size == (end + 7) // 8 * 8, OK, BAD_SIZE)
    code = tl.where(count > n * dim, BAD_COUNT, code)
    code = tl.where(form > COUNTED_COLUMNS, BAD_FORM, code)
    wrong = bad_fields(kind, scale)
    code = tl.where(wrong != OK, wrong, code)
    code = tl.where(live, tl.where(there, code, BAD_SIZE), OK)
    note_codes(first_bad, segment, code)
    good = code == OK
    tl.store(num_kept + segment, tl.where(good, count, 0), mask=live)
    tl.store(positions_at + segment, place + tl.where(good, position, 0), mask=live)
    tl.store(kinds + segment, tl.where(good, kind, 0), mask=live)
    tl.store(forms + segment, tl.where(good, form, COLUMNS), mask=live)


@triton.jit(do_not_specialize=["num_rows"])
def check_masked_headers(
    words, nbytes, kept, num_kept, kinds, first_bad,
    offsets, start, stride, at, num_segments, num_rows, dim,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Check the headers of segments whose columns the masks name, and write their fields, as
    `check_headers` does. kept: [R + 1], how many values all rows before a row keep."""
    segment = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = segment < num_segments
    there, _, size, fields, scale, _ = header_words(words, at, nbytes, segment, live, MASKED_HEADER)
    kind = fields & 0xFF
    begin = tl.load(kept + tl.load(offsets + segment, mask=live, other=0))
    count = tl.load(kept + tl.load(offsets + segment + 1, mask=live, other=0)) - begin
    end = MASKED_HEADER + count.to(tl.int64) * value_nbytes(kind)
    code = tl.where(size == (end + 7) // 8 * 8, OK, BAD_SIZE)
    wrong = bad_fields(kind, scale)
    code = tl.where(wrong != OK, wrong, code)
    code = tl.where(live, tl.where(there, code, BAD_SIZE), OK)
    note_codes(first_bad, segment, code)
    tl.store(num_kept + segment, tl.where(code == OK, count, 0).to(tl.int64), mask=live)
    tl.store(kinds + segment, tl.where(code == OK, kind, 0), mask=live)


@triton.jit(do_not_specialize=["num_rows"])
def count_rows(
    payload, num_kept, forms, positions_at, counts, first_bad,
    offsets, start, stride, at, num_segments, num_rows, dim,
    COUNT_WIDTH: tl.constexpr, STEPS: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Write counts [R + 1]: how many values each row keeps, where row 0 is number 1."""
    live, row, segment, i, _ = rows_of_program(
        offsets, start, stride, num_segments, num_rows, STEPS, VECTOR, BLOCK_ROWS
    )
    form, place = tl.load(forms + segment), tl.load(positions_at + segment)
    drawn, counted = live & (form == _BITMAP), live & (form == COUNTED_COLUMNS)
    word = mask_words(payload, place + i * ((dim + 7) // 8), drawn, dim, WORDS)
    BYTES: tl.constexpr = (COUNT_WIDTH + 14) // 8
    number = packed_number(payload, place, i, 0, COUNT_WIDTH, counted, BYTES)
    note_codes(first_bad, segment, tl.where(number > dim, BAD_PLACES, OK))
    n = tl.load(offsets + segment + 1) - (row - i)
    each = (tl.load(num_kept + segment) // n).to(tl.int32)
    count = tl.where(counted, tl.minimum(number, dim), each)
    count = tl.where(drawn, tl.sum(num_set(word), 1), count)
    tl.store(counts + 1 + row, count, mask=live)


@triton.jit
def _place_drawn(
    payload, halves, words, place, earlier, left, kind, scale, out, word, WORDS: tl.constexpr
):  # fmt: skip
    """Write the values that [R, WORDS] masks keep to the rows `out`; each lane writes one in a
    turn.

    Args, each [R, 1]:
        place: where the segment's values begin.
        earlier: how many values of the segment come before the row.
        left: how many values the row may have.
        kind, scale: fields of the segment's header.
    """
    count = num_set(word)
    j = tl.cumsum(count, 1) - count
    first = (tl.arange(0, WORDS) * 32)[None, :]
    while tl.max(tl.max(count, 1), 0) > 0:
        alone, bit = lowest_set(word)
        there = (count > 0) & (j < left)
        x = load_values(payload, halves, words, place, earlier, j, kind, scale, there)
        tl.store(out + first + bit, x, mask=there)
        word, count, j = word ^ alone, count - 1, j + 1


@triton.jit
def _place_numbered(
    payload, halves, words, place, earlier, left, kind, scale, out, numbers, first_bad, segment,
    dim,
    WIDTH: tl.constexpr, WORDS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Write the values of columns whose packed numbers begin at byte `numbers`; return the masks,
    [R, WORDS].

    The other arguments are those of `_place_drawn`. In a turn each row writes SOME values, each
    lane two.
    """
    BYTES: tl.constexpr = (WIDTH + 14) // 8
    SOME: tl.constexpr = min(max(64 // BLOCK_ROWS, 1), 16)
    w = tl.arange(0, WORDS)[None, None, :]
    word = left & (tl.arange(0, WORDS) * 0)[None, :]
    t, most = 0, tl.max(tl.max(left, 1), 0)
    while t < most:
        j = t + tl.arange(0, SOME)[None, :]
        there = j < left
        column = packed_number(payload, numbers, earlier, j, WIDTH, there, BYTES)
        follows = there & (j > 0)
        last = packed_number(payload, numbers, earlier, j - 1, WIDTH, follows, BYTES)
        wrong = (there & (column >= dim)) | (follows & (column <= last))
        bad = tl.max(wrong.to(tl.int32), 1) > 0
        note_codes(first_bad, segment, tl.where(bad, BAD_PLACES, OK))
        there &= column < dim
        x = load_values(payload, halves, words, place, earlier, j, kind, scale, there)
        tl.store(out + column, x, mask=there)
        in_word = there[:, :, None] & ((column >> 5)[:, :, None] == w)
        word |= tl.sum(tl.where(in_word, (1 << (column & 31))[:, :, None], 0), 1)
        t += SOME
    return word


@triton.jit(do_not_specialize=["num_rows"])
def rows(
    payload, halves, words, out, bits, mask_at, kept, num_kept, kinds, forms, positions_at,
    first_bad,
    offsets, start, stride, at, num_segments, num_rows, dim,
    MASKED: tl.constexpr, NOTED: tl.constexpr, WIDTH: tl.constexpr, COUNT_WIDTH: tl.constexpr,
    STEPS: tl.constexpr, VECTOR: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Write the rows, and their masks if NOTED. MASKED: whether the masks say what is kept."""
    live, row, segment, i, begin = rows_of_program(
        offsets, start, stride, num_segments, num_rows, STEPS, VECTOR, BLOCK_ROWS
    )
    d, out = tl.arange(0, BLOCK_DIM), out + begin[:, None]
    inside = live[:, None] & (d < dim)[None, :]
    tl.store(out + d[None, :], tl.zeros_like(inside.to(tl.int32)), mask=inside)
    before, num = tl.load(kept + row - i).to(tl.int64), tl.load(num_kept + segment)
    earlier = tl.load(kept + row).to(tl.int64) - before
    end = tl.load(kept + row + 1).to(tl.int64) - before
    left = tl.where(live, tl.maximum(tl.minimum(end, num) - earlier, 0), 0).to(tl.int32)
    mask, place = i * ((dim + 7) // 8), tl.load(at + segment)
    scale = tl.load(words + (place >> 2) + 1, mask=num > 0, other=0)[:, None]
    place += MASKED_HEADER if MASKED else HEADER
    earlier, place, kind = earlier[:, None], place[:, None], tl.load(kinds + segment)[:, None]
    tl.debug_barrier()  # all zeros are written before a value is
    if MASKED:
        word = mask_words(bits, tl.load(mask_at + segment) + mask, live, dim, WORDS)
        _place_drawn(
            payload, halves, words, place, earlier, left[:, None], kind, scale, out, word, WORDS
        )
    else:
        n, form = tl.load(offsets + segment + 1) - (row - i), tl.load(forms + segment)
        wrong = live & (i == n - 1) & (end != num)
        note_codes(first_bad, segment, tl.where(wrong, BAD_PLACES, OK))
        drawn, numbers = live & (form == _BITMAP), tl.load(positions_at + segment)
        word = mask_words(payload, numbers + mask, drawn, dim, WORDS)
        _place_drawn(
            payload, halves, words, place, earlier, left[:, None], kind, scale, out, word, WORDS
        )
        numbers += tl.where(form == COUNTED_COLUMNS, (n * COUNT_WIDTH + 7) // 8, 0)
        left = tl.where(drawn, 0, left)[:, None]
        word |= _place_numbered(
            payload, halves, words, place, earlier, left, kind, scale, out, numbers[:, None],
            first_bad, segment, dim, WIDTH, WORDS, BLOCK_ROWS,
        )  # fmt: skip
        if NOTED:
            to = tl.load(mask_at + segment) + mask
            store_mask_words(bits, to, live, word, dim, WORDS)
