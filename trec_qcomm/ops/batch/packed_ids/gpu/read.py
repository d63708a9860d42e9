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
def find_ones(data, plans, heads_end, first_id, ones, flag, count, BLOCK: tl.constexpr):
    """Find the place of each one bit among a segment's high parts. Each word has one such bit.

    Args: ones: [N] int64, written. The word from an id to the next is noted at the latter's place.
    """
    s = tl.program_id(0).to(tl.int64)
    row = plans + s * columns.NUM_COLUMNS
    m, kind = tl.load(row + columns.IDS), tl.load(row + columns.KIND)
    if (m > 0) & ((kind & UNARY) > 0):
        skip = ((kind & 3) != OFFSETS).to(tl.int64)
        num_words, nbytes = m - skip, tl.load(row + columns.UNARY_NBYTES)
        at = tl.load(heads_end + s // count) + tl.load(row + columns.AT)
        at += (tl.load(row + columns.LENGTH_BITS) * tl.load(row + columns.BAGS) + 7) // 8
        at += (tl.load(row + columns.BITS) * num_words + 7) // 8
        out = ones + tl.load(first_id + s) + skip
        before, begin, last = m * 0, m * 0, m * 0 - 1
        while begin < nbytes:
            b = begin + tl.arange(0, BLOCK)
            byte = tl.load(data + at + b, mask=b < nbytes, other=0).to(tl.int64)
            num = tl.zeros_like(byte)
            for t in tl.static_range(8):
                num += (byte >> t) & 1
            number = before + tl.cumsum(num, 0) - num
            for t in tl.static_range(8):
                is_one = ((byte >> t) & 1) > 0
                there = is_one & (number < num_words)
                tl.store(out + number, b * 8 + t, mask=there)
                last = tl.maximum(last, tl.max(tl.where(is_one, b * 8 + t, -1), 0))
                number += is_one.to(tl.int64)
            before += tl.sum(num, 0)
            begin += BLOCK
        wrong = (before != num_words) | (nbytes != (last + 8) // 8)
        _note(flag, s, tl.where(wrong, _BAD_HIGH, _OK))


@triton.jit
def _fill_runs(data, at, end, n, lengths, BLOCK: tl.constexpr):
    """Write the lengths of runs that `read_heads` has checked. Return what is wrong."""
    limit, wrong = n * 0 + (1 << 62), tl.cast(0, tl.int32)
    num_runs, at, wrong = _take_count(data, at, end, limit, wrong)
    done, run = n * 0, n * 0
    while (wrong == _OK) & (run < num_runs):
        is_last = (run == num_runs - 1).to(tl.int64)
        value, count, at, wrong = _take_run(data, at, end, is_last, n - done, limit, wrong)
        narrow, begin = value.to(lengths.dtype.element_ty), done
        while begin < done + count:
            i = begin + tl.arange(0, BLOCK)
            tl.store(lengths + i, narrow, mask=i < done + count)
            begin += BLOCK
        wrong = tl.where((wrong == _OK) & (narrow.to(tl.int64) != value), _BAD_DTYPE, wrong)
        done, run = done + count, run + 1
    return wrong


@triton.jit(do_not_specialize=["num_words"])
def read(
    data, words, begins, ends, plans, heads_end, first_bag, first_id, ones, lengths, ids, flag,
    count, num_words, BLOCK: tl.constexpr,
):  # fmt: skip
    """Read the lengths and ids of a segment.

    Args: lengths: [B], ids: [N], int32 or int64, written.
    """
    s = tl.program_id(0).to(tl.int64)
    row = plans + s * columns.NUM_COLUMNS
    p = s // count
    at = tl.load(heads_end + p) + tl.load(row + columns.AT)
    n, m = tl.load(row + columns.BAGS), tl.load(row + columns.IDS)
    lengths += tl.load(first_bag + s)
    length_bits, wrong = tl.load(row + columns.LENGTH_BITS), tl.cast(0, tl.int32)
    if length_bits == 0:
        wrong = _fill_runs(data, tl.load(row + columns.RUNS), tl.load(ends + p), n, lengths, BLOCK)
    else:
        base, total, begin = tl.load(row + columns.LENGTH_BASE), n * 0, n * 0
        while (begin < n) & (total <= m):
            i = begin + tl.arange(0, BLOCK)
            number = _take_words(words, num_words, at, i, i < n, length_bits).to(tl.int64) + base
            narrow = number.to(lengths.dtype.element_ty)
            tl.store(lengths + i, narrow, mask=i < n)
            total += tl.sum(tl.where(i < n, number, 0), 0)
            odd = tl.max(((i < n) & (narrow.to(tl.int64) != number)).to(tl.int32), 0)
            wrong = tl.where(odd > 0, _BAD_DTYPE, wrong)
            begin += BLOCK
        wrong = tl.where(total != m, _BAD_SUM, wrong)
        at += (length_bits * n + 7) // 8
    if m > 0:
        kind, bits = tl.load(row + columns.KIND), tl.load(row + columns.BITS)
        base, first = tl.load(row + columns.BASE), tl.load(first_id + s)
        is_gap, has_high = (kind & 3) != OFFSETS, (kind & UNARY) > 0
        step, skip = ((kind & 3) == STEPS).to(tl.int64), is_gap.to(tl.int64)
        # With gaps each id is the sum of all words so far, and the first one's word is 0.
        begin, before = m * 0, base
        while begin < m:
            i = begin + tl.arange(0, BLOCK)
            there = (i < m) & (i >= skip)
            word = _take_words(words, num_words, at, i - skip, there, bits).to(tl.int64)
            place = tl.load(ones + first + i, mask=there & has_high, other=0)
            last = tl.load(ones + first + i - 1, mask=there & has_high & (i > skip), other=-1)
            high = tl.where(there & has_high, place - last - 1, 0)
            word += high << tl.where(has_high, bits, 0)
            word = tl.where(there, word + step, 0)
            number = before + tl.where(is_gap, tl.cumsum(word, 0), word)
            before += tl.where(is_gap, tl.sum(word, 0), 0)
            narrow = number.to(ids.dtype.element_ty)
            tl.store(ids + first + i, narrow, mask=i < m)
            odd = tl.max(((i < m) & (narrow.to(tl.int64) != number)).to(tl.int32), 0)
            wrong = tl.where((wrong == _OK) & (odd > 0), _BAD_DTYPE, wrong)
            begin += BLOCK
    _note(flag, s, wrong)
