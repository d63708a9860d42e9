"""Packed ids in numba: the decoder. It refuses and returns what reference.py does.

A first kernel reads all heads, so that the sizes are known, and bounded by the bytes, before memory
is allocated. A second kernel reads the streams. A message ends in spare bytes, so that 64-bit words
can be loaded from any byte of its streams.
"""

import numpy as np

from trec_qcomm.jit import inner, intrinsic, kernel, numba
from trec_qcomm.ops.batch.packed_ids.cpu import WIDE, mask_of
from trec_qcomm.ops.batch.packed_ids.reference import (
    ITEMS_PER_BYTE,
    MAX_LENGTH_BITS,
    MAX_UNARY_BITS,
    OFFSETS,
    SPARE_NBYTES,
    STEPS,
    UNARY,
)
from trec_qcomm.ops.bitpack.cpu import load_uint64

OK, BAD_SIZE, BAD_NUMBER, TOO_MANY, BAD_RUNS, BAD_BITS, BAD_KIND, BAD_SUM, BAD_HIGH = range(9)
_ONE, _HALF = np.uint64(1), 32


@intrinsic
def _trailing_zeros(typing, word):
    """Count the trailing zeros of a uint64; 64 for 0."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], numba.core.cgutils.false_bit)

    return numba.types.int64(numba.types.uint64), codegen


@inner
def _take_varint(data, at, end):
    """Return (number, its end, OK or what is wrong)."""
    number, shift = np.uint64(0), np.uint64(0)
    for k in range(10):
        if at >= end:
            return number, at, BAD_SIZE
        byte = np.uint64(data[at])
        at += 1
        number |= (byte & np.uint64(127)) << shift
        shift += np.uint64(7)
        if byte < np.uint64(128):
            return number, at, BAD_NUMBER if k == 9 and byte > _ONE else OK
    return number, at, BAD_NUMBER


@inner
def _take_count(data, at, end, limit):
    """Return (number up to `limit`, its end, OK or what is wrong)."""
    number, at, wrong = _take_varint(data, at, end)
    if wrong == OK and number > np.uint64(limit):
        wrong = TOO_MANY
    return np.int64(number), at, wrong


@inner
def _take_run(data, at, end, is_last, left, limit):
    """Return (length, number of bags, end, OK or what is wrong) of one run."""
    value, at, wrong = _take_count(data, at, end, limit)
    count = left
    if wrong == OK and not is_last:
        count, at, wrong = _take_count(data, at, end, limit)
    if wrong == OK and not 0 < count <= left:
        wrong = BAD_RUNS
    return value, count, at, wrong


@inner
def _take_runs(data, at, end, limit, plan):
    """Check the runs and set `ids` to their sum. Return (their end, OK or what is wrong)."""
    plan.runs = at
    num_runs, at, wrong = _take_count(data, at, end, limit)
    left, total = plan.bags, np.int64(0)
    if wrong == OK and (num_runs > left or (num_runs > 0) != (left > 0)):
        wrong = BAD_RUNS
    for run in range(num_runs if wrong == OK else 0):
        value, count, at, wrong = _take_run(data, at, end, run == num_runs - 1, left, limit)
        if wrong == OK and value > 0 and count > (limit - total) // value:
            wrong = TOO_MANY
        if wrong != OK:
            return at, wrong
        total, left = total + value * count, left - count
    plan.ids = total
    return at, BAD_RUNS if wrong == OK and left else wrong


@inner
def _take_kind(data, at, end, plan):
    """Read what the head says of the ids. Return (its end, OK or what is wrong)."""
    plan.kind, plan.bits, plan.base, plan.unary_nbytes = 0, 0, 0, 0
    if plan.ids == 0:
        return at, OK
    if end - at < 2:
        return at, BAD_SIZE
    kind, bits = np.int64(data[at]), np.int64(data[at + 1])
    if kind & 3 > STEPS or kind >= 8:
        return at, BAD_KIND
    if bits > (MAX_UNARY_BITS if kind & UNARY else 64):
        return at, BAD_BITS
    zigzag, at, wrong = _take_varint(data, at + 2, end)
    plan.kind, plan.bits = kind, bits
    plan.base = np.int64(zigzag >> _ONE) ^ -np.int64(zigzag & _ONE)
    if wrong == OK and kind & UNARY:
        plan.unary_nbytes, at, wrong = _take_count(data, at, end, end)
        wrong = BAD_SIZE if wrong == TOO_MANY else wrong
    return at, wrong


@inner
def _take_head(data, at, end, states_bags, limit, plan):
    """Read a segment's head. Return (its end, OK or what is wrong)."""
    wrong = OK
    if states_bags:
        plan.bags, at, wrong = _take_count(data, at, end, limit)
    elif plan.bags > limit:
        wrong = TOO_MANY
    if wrong != OK:
        return at, wrong
    if at >= end:
        return at, BAD_SIZE
    plan.length_bits, plan.length_base, plan.runs = np.int64(data[at]), 0, 0
    at += 1
    if plan.length_bits == 0:
        at, wrong = _take_runs(data, at, end, limit, plan)
    elif plan.length_bits > MAX_LENGTH_BITS:
        wrong = BAD_BITS
    else:
        plan.length_base, at, wrong = _take_count(data, at, end, limit)
        if wrong == OK:
            plan.ids, at, wrong = _take_count(data, at, end, limit)
    if wrong != OK:
        return at, wrong
    return _take_kind(data, at, end, plan)


