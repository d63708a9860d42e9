"""Packed ids in numba: the encoder. Same bytes as reference.py; cpu_read.py is the decoder.

A first kernel goes through all segments and chooses their parameters, so that sizes are known
before memory is allocated. A second kernel writes. Only the loops over high parts have branches
that depend on the ids. 64-bit words are stored at any byte, and may reach 8 bytes beyond a stream.
That is safe: later bytes are written later, and a message ends in spare bytes.
"""

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.batch.packed_ids.reference import (
    GAPS,
    ITEMS_PER_BYTE,
    MAX_RUNS,
    MAX_UNARY_BITS,
    OFFSETS,
    SPARE_NBYTES,
    STEPS,
    UNARY,
)
from trec_qcomm.ops.bitpack.cpu import bit_length, store_uint64

NEGATIVE, OTHER_SUM = -1, -2  # what is wrong with lengths
_ONE = np.uint64(1)
WIDE = 56  # bits up to which a word and the bits before it in a byte fit in 64
PLAN = np.dtype(  # what describes a segment's bytes
    [
        ("bags", np.int64),
        ("ids", np.int64),
        ("length_bits", np.int64),  # bits of a packed length; 0: lengths are runs
        ("length_base", np.int64),  # what is added to a packed length
        ("runs", np.int64),  # encoder: number of runs; decoder: where they begin
        ("kind", np.int64),  # words of ids: see reference.py
        ("bits", np.int64),  # low bits of a word
        ("base", np.int64),  # the smallest or the first id
        ("unary_nbytes", np.int64),  # bytes of high parts
        ("at", np.int64),  # where the segment's streams begin
    ]
)


