"""Packed ids in Triton: the bytes of planned segments. A program takes a block of bags or of ids.

A stream begins at any byte, and a block of high parts at any bit. So words of 32 bits in which more
than one program writes are put together by atomic ors, on zeros.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.batch.packed_ids.gpu import columns
from trec_qcomm.ops.batch.packed_ids.gpu.numbers import (
    MAX_RUNS,
    OFFSETS,
    STEPS,
    UNARY,
    block_of,
    mask_of,
    put_byte,
    put_varint,
    word_of,
    zigzag,
)

_WORDS = tl.constexpr(256)  # words of 32 bits that a program puts together at once


@triton.jit
def _put_low_bits(values, begin, end, is_gap, base, step, bits, out, at):
    """Write the low bits of words begin..end - 1, one behind the other.

    Args: values: pointer to the number of the first word; with `is_gap` there is one before it.
        out: pointer to int32.  at: byte at which the bits of word 0 begin.
    """
    first_bit, mask = at * 8 + begin * bits, mask_of(bits)
    num_bits, width = ((end - begin) * bits).to(tl.int32), tl.maximum(bits, 1).to(tl.int32)
    first = tl.where(num_bits > 0, -(first_bit & 31).to(tl.int32), 0)
    most = (30 + width) // width + 1  # words with bits in one of `out`
    out += first_bit >> 5
    while first < num_bits:
        k = tl.arange(0, _WORDS)
        from_bit = first + k * 32  # of the block's bits, at which the word of `out` begins
        j, word, t = tl.maximum(from_bit, 0) // width, tl.zeros_like(k).to(tl.uint64), 0
        shift = j * width - from_bit
        while t < most:
            there = (from_bit + shift < num_bits) & (shift < 32)
            value = word_of(values, begin + j, there, is_gap, base, step) & mask
            value = value >> tl.minimum(tl.maximum(-shift, 0), 63).to(tl.uint64)
            word |= value << tl.minimum(tl.maximum(shift, 0), 31).to(tl.uint64)
            j, shift, t = j + 1, shift + width, t + 1
        word = word.to(tl.uint32).to(tl.int32, bitcast=True)
        is_own = (from_bit >= 0) & (from_bit + 32 <= num_bits)
        tl.store(out + k, word, mask=is_own)
        tl.atomic_or(out + k, word, mask=(from_bit < num_bits) & (is_own == 0), sem="relaxed")
        first += 32 * _WORDS
        out += _WORDS


@triton.jit
def _put_high_parts(values, begin, count, step, bits, before, out, at, BLOCK: tl.constexpr):
    """Set the ones of the high parts of a block's words.

    Args: values: pointer to the number of the first word.  before: the sum of earlier high parts.
        out: pointer to int32.  at: byte at which the high parts begin.
    """
    w = begin + tl.arange(0, BLOCK)
    word = word_of(values, w, w < count, w >= 0, step * 0, step)
    high = (word >> bits.to(tl.uint64)).to(tl.int64)
    place = at * 8 + before + tl.cumsum(high, 0) + w
    one = (1 << (place & 31)).to(tl.uint32).to(tl.int32, bitcast=True)
    tl.atomic_or(out + (place >> 5), one, mask=w < count, sem="relaxed")


@triton.jit
def _put_head(row, runs, out, at, STATES_BAGS: tl.constexpr):
    """Write a segment's head. runs: pointer to its runs.  out: pointer to int32, zeros."""
    if STATES_BAGS:
        at = put_varint(out, at, tl.load(row + columns.BAGS))
    length_bits, m = tl.load(row + columns.LENGTH_BITS), tl.load(row + columns.IDS)
    put_byte(out, at, length_bits)
    at += 1
    if length_bits == 0:
        num_runs, run = tl.load(row + columns.RUNS), tl.cast(0, tl.int64)
        at = put_varint(out, at, num_runs)
        while run < num_runs:
            at = put_varint(out, at, tl.load(runs + 2 * run))
            if run < num_runs - 1:
                at = put_varint(out, at, tl.load(runs + 2 * run + 1))
            run += 1
    else:
        at = put_varint(out, at, tl.load(row + columns.LENGTH_BASE))
        at = put_varint(out, at, m)
    if m > 0:
        kind = tl.load(row + columns.KIND)
        put_byte(out, at, kind)
        put_byte(out, at + 1, tl.load(row + columns.BITS))
        at = put_varint(out, at + 2, zigzag(tl.load(row + columns.BASE)))
        if (kind & UNARY) > 0:
            at = put_varint(out, at, tl.load(row + columns.UNARY_NBYTES))


@triton.jit(do_not_specialize=["num_bags"])
def write(
    ids, lengths, first_bag, first_id, plans, runs, measures, head_at, message_of, message_ends,
    nbytes, out, num_segments, num_bags, STATES_BAGS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a block of the lengths or ids of a segment, and its head with the first lengths.

    Args:
        measures: [blocks, NUM_MEASURES], with BEFORE of `plan`.
        head_at: [S], places of heads, from their messages' beginnings.  message_of: [S].
        message_ends, nbytes: [P].  out: [W / 4] int32, zeros.
    """
    b = tl.program_id(0).to(tl.int64)
    bag_blocks, measured = num_bags // BLOCK + num_segments, measures + b * columns.NUM_MEASURES
    if b < bag_blocks:
        s, begin = block_of(b, first_bag, num_segments, BLOCK)
    else:
        s, begin = block_of(b - bag_blocks, first_id, num_segments, BLOCK)
    row, p = plans + s * columns.NUM_COLUMNS, tl.load(message_of + s)
    out += (tl.load(message_ends + p) - tl.load(nbytes + p)) // 4
    at, n = tl.load(row + columns.AT), tl.load(row + columns.BAGS)
    length_bits, zero = tl.load(row + columns.LENGTH_BITS), at * 0
    if b < bag_blocks:
        if begin == 0:
            _put_head(row, runs + s * 2 * MAX_RUNS, out, tl.load(head_at + s), STATES_BAGS)
        base, values = tl.load(row + columns.LENGTH_BASE), lengths + tl.load(first_bag + s)
        end = tl.maximum(tl.minimum(begin + BLOCK, n), begin)
        _put_low_bits(values, begin, end, n < 0, base, zero, length_bits, out, at)
    else:
        at += (length_bits * n + 7) // 8
        kind, bits = tl.load(row + columns.KIND), tl.load(row + columns.BITS)
        is_gap = (kind & 3) != OFFSETS
        step, skip = ((kind & 3) == STEPS).to(tl.int64), is_gap.to(tl.int64)
        values, base = ids + tl.load(first_id + s) + skip, tl.load(row + columns.BASE)
        count = tl.load(row + columns.IDS) - skip
        end = tl.maximum(tl.minimum(begin + BLOCK, count), begin)
        _put_low_bits(values, begin, end, is_gap, base, step, bits, out, at)
        if ((kind & UNARY) > 0) & (begin < count):
            at += (bits * count + 7) // 8
            before = tl.load(measured + columns.BEFORE)
            _put_high_parts(values, begin, count, step, bits, before, out, at, BLOCK)
