"""Packed ids in Triton: heads, then streams, of messages that may be damaged.

An error is noted as 16 times the segment plus the kind of error (cpu_read's numbers). No address
leaves the message.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.batch.packed_ids import cpu_read, reference
from trec_qcomm.ops.batch.packed_ids.gpu import columns
from trec_qcomm.ops.batch.packed_ids.gpu.numbers import (
    MAX_LENGTH_BITS,
    MAX_UNARY_BITS,
    OFFSETS,
    STEPS,
    UNARY,
    block_of,
    mask_of,
)

_ITEMS_PER_BYTE = tl.constexpr(reference.ITEMS_PER_BYTE)
_SPARE_NBYTES = tl.constexpr(reference.SPARE_NBYTES)
_OK, _BAD_SIZE = tl.constexpr(cpu_read.OK), tl.constexpr(cpu_read.BAD_SIZE)
_BAD_NUMBER, _TOO_MANY = tl.constexpr(cpu_read.BAD_NUMBER), tl.constexpr(cpu_read.TOO_MANY)
_BAD_RUNS, _BAD_BITS = tl.constexpr(cpu_read.BAD_RUNS), tl.constexpr(cpu_read.BAD_BITS)
_BAD_KIND, _BAD_SUM = tl.constexpr(cpu_read.BAD_KIND), tl.constexpr(cpu_read.BAD_SUM)
_BAD_HIGH = tl.constexpr(cpu_read.BAD_HIGH)
REASONS = 16  # what a segment's number is multiplied by, where it is noted with a reason
BAD_DTYPE = 15
_REASONS, _BAD_DTYPE = tl.constexpr(REASONS), tl.constexpr(BAD_DTYPE)


@triton.jit
def _note(flag, segment, wrong):
    """Lower flag [1] to what is wrong with a segment. -1 (nothing is) is the largest uint32."""
    if wrong != _OK:
        number = (segment * _REASONS + wrong).to(tl.uint32)
        tl.atomic_min(flag.to(tl.pointer_type(tl.uint32)), number)


@triton.jit
def _take_byte(data, at, end, wrong):
    """Return (byte as int64, its end, what is wrong). Nothing is read once something is wrong."""
    there = (wrong == _OK) & (at < end)
    byte = tl.load(data + at, mask=there, other=0).to(tl.int64)
    wrong = tl.where((wrong == _OK) & (at >= end), _BAD_SIZE, wrong)
    return byte, at + there.to(tl.int64), wrong


@triton.jit
def _take_varint(data, at, end, wrong):
    """Return (number as uint64, its end, what is wrong)."""
    number, k = tl.cast(0, tl.uint64), tl.cast(0, tl.int64)
    going = wrong == _OK
    while going:
        byte, at, wrong = _take_byte(data, at, end, wrong)
        number |= (byte & 127).to(tl.uint64) << (7 * k).to(tl.uint64)
        wrong = tl.where((wrong == _OK) & (k == 9) & (byte > 1), _BAD_NUMBER, wrong)
        going = (wrong == _OK) & (byte >= 128)
        k += 1
    return number, at, wrong


@triton.jit
def _take_count(data, at, end, limit, wrong):
    """Return (number up to `limit`, or 0, its end, what is wrong)."""
    number, at, wrong = _take_varint(data, at, end, wrong)
    wrong = tl.where((wrong == _OK) & (number > limit.to(tl.uint64)), _TOO_MANY, wrong)
    return tl.where(wrong == _OK, number.to(tl.int64), 0), at, wrong


@triton.jit
def _take_run(data, at, end, is_last, left, limit, wrong):
    """Return (length, number of bags, end, what is wrong) of one run."""
    value, at, wrong = _take_count(data, at, end, limit, wrong)
    count = left
    if is_last == 0:
        count, at, wrong = _take_count(data, at, end, limit, wrong)
    wrong = tl.where((wrong == _OK) & ((count <= 0) | (count > left)), _BAD_RUNS, wrong)
    return value, count, at, wrong


@triton.jit
def _take_runs(data, at, end, limit, n, wrong):
    """Return (sum of the lengths, end, what is wrong) of all runs."""
    num_runs, at, wrong = _take_count(data, at, end, limit, wrong)
    bad = (num_runs > n) | ((num_runs > 0) != (n > 0))
    wrong = tl.where((wrong == _OK) & bad, _BAD_RUNS, wrong)
    left, total, run = n, n * 0, n * 0
    while (wrong == _OK) & (run < num_runs):
        is_last = (run == num_runs - 1).to(tl.int64)
        value, count, at, wrong = _take_run(data, at, end, is_last, left, limit, wrong)
        bad = (value > 0) & (count > (limit - total) // tl.maximum(value, 1))
        wrong = tl.where((wrong == _OK) & bad, _TOO_MANY, wrong)
        total, left, run = total + value * count, left - count, run + 1
    wrong = tl.where((wrong == _OK) & (left > 0), _BAD_RUNS, wrong)
    return tl.where(wrong == _OK, total, 0), at, wrong


@triton.jit
def _take_lengths(data, at, end, limit, n, row, wrong):
    """Read what the head says of the lengths. Return (ids, bytes of stream, end, what is wrong)."""
    length_bits, at, wrong = _take_byte(data, at, end, wrong)
    base, m, runs_at = n * 0, n * 0, at
    wrong = tl.where((wrong == _OK) & (length_bits > MAX_LENGTH_BITS), _BAD_BITS, wrong)
    if length_bits == 0:
        m, at, wrong = _take_runs(data, at, end, limit, n, wrong)
    else:
        base, at, wrong = _take_count(data, at, end, limit, wrong)
        m, at, wrong = _take_count(data, at, end, limit, wrong)
    tl.store(row + columns.LENGTH_BITS, length_bits)
    tl.store(row + columns.LENGTH_BASE, base)
    tl.store(row + columns.RUNS, runs_at)
    return m, (length_bits * n + 7) // 8, at, wrong


@triton.jit
def _take_kind(data, at, end, m, row, wrong):
    """Read what the head says of m > 0 ids. Return (bytes of their streams, end, what is wrong)."""
    kind, at, wrong = _take_byte(data, at, end, wrong)
    bits, at, wrong = _take_byte(data, at, end, wrong)
    wrong = tl.where((wrong == _OK) & (((kind & 3) > STEPS) | (kind >= 8)), _BAD_KIND, wrong)
    most = tl.where((kind & UNARY) > 0, MAX_UNARY_BITS, 64)
    wrong = tl.where((wrong == _OK) & (bits > most), _BAD_BITS, wrong)
    number, at, wrong = _take_varint(data, at, end, wrong)
    unary_nbytes = m * 0
    if (kind & UNARY) > 0:
        unary_nbytes, at, wrong = _take_count(data, at, end, end, wrong)
        wrong = tl.where(wrong == _TOO_MANY, _BAD_SIZE, wrong)
    tl.store(row + columns.KIND, kind)
    tl.store(row + columns.BITS, bits)
    tl.store(row + columns.BASE, (number >> 1).to(tl.int64) ^ -(number & 1).to(tl.int64))
    tl.store(row + columns.UNARY_NBYTES, unary_nbytes)
    num_words = m - ((kind & 3) != OFFSETS).to(tl.int64)
    return (bits * num_words + 7) // 8 + unary_nbytes, at, wrong


@triton.jit
def read_heads(data, begins, ends, num_bags, plans, heads_end, flag, count, STATES: tl.constexpr):
    """Read the heads of a message of `count` segments.

    Args:
        num_bags: [P * count] int64, bags of each segment, unless the message STATES them.
        plans: [P * count, NUM_COLUMNS] int64, written; AT is the place after all heads.
        heads_end: [P] int64, written.
    """
    p = tl.program_id(0).to(tl.int64)
    at, end = tl.load(begins + p), tl.load(ends + p)
    limit, items, streams = (end - at) * _ITEMS_PER_BYTE, at * 0, at * 0
    wrong, s = tl.cast(0, tl.int32), p * count
    while (wrong == _OK) & (s < (p + 1) * count):
        row = plans + s * columns.NUM_COLUMNS
        if STATES:
            n, at, wrong = _take_count(data, at, end, limit, wrong)
        else:
            n = tl.load(num_bags + s)
            wrong = tl.where(n > limit, _TOO_MANY, wrong)
        m, nbytes, at, wrong = _take_lengths(data, at, end, limit, n, row, wrong)
        tl.store(row + columns.BAGS, n)
        tl.store(row + columns.IDS, m)
        tl.store(row + columns.AT, streams)
        if m > 0:
            id_nbytes, at, wrong = _take_kind(data, at, end, m, row, wrong)
            nbytes += id_nbytes
        items, streams = items + n + m, streams + nbytes
        wrong = tl.where((wrong == _OK) & (items > limit), _TOO_MANY, wrong)
        s += 1
    tl.store(heads_end + p, at)
    fits = at + streams <= end - _SPARE_NBYTES
    wrong = tl.where((wrong == _OK) & (fits == 0), _BAD_SIZE, wrong)
    _note(flag, s - 1, wrong)


@triton.jit
def _take_words(words, num_words, at, i, there, bits):
    """Return the numbers i of those of `bits` bits that begin at byte `at`, as uint64.

    Args: words: pointer to all bytes, as int64.  num_words: how many there are.
    """
    bit = at * 8 + i * bits
    word, shift = bit >> 6, (bit & 63).to(tl.uint64)
    low = tl.load(words + word, mask=there & (word < num_words), other=0)
    high = tl.load(words + word + 1, mask=there & (word + 1 < num_words), other=0)
    low, high = low.to(tl.uint64), high.to(tl.uint64)
    # In two steps, as a shift by 64 is none.
    number = (low >> shift) | ((high << 1) << (63 - shift))
    return number & mask_of(bits)


@triton.jit
def _places(plans, heads_end, s, count):
    """Return (place of the low bits, place of the high parts, number of words) of a segment."""
    row = plans + s * columns.NUM_COLUMNS
    at = tl.load(heads_end + s // count) + tl.load(row + columns.AT)
    at += (tl.load(row + columns.LENGTH_BITS) * tl.load(row + columns.BAGS) + 7) // 8
    m, is_gap = tl.load(row + columns.IDS), (tl.load(row + columns.KIND) & 3) != OFFSETS
    num_words = m - (is_gap & (m > 0)).to(tl.int64)
    return at, at + (tl.load(row + columns.BITS) * num_words + 7) // 8, num_words


@triton.jit
def _sum_before(sums, number, block, BLOCKS: tl.constexpr):
    """Return the sum over the blocks of a segment before its block. number: that of the block."""
    total, tile = tl.cast(0, tl.int64), number - block
    while tile < number:
        b = tile + tl.arange(0, BLOCKS)
        total += tl.sum(tl.load(sums + b, mask=b < number, other=0), 0)
        tile += BLOCKS
    return total


@triton.jit
def _fill_runs(data, at, end, n, lengths, first, BLOCK: tl.constexpr):
    """Write a block of the lengths of runs that `read_heads` has checked. Return what is wrong."""
    limit, wrong = n * 0 + (1 << 62), tl.cast(0, tl.int32)
    num_runs, at, wrong = _take_count(data, at, end, limit, wrong)
    begin, run, i = n * 0, n * 0, first + tl.arange(0, BLOCK)
    while (wrong == _OK) & (run < num_runs) & (begin < first + BLOCK):
        is_last = (run == num_runs - 1).to(tl.int64)
        value, count, at, wrong = _take_run(data, at, end, is_last, n - begin, limit, wrong)
        narrow = value.to(lengths.dtype.element_ty)
        tl.store(lengths + i, narrow, mask=(i >= begin) & (i < begin + count))
        is_odd = (narrow.to(tl.int64) != value) & (begin + count > first)
        wrong = tl.where((wrong == _OK) & is_odd, _BAD_DTYPE, wrong)
        begin, run = begin + count, run + 1
    return wrong


@triton.jit
def _read_lengths(data, words, num_words, end, row, at, first, lengths, BLOCK: tl.constexpr):
    """Read a block of a segment's lengths, from bag `first` on. Return what is wrong."""
    n, length_bits = tl.load(row + columns.BAGS), tl.load(row + columns.LENGTH_BITS)
    wrong = tl.cast(0, tl.int32)
    if length_bits == 0:
        wrong = _fill_runs(data, tl.load(row + columns.RUNS), end, n, lengths, first, BLOCK)
    else:
        i = first + tl.arange(0, BLOCK)
        number = _take_words(words, num_words, at, i, i < n, length_bits).to(tl.int64)
        number = tl.where(i < n, number + tl.load(row + columns.LENGTH_BASE), 0)
        narrow = number.to(lengths.dtype.element_ty)
        tl.store(lengths + i, narrow, mask=i < n)
        total = tl.sum(number, 0)
        tl.atomic_add(row + columns.LOW_SUM, total & 0xFFFFFFFF, sem="relaxed")
        tl.atomic_add(row + columns.HIGH_SUM, total >> 32, sem="relaxed")
        is_odd = tl.max((narrow.to(tl.int64) != number).to(tl.int32), 0)
        wrong = tl.where(is_odd > 0, _BAD_DTYPE, wrong)
    return wrong


