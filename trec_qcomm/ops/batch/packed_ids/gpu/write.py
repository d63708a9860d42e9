"""Packed ids in Triton: the bytes of planned segments. A program takes a segment.

Each byte of a stream is put together by one lane, from the words that have bits in it.
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
    bit_length,
    first_id,
    mask_of,
    put_varint,
    word_of,
    zigzag,
)


@triton.jit(do_not_specialize=["num_ids"])
def place_ones(ids, ends, first_bag, plans, ones, num_ids, BLOCK: tl.constexpr):
    """Find the place of each word's one bit among the bits of high parts.

    Args: ones: [N] int64, written where words have high parts. The word from an id to the next is
        noted at the latter's place.
    """
    s = tl.program_id(0).to(tl.int64)
    row = plans + s * columns.NUM_COLUMNS
    if (tl.load(row + columns.IDS) > 0) & (tl.load(row + columns.UNARY_NBYTES) > 0):
        first = first_id(ends, tl.load(first_bag + s), num_ids)
        m, shift = tl.load(row + columns.IDS), tl.load(row + columns.BITS).to(tl.uint64)
        step = (tl.load(row + columns.KIND) == STEPS + UNARY).to(tl.int64)
        before, begin = tl.cast(0, tl.int64), tl.cast(1, tl.int64)
        while begin < m:
            i = begin + tl.arange(0, BLOCK)
            word = word_of(ids + first, i, i < m, i > 0, step * 0, step)
            high = (word >> shift).to(tl.int64)
            place = before + tl.cumsum(high, 0) + i - 1
            tl.store(ones + first + i, place, mask=i < m)
            before += tl.sum(high, 0)
            begin += BLOCK


@triton.jit
def _put_low_bits(values, count, is_gap, base, step, bits, out, BLOCK: tl.constexpr):
    """Write the low bits of `count` words, one behind the other.

    Args: values: pointer to the number of the first word; with `is_gap` there is one before it.
    """
    mask, width = mask_of(bits), tl.maximum(bits, 1)
    most = tl.where(bits > 0, (bits + 6) // width + 1, 0)  # words with bits in one byte
    nbytes, begin = (bits * count + 7) // 8, tl.cast(0, tl.int64)
    while begin < nbytes:
        b = begin + tl.arange(0, BLOCK)
        first = b * 8 // width
        byte, t = tl.zeros_like(b).to(tl.uint64), tl.cast(0, tl.int64)
        while t < most:
            j = first + t
            shift = j * width - b * 8
            there = (b < nbytes) & (j < count) & (shift < 8)
            word = word_of(values, j, there, is_gap, base, step) & mask
            left = tl.minimum(tl.maximum(shift, 0), 8).to(tl.uint64)
            right = tl.minimum(tl.maximum(-shift, 0), 63).to(tl.uint64)
            byte |= (word >> right) << left
            t += 1
        tl.store(out + b, (byte & 255).to(tl.uint8), mask=b < nbytes)
        begin += BLOCK


@triton.jit
def _put_high_parts(ones, count, nbytes, out, BLOCK: tl.constexpr):
    """Set a bit for each of `count` > 0 ones. ones: pointer to their places, which increase."""
    steps, begin = bit_length(count), tl.cast(0, tl.int64)
    while begin < nbytes:
        b = begin + tl.arange(0, BLOCK)
        low, t = tl.zeros_like(b), tl.cast(0, tl.int64)
        high = low + count
        while t < steps:  # the first one that is not before the byte
            middle = (low + high) >> 1
            place = tl.load(ones + middle, mask=middle < high, other=0)
            is_before = (middle < high) & (place < b * 8)
            low, high = tl.where(is_before, middle + 1, low), tl.where(is_before, high, middle)
            t += 1
        byte = tl.zeros_like(b)
        for k in tl.static_range(8):
            place = tl.load(ones + low + k, mask=(b < nbytes) & (low + k < count), other=-1)
            inside = (place >= b * 8) & (place < b * 8 + 8)
            byte |= tl.where(inside, 1 << (tl.where(inside, place, 0) & 7), 0)
        tl.store(out + b, byte.to(tl.uint8), mask=b < nbytes)
        begin += BLOCK


@triton.jit
def _put_head(row, runs, out, at, STATES_BAGS: tl.constexpr):
    """Write a segment's head. runs: pointer to its runs."""
    if STATES_BAGS:
        at = put_varint(out, at, tl.load(row + columns.BAGS))
    length_bits, m = tl.load(row + columns.LENGTH_BITS), tl.load(row + columns.IDS)
    tl.store(out + at, length_bits.to(tl.uint8))
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
        tl.store(out + at, kind.to(tl.uint8))
        tl.store(out + at + 1, tl.load(row + columns.BITS).to(tl.uint8))
        at = put_varint(out, at + 2, zigzag(tl.load(row + columns.BASE)))
        if (kind & UNARY) > 0:
            at = put_varint(out, at, tl.load(row + columns.UNARY_NBYTES))


@triton.jit(do_not_specialize=["num_ids"])
def write(
    ids, lengths, ends, first_bag, plans, runs, ones, head_at, message_of, message_ends, nbytes,
    out, num_ids, STATES_BAGS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the head and the streams of a segment.

    Args:
        head_at: [S], places of heads, from their messages' beginnings.  message_of: [S].
        message_ends, nbytes: [P].  out: [W] uint8, zeros.
    """
    s = tl.program_id(0).to(tl.int64)
    row, p = plans + s * columns.NUM_COLUMNS, tl.load(message_of + s)
    out += tl.load(message_ends + p) - tl.load(nbytes + p)
    _put_head(row, runs + s * 2 * MAX_RUNS, out, tl.load(head_at + s), STATES_BAGS)
    bag, n, m = tl.load(first_bag + s), tl.load(row + columns.BAGS), tl.load(row + columns.IDS)
    at, length_bits = tl.load(row + columns.AT), tl.load(row + columns.LENGTH_BITS)
    zero = at * 0
    base = tl.load(row + columns.LENGTH_BASE)
    _put_low_bits(lengths + bag, n, n < 0, base, zero, length_bits, out + at, BLOCK)
    if m > 0:
        at += (length_bits * n + 7) // 8
        first = first_id(ends, bag, num_ids)
        kind, bits = tl.load(row + columns.KIND), tl.load(row + columns.BITS)
        is_gap = (kind & 3) != OFFSETS
        step, skip = ((kind & 3) == STEPS).to(tl.int64), is_gap.to(tl.int64)
        values, base = ids + first + skip, tl.load(row + columns.BASE)
        _put_low_bits(values, m - skip, is_gap, base, step, bits, out + at, BLOCK)
        if (kind & UNARY) > 0:
            at += (bits * (m - skip) + 7) // 8
            unary_nbytes = tl.load(row + columns.UNARY_NBYTES)
            _put_high_parts(ones + first + 1, m - 1, unary_nbytes, out + at, BLOCK)