@inner(forceinline=True)
def _varint_nbytes(number):
    """Return the bytes of a uint64 as a varint."""
    return max((bit_length(number) + 6) // 7, 1)


@inner(forceinline=True)
def _zigzag(number):
    number = np.int64(number)
    return np.uint64((number << 1) ^ (number >> 63))


@inner(forceinline=True)
def mask_of(bits):
    """Return a word whose `bits` lowest bits are set. bits: 0..64."""
    return ~np.uint64(0) >> np.uint64(64 - bits) if bits > 0 else np.uint64(0)


@inner
def _runs_nbytes(lengths, num_runs):
    """Return the bytes of the lengths as runs."""
    nbytes, begin = _varint_nbytes(np.uint64(num_runs)), 0
    for i in range(1, lengths.size):
        if lengths[i] != lengths[i - 1]:
            nbytes += _varint_nbytes(np.uint64(lengths[begin]))
            nbytes += _varint_nbytes(np.uint64(i - begin))
            begin = i
    if lengths.size:
        nbytes += _varint_nbytes(np.uint64(lengths[begin]))
    return nbytes


@inner
def _plan_lengths(lengths, plan):
    """Set bags, ids, runs and what says how lengths are packed. Return the bytes of (head, stream).

    The head is that part of it which follows the number of bags; it is 0 for a negative length.
    """
    n, different = lengths.size, np.int64(0)
    first = lengths[0] if n else np.int64(0)
    total, low, high, num_runs = first * n, first, first, np.int64(n > 0)
    for i in range(n):
        different |= lengths[i] ^ first
    if different:
        total = first
        for i in range(1, n):
            length = lengths[i]
            total += length
            low, high = min(low, length), max(high, length)
            num_runs += length != lengths[i - 1]
    if low < 0:
        return 0, 0
    bits = bit_length(np.uint64(high - low))
    plan.bags, plan.ids, plan.runs = n, max(total, high), num_runs  # a sum may have overflowed
    head = _varint_nbytes(np.uint64(low)) + _varint_nbytes(np.uint64(total))
    stream = (bits * n + 7) // 8
    if num_runs <= MAX_RUNS:
        nbytes = _runs_nbytes(lengths, num_runs)
        if nbytes <= head + stream:
            plan.length_bits, plan.length_base = 0, 0
            return 1 + nbytes, 0
    plan.length_bits, plan.length_base = bits, low
    return 1 + head, stream


@inner
def _sums_of_high_parts(ids, step, bits):
    """Return the sums of words >> bits, >> bits + 1 and >> bits + 2. Words: gaps less `step`."""
    b0, step = np.uint64(bits), np.uint64(step)
    b1, b2 = b0 + _ONE, b0 + _ONE + _ONE
    sum0, sum1, sum2 = np.uint64(0), np.uint64(0), np.uint64(0)
    for i in range(1, ids.size):
        word = np.uint64(ids[i]) - np.uint64(ids[i - 1]) - step
        sum0 += word >> b0
        sum1 += word >> b1
        sum2 += word >> b2
    return np.int64(sum0), np.int64(sum1), np.int64(sum2)


@inner
def _order_and_gaps(ids):
    """Return whether ids do not decrease, whether they increase, and all gaps or-ed: as they are,
    and less 1."""
    is_sorted, is_distinct = True, True
    gaps, steps = np.uint64(0), np.uint64(0)
    for i in range(1, ids.size):
        is_sorted &= ids[i] >= ids[i - 1]
        is_distinct &= ids[i] > ids[i - 1]
        gap = np.uint64(ids[i]) - np.uint64(ids[i - 1])
        gaps |= gap
        steps |= gap - _ONE
    return is_sorted, is_distinct, gaps, steps


@inner
def _plan_offsets(ids, plan):
    """Set kind, bits and base for ids in any order. Return the bytes of the stream."""
    low, high = ids[0], ids[0]
    for i in range(1, ids.size):
        low, high = min(low, ids[i]), max(high, ids[i])
    plan.kind, plan.base = OFFSETS, low
    plan.bits = bit_length(np.uint64(high) - np.uint64(low))
    return (plan.bits * ids.size + 7) // 8


@inner
def _plan_ids(ids, plan):
    """Set kind, bits, base and unary_nbytes. Return the bytes of the stream. ids: not empty."""
    is_sorted, is_distinct, gaps, steps = _order_and_gaps(ids)
    plan.unary_nbytes = 0
    if not is_sorted:
        return _plan_offsets(ids, plan)
    m, step = ids.size, np.int64(is_distinct)
    count = m - 1
    plan.base, plan.kind = ids[0], STEPS if is_distinct else GAPS
    plan.bits = bit_length(steps if is_distinct else gaps)
    fewest = (plan.bits * count + 7) // 8
    if count == 0:
        return fewest
    span = np.uint64(ids[m - 1]) - np.uint64(ids[0])
    mean = (span - np.uint64(step * count)) // np.uint64(count)
    first = max(bit_length(mean) - 2, 0)
    last = min(max(bit_length(mean), 1), MAX_UNARY_BITS)
    if first > last:
        return fewest
    sums = _sums_of_high_parts(ids, step, first)
    for bits in range(first, last + 1):
        unary = (count + sums[bits - first] + 7) // 8
        nbytes = (bits * count + 7) // 8 + unary
        if nbytes < fewest:
            fewest, plan.bits, plan.unary_nbytes = nbytes, bits, unary
            plan.kind = (STEPS if is_distinct else GAPS) + UNARY
    return fewest


@inner(forceinline=True)
def _head_of_ids_nbytes(plan):
    nbytes = 2 + _varint_nbytes(_zigzag(plan.base))
    if plan.kind & UNARY:
        nbytes += _varint_nbytes(np.uint64(plan.unary_nbytes))
    return nbytes


@kernel
def plan_messages(ids, lengths, num_bags, counts, states_bags, room, alignment, plans, nbytes):
    """Choose the parameters of all segments, and set the size of each message.

    Args:
        num_bags: [S] bags of each segment.  counts: [P] segments of each message.
        states_bags: whether each segment says how many bags it has.
        room: bytes that stay free before each message.
        alignment: number of which the size of each message is a multiple.
        plans: [S] PLAN, written.  nbytes: [P] int64, written, `room` included.
    Returns: (NEGATIVE, OTHER_SUM or 0, the segment).
    """
    begin, bag, first, s = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for p in range(counts.size):
        nbytes[p] = 0
        if counts[p] == 0:
            continue
        head, stream, items = np.int64(0), np.int64(0), np.int64(0)
        for _ in range(counts[p]):
            plan, n = plans[s], num_bags[s]
            if bag + n > lengths.size:
                return OTHER_SUM, s
            head_nbytes, stream_nbytes = _plan_lengths(lengths[bag : bag + n], plan)
            if head_nbytes == 0:
                return NEGATIVE, s
            m = plan.ids
            if m > ids.size - first:
                return OTHER_SUM, s
            plan.at = stream
            stream += stream_nbytes
            if m:
                stream += _plan_ids(ids[first : first + m], plan)
                head_nbytes += _head_of_ids_nbytes(plan)
            head += head_nbytes + (_varint_nbytes(np.uint64(n)) if states_bags else 0)
            bag, first, items, s = bag + n, first + m, items + n + m, s + 1
        for earlier in range(s - counts[p], s):
            plans[earlier].at += begin + room + head
        size = max(head + stream + SPARE_NBYTES, (items + ITEMS_PER_BYTE - 1) // ITEMS_PER_BYTE)
        nbytes[p] = (room + size + alignment - 1) // alignment * alignment
        begin += nbytes[p]
    return (0 if bag == lengths.size and first == ids.size else OTHER_SUM), s


@inner(forceinline=True)
def _put_varint(out, at, number):
    while number >= np.uint64(128):
        out[at] = np.uint8(number & np.uint64(127)) | np.uint8(128)
        number >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(number)
    return at + 1


@inner
def _put_runs(lengths, num_runs, out, at):
    at, begin = _put_varint(out, at, np.uint64(num_runs)), 0
    for i in range(1, lengths.size):
        if lengths[i] != lengths[i - 1]:
            at = _put_varint(out, at, np.uint64(lengths[begin]))
            at = _put_varint(out, at, np.uint64(i - begin))
            begin = i
    return _put_varint(out, at, np.uint64(lengths[begin])) if lengths.size else at


@inner
def _put_head(plan, lengths, states_bags, out, at):
    """Write a segment's head. Return its end."""
    if states_bags:
        at = _put_varint(out, at, np.uint64(plan.bags))
    out[at] = np.uint8(plan.length_bits)
    at += 1
    if plan.length_bits == 0:
        at = _put_runs(lengths, plan.runs, out, at)
    else:
        at = _put_varint(out, at, np.uint64(plan.length_base))
        at = _put_varint(out, at, np.uint64(plan.ids))
    if plan.ids:
        out[at], out[at + 1] = np.uint8(plan.kind), np.uint8(plan.bits)
        at = _put_varint(out, at + 2, _zigzag(plan.base))
        if plan.kind & UNARY:
            at = _put_varint(out, at, np.uint64(plan.unary_nbytes))
    return at


@inner(forceinline=True)
def _word(values, i, is_gap, base, step):
    before = np.uint64(values[i - 1]) if is_gap else base
    return np.uint64(values[i]) - before - step


@inner
def _put_low_bits(values, first, is_gap, base, step, bits, out, at):
    """Write the low bits of the words of values[first:], one behind the other, at out[at:]."""
    mask, width, held, carry = mask_of(bits), np.uint64(bits), np.uint64(0), np.uint64(0)
    if bits <= WIDE:
        for i in range(first, values.size):
            carry |= (_word(values, i, is_gap, base, step) & mask) << held
            store_uint64(out, at, carry)
            held += width
            at += np.int64(held >> np.uint64(3))
            carry >>= held & np.uint64(56)
            held &= np.uint64(7)
        return
    for i in range(first, values.size):
        word = _word(values, i, is_gap, base, step) & mask
        store_uint64(out, at, carry | (word << held))
        held += width
        if held >= np.uint64(64):
            held -= np.uint64(64)
            at += 8
            carry = word >> (width - held) if held > np.uint64(0) else np.uint64(0)
        else:
            carry |= word << (held - width)
    store_uint64(out, at, carry)


@inner
def _put_low_and_high(ids, step, bits, out, at, high_at):
    """Write the low bits of the gaps at out[at:], and their high parts at out[high_at:].

    A high part is what is above the low bits: that many zeros, and a one. bits: up to WIDE.
    Both in one loop, as each waits for its own last word. The last low bits reach up to 8 bytes
    behind their stream, so the first word of high parts is written again at the end.
    """
    mask, width = mask_of(bits), np.uint64(bits)
    held, carry = np.uint64(0), np.uint64(0)
    high_held, high, first, end = np.uint64(0), np.uint64(0), np.uint64(0), high_at
    for i in range(1, ids.size):
        word = np.uint64(ids[i]) - np.uint64(ids[i - 1]) - step
        carry |= (word & mask) << held
        store_uint64(out, at, carry)
        held += width
        at += np.int64(held >> np.uint64(3))
        carry >>= held & np.uint64(56)
        held &= np.uint64(7)
        high_held += word >> width
        while high_held >= np.uint64(64):
            store_uint64(out, end, high)
            first = high if end == high_at else first
            end += 8
            high_held -= np.uint64(64)
            high = np.uint64(0)
        high |= _ONE << high_held
        high_held += _ONE
    store_uint64(out, end, high)
    if end > high_at:
        store_uint64(out, high_at, first)


@inner
def _put_streams(plan, lengths, ids, out):
    """Write a segment's lengths and ids. Return their end."""
    at, none = plan.at, np.uint64(0)
    if plan.length_bits:
        base, bits = np.uint64(plan.length_base), plan.length_bits
        _put_low_bits(lengths, 0, False, base, none, bits, out, at)
        at += (bits * lengths.size + 7) // 8
    if ids.size == 0:
        return at
    kind, base = plan.kind & 3, np.uint64(plan.base)
    first, step, bits = np.int64(kind != OFFSETS), np.uint64(kind == STEPS), plan.bits
    end = at + (bits * (ids.size - first) + 7) // 8
    if plan.kind & UNARY:
        _put_low_and_high(ids, step, bits, out, at, end)
        return end + plan.unary_nbytes
    _put_low_bits(ids, first, kind != OFFSETS, base, step, bits, out, at)
    return end


@kernel
def write_messages(ids, lengths, counts, states_bags, room, plans, nbytes, out):
    """Write the messages that `plan_messages` planned to out [sum(nbytes)] uint8."""
    end, bag, first, s = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for p in range(counts.size):
        if counts[p] == 0:
            continue
        at, streams_end = end + room, np.int64(0)
        for j in range(s, s + counts[p]):
            n, m, plan = plans[j].bags, plans[j].ids, plans[j]
            at = _put_head(plan, lengths[bag : bag + n], states_bags, out, at)
            streams_end = _put_streams(plan, lengths[bag : bag + n], ids[first : first + m], out)
            bag, first = bag + n, first + m
        s, end = s + counts[p], end + nbytes[p]
        out[streams_end:end] = 0