@triton.jit
def _ones_of(data, i, nbytes):
    """Return (bytes with indices i, 0 from nbytes on; how many ones each of them has), int32."""
    byte = tl.load(data + i, mask=i < nbytes, other=0).to(tl.int32)
    num = byte - ((byte >> 1) & 0x55)
    num = (num & 0x33) + ((num >> 2) & 0x33)
    return byte, (num + (num >> 4)) & 0xF


@triton.jit(do_not_specialize=["num_words", "bag_blocks", "id_blocks"])
def read_blocks(
    data, words, ends, plans, heads_end, first_bag, first_id, first_byte, gap_sums, one_sums,
    lengths, flag, num_segments, count, num_words, bag_blocks, id_blocks, BLOCK: tl.constexpr,
):  # fmt: skip
    """Read a block of lengths, add up a block of gaps, or count the ones of a block of high parts.

    Args:
        first_bag, first_id, first_byte: [S + 1]; bytes are those of high parts.
        gap_sums: [blocks of ids] int64, written: sums of gaps, without high parts.
        one_sums: [blocks of bytes] int64, written: numbers of ones.
        lengths: [B] int32 or int64, written.
    """
    b = tl.program_id(0).to(tl.int64)
    if b < bag_blocks:
        s, first = block_of(b, first_bag, num_segments, BLOCK)
        row, end = plans + s * columns.NUM_COLUMNS, tl.load(ends + s // count)
        at = tl.load(heads_end + s // count) + tl.load(row + columns.AT)
        if first < tl.load(row + columns.BAGS):
            lengths += tl.load(first_bag + s)
            wrong = _read_lengths(data, words, num_words, end, row, at, first, lengths, BLOCK)
            _note(flag, s, wrong)
    elif b < bag_blocks + id_blocks:
        s, first = block_of(b - bag_blocks, first_id, num_segments, BLOCK)
        row = plans + s * columns.NUM_COLUMNS
        kind = tl.load(row + columns.KIND)
        if ((kind & 3) != OFFSETS) & (first < tl.load(row + columns.IDS)):
            at, _, num = _places(plans, heads_end, s, count)
            w = first + tl.arange(0, BLOCK)
            bits, step = tl.load(row + columns.BITS), ((kind & 3) == STEPS).to(tl.int64)
            word = _take_words(words, num_words, at, w, w < num, bits).to(tl.int64) + step
            tl.store(gap_sums + b - bag_blocks, tl.sum(tl.where(w < num, word, 0), 0))
    else:
        s, first = block_of(b - bag_blocks - id_blocks, first_byte, num_segments, BLOCK)
        _, at, _ = _places(plans, heads_end, s, count)
        nbytes = tl.load(first_byte + s + 1) - tl.load(first_byte + s)
        if first < nbytes:
            _byte, num = _ones_of(data + at, first + tl.arange(0, BLOCK), nbytes)
            tl.store(one_sums + b - bag_blocks - id_blocks, tl.sum(num, 0).to(tl.int64))


@triton.jit
def find_ones(
    data, plans, heads_end, first_id, first_byte, sums, ones, flag, num_segments, count,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Find the place of each one bit in a block of high parts. Each word has one such bit.

    Args: sums: `one_sums` of `read_blocks`.  ones: [N] int64, written.
    """
    number = tl.program_id(0).to(tl.int64)
    s, first = block_of(number, first_byte, num_segments, BLOCK)
    kind = tl.load(plans + s * columns.NUM_COLUMNS + columns.KIND)
    nbytes = tl.load(first_byte + s + 1) - tl.load(first_byte + s)
    if ((kind & UNARY) > 0) & (first < tl.maximum(nbytes, 1)):
        _, at, num_words = _places(plans, heads_end, s, count)
        before = _sum_before(sums, number, first // BLOCK, BLOCKS)
        b = first + tl.arange(0, BLOCK)
        byte, num = _ones_of(data + at, b, nbytes)
        one = before + tl.cumsum(num, 0) - num
        ones += tl.load(first_id + s)
        for t in tl.static_range(8):
            is_one = ((byte >> t) & 1) > 0
            tl.store(ones + one, b * 8 + t, mask=is_one & (one < num_words))
            one += is_one.to(tl.int64)
        if first + BLOCK >= nbytes:
            last = tl.load(data + at + nbytes - 1, mask=nbytes > 0, other=1)
            wrong = (before + tl.sum(num, 0) != num_words) | (last == 0)
            _note(flag, s, tl.where(wrong, _BAD_HIGH, _OK))


@triton.jit(do_not_specialize=["num_words"])
def read(
    words, plans, heads_end, first_id, sums, ones, ids, flag, num_segments, count, num_words,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Read a block of ids of a segment; its first block also checks the sum of the lengths.

    Args: sums: `gap_sums` of `read_blocks`.  ids: [N], int32 or int64, written.
    """
    number = tl.program_id(0).to(tl.int64)
    s, begin = block_of(number, first_id, num_segments, BLOCK)
    row = plans + s * columns.NUM_COLUMNS
    m, wrong = tl.load(row + columns.IDS), tl.cast(0, tl.int32)
    if (begin == 0) & (tl.load(row + columns.LENGTH_BITS) > 0):
        low, high = tl.load(row + columns.LOW_SUM), tl.load(row + columns.HIGH_SUM)
        is_sum = (high + (low >> 32) == m >> 32) & (low & 0xFFFFFFFF == m & 0xFFFFFFFF)
        wrong = tl.where(is_sum, _OK, _BAD_SUM)
    if begin < m:
        at, _, num = _places(plans, heads_end, s, count)
        kind, bits = tl.load(row + columns.KIND), tl.load(row + columns.BITS)
        base, first = tl.load(row + columns.BASE), tl.load(first_id + s)
        is_gap, has_high = (kind & 3) != OFFSETS, (kind & UNARY) > 0
        step, i = ((kind & 3) == STEPS).to(tl.int64), begin + tl.arange(0, BLOCK)
        word = _take_words(words, num_words, at, i, i < num, bits).to(tl.int64)
        last = tl.load(ones + first + i - 1, mask=(i > 0) & (i < m) & has_high, other=-1)
        if is_gap:
            # The zeros before the last one are the sum of all high parts so far.
            word = tl.where(i < num, word + step, 0)
            base += _sum_before(sums, number, begin // BLOCK, BLOCKS)
            high = last + 1 - i
            word = tl.cumsum(word, 0) - word
        else:
            place = tl.load(ones + first + i, mask=(i < m) & has_high, other=0)
            high = place - last - 1
        high = tl.where(has_high, high, 0) << tl.where(has_high, bits, 0)
        id = base + word + high
        narrow = id.to(ids.dtype.element_ty)
        tl.store(ids + first + i, narrow, mask=i < m)
        is_odd = tl.max(((i < m) & (narrow.to(tl.int64) != id)).to(tl.int32), 0)
        wrong = tl.where((wrong == _OK) & (is_odd > 0), _BAD_DTYPE, wrong)
    _note(flag, s, wrong)