@inner
def _place_streams(at, end, plan):
    """Set `at`. Return the end of the segment's streams, or -1 where they do not fit."""
    plan.at = at
    bits, n = plan.length_bits, plan.bags
    at += (bits * n + 7) // 8
    words = plan.ids - np.int64(plan.ids > 0 and plan.kind & 3 != OFFSETS)
    at += (plan.bits * words + 7) // 8
    if at > end or plan.unary_nbytes > end - at:
        return np.int64(-1)
    return at + plan.unary_nbytes


@kernel
def read_heads(data, begins, ends, count, states_bags, plans):
    """Read the heads of P messages of `count` segments each.

    Args:
        data: [W] uint8.  begins, ends: [P] int64, of each message without its header.
        plans: [P * count] cpu.PLAN, written; its bags are given unless `states_bags`.
    Returns: (OK or the kind of error, the segment).
    """
    for p in range(begins.size):
        at, end, items = begins[p], ends[p], np.int64(0)
        limit = ITEMS_PER_BYTE * (end - at)
        for s in range(p * count, (p + 1) * count):
            at, wrong = _take_head(data, at, end, states_bags, limit, plans[s])
            if wrong != OK:
                return wrong, s
            items += plans[s].bags + plans[s].ids
            if items > limit:
                return TOO_MANY, s
        for s in range(p * count, (p + 1) * count):
            at = _place_streams(at, end - SPARE_NBYTES, plans[s])
            if at < 0:
                return BAD_SIZE, s
        if at > end - SPARE_NBYTES:
            return BAD_SIZE, (p + 1) * count - 1
    return OK, -1


@inner(forceinline=True)
def _take_bits(data, at, bit, width, mask):
    """Return the number of up to 56 bits that begins `bit` bits behind the byte `at`."""
    return (load_uint64(data, at + (bit >> 3)) >> np.uint64(bit & 7)) & mask


@inner(forceinline=True)
def _take_wide(data, at, bit, mask):
    """Return the number of 57 to 64 bits that begins `bit` bits behind the byte `at`."""
    half = np.uint64(_HALF)
    low = _take_bits(data, at, bit, _HALF, mask_of(_HALF))
    return low | (_take_bits(data, at, bit + _HALF, _HALF, mask >> half) << half)


@inner
def _take_words(data, at, bits, base, out):
    """Set out to base + words."""
    mask = mask_of(bits)
    if bits <= WIDE:
        for i in range(out.size):
            out[i] = np.int64(base + _take_bits(data, at, i * bits, bits, mask))
    else:
        for i in range(out.size):
            out[i] = np.int64(base + _take_wide(data, at, i * bits, mask))


@inner
def _add_high_parts(data, at, nbytes, bits, out):
    """Add the words' high parts to out. Return False where there is not one for each."""
    end, last, shift = 8 * nbytes, np.int64(-1), np.uint64(bits)
    first, word = np.int64(0), np.uint64(0)  # bits before the word; ones of it that are left
    if nbytes > 0:
        word = load_uint64(data, at)
    for i in range(out.size):
        while word == np.uint64(0):
            first += 64
            if first >= end:
                return False
            word = load_uint64(data, at + (first >> 3))
        place = first + _trailing_zeros(word)
        out[i] = np.int64(np.uint64(out[i]) + (np.uint64(place - last - 1) << shift))
        last = place
        word &= word - _ONE
    if last >= end or nbytes != (last + 8) // 8:
        return False
    return nbytes == 0 or np.int64(data[at + nbytes - 1]) >> (last & 7) == 1


@inner
def _sum_up(ids, step):
    """Replace gaps by ids. ids: the first id, then gaps less `step`."""
    for i in range(1, ids.size):
        ids[i] += ids[i - 1] + step


@inner
def _read_lengths(data, end, plan, lengths):
    """Fill lengths [n]. Return whether they add up to the ids."""
    total = np.int64(0)
    if plan.length_bits == 0:
        num_runs, at, _ = _take_varint(data, plan.runs, end)
        for run in range(np.int64(num_runs)):
            is_last, left = run == np.int64(num_runs) - 1, lengths.size - total
            value, count, at, _ = _take_run(data, at, end, is_last, left, np.int64(1) << 62)
            lengths[total : total + count] = value
            total += count
        return True
    _take_words(data, plan.at, plan.length_bits, np.uint64(plan.length_base), lengths)
    too_many = False
    for i in range(lengths.size):
        total += lengths[i]
        too_many |= total > plan.ids
    return total == plan.ids and not too_many


@inner
def _read_ids(data, plan, ids):
    """Fill ids [m]. Return whether there is one high part for each word, where there are any."""
    if ids.size == 0:
        return True
    kind, bits, base = plan.kind & 3, plan.bits, np.uint64(plan.base)
    at = plan.at + (plan.length_bits * plan.bags + 7) // 8
    first = np.int64(kind != OFFSETS)
    words = ids[first:]
    _take_words(data, at, bits, np.uint64(0) if first else base, words)
    if plan.kind & UNARY:
        at += (bits * words.size + 7) // 8
        if not _add_high_parts(data, at, plan.unary_nbytes, bits, words):
            return False
    if first:
        ids[0] = plan.base
        _sum_up(ids, np.int64(kind == STEPS))
    return True


@kernel
def read_streams(data, ends, count, plans, lengths, ids):
    """Fill lengths and ids from the streams of messages whose heads were read.

    Returns: (OK or the kind of error, the segment).
    """
    bag, first = np.int64(0), np.int64(0)
    for s in range(ends.size * count):
        plan = plans[s]
        n, m = plan.bags, plan.ids
        if not _read_lengths(data, ends[s // count], plan, lengths[bag : bag + n]):
            return BAD_SUM, s
        if not _read_ids(data, plan, ids[first : first + m]):
            return BAD_HIGH, s
        bag, first = bag + n, first + m
    return OK, -1
