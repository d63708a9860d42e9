"""Packed ids in Triton: the parameters of each segment, and the places of segments in messages.

A program takes a segment and goes through it a few times, BLOCK bags or ids at a time.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.batch.packed_ids import reference
from trec_qcomm.ops.batch.packed_ids.gpu import columns
from trec_qcomm.ops.batch.packed_ids.gpu.numbers import (
    GAPS,
    MAX_RUNS,
    MAX_UNARY_BITS,
    OFFSETS,
    STEPS,
    UNARY,
    bit_length,
    ids_of_segment,
    varint_nbytes,
    zigzag,
)

_ITEMS_PER_BYTE = tl.constexpr(reference.ITEMS_PER_BYTE)
_SPARE_NBYTES = tl.constexpr(reference.SPARE_NBYTES)


@triton.jit
def _lengths(lengths, n, BLOCK: tl.constexpr):
    """Return (the least, the largest, the number of runs) of n lengths; 0 of none."""
    low = tl.load(lengths, mask=n > 0, other=0).to(tl.int64)
    high, num_runs, begin = low, (n > 0).to(tl.int64), tl.cast(0, tl.int64)
    while begin < n:
        i = begin + tl.arange(0, BLOCK)
        x = tl.load(lengths + i, mask=i < n, other=0).to(tl.int64)
        before = tl.load(lengths + i - 1, mask=(i < n) & (i > 0), other=0).to(tl.int64)
        low = tl.minimum(low, tl.min(tl.where(i < n, x, low), 0))
        high = tl.maximum(high, tl.max(tl.where(i < n, x, high), 0))
        num_runs += tl.sum(((i < n) & (i > 0) & (x != before)).to(tl.int64), 0)
        begin += BLOCK
    return low, high, num_runs


@triton.jit
def _runs(lengths, n, num_runs, runs, BLOCK: tl.constexpr):
    """Write each run's length and number of bags. Return the bytes of all.

    Args: num_runs: at most MAX_RUNS.  runs: pointer to 2 MAX_RUNS int64.
    """
    nbytes, at, run = varint_nbytes(num_runs), tl.cast(0, tl.int64), tl.cast(0, tl.int64)
    while run < num_runs:
        value = tl.load(lengths + at).to(tl.int64)
        end, begin = n, at
        while begin < end:  # until a tile in which another length begins
            i = begin + tl.arange(0, BLOCK)
            x = tl.load(lengths + i, mask=i < n, other=0).to(tl.int64)
            end = tl.minimum(end, tl.min(tl.where((i < n) & (x != value), i, n), 0))
            begin += BLOCK
        tl.store(runs + 2 * run, value)
        tl.store(runs + 2 * run + 1, end - at)
        nbytes += varint_nbytes(value)
        nbytes += tl.where(run < num_runs - 1, varint_nbytes(end - at), 0)
        at, run = end, run + 1
    return nbytes


@triton.jit
def _order(ids, m, BLOCK: tl.constexpr):
    """Return of m > 0 ids: whether they do not decrease, whether they increase, the least and the
    largest, and the largest distance from one to the next, uint64."""
    first = tl.load(ids, mask=m > 0, other=0).to(tl.int64)
    low, high, begin = first, first, tl.cast(0, tl.int64)
    num_less, num_equal, widest = tl.cast(0, tl.int64), tl.cast(0, tl.int64), tl.cast(0, tl.uint64)
    while begin < m:
        i = begin + tl.arange(0, BLOCK)
        x = tl.load(ids + i, mask=i < m, other=0).to(tl.int64)
        before = tl.load(ids + i - 1, mask=(i < m) & (i > 0), other=0).to(tl.int64)
        is_gap = (i < m) & (i > 0)
        low = tl.minimum(low, tl.min(tl.where(i < m, x, low), 0))
        high = tl.maximum(high, tl.max(tl.where(i < m, x, high), 0))
        num_less += tl.sum((is_gap & (x < before)).to(tl.int64), 0)
        num_equal += tl.sum((is_gap & (x == before)).to(tl.int64), 0)
        widest = tl.maximum(widest, tl.max(tl.where(is_gap, x - before, 0).to(tl.uint64), 0))
        begin += BLOCK
    return num_less == 0, (num_less == 0) & (num_equal == 0), low, high, widest


@triton.jit
def _sums_of_high_parts(ids, m, step, bits, BLOCK: tl.constexpr):
    """Return the sums of words >> bits, >> bits + 1 and >> bits + 2. Words: gaps less `step`."""
    shift, begin = bits.to(tl.uint64), tl.cast(1, tl.int64)
    sum0, sum1, sum2 = tl.cast(0, tl.int64), tl.cast(0, tl.int64), tl.cast(0, tl.int64)
    while begin < m:
        i = begin + tl.arange(0, BLOCK)
        x = tl.load(ids + i, mask=i < m, other=0).to(tl.int64)
        before = tl.load(ids + i - 1, mask=i < m, other=0).to(tl.int64)
        high = tl.where(i < m, x - before - step, 0).to(tl.uint64) >> shift
        sum0 += tl.sum(high.to(tl.int64), 0)
        sum1 += tl.sum((high >> 1).to(tl.int64), 0)
        sum2 += tl.sum((high >> 2).to(tl.int64), 0)
        begin += BLOCK
    return sum0, sum1, sum2


@triton.jit
def _words(ids, m, BLOCK: tl.constexpr):
    """Return (kind, low bits, base, bytes of high parts, bytes of all) of m > 0 ids."""
    is_sorted, is_distinct, low, high, widest = _order(ids, m, BLOCK)
    step, count = is_distinct.to(tl.int64), tl.where(is_sorted, m - 1, m)
    kind = tl.where(is_distinct, STEPS, tl.where(is_sorted, GAPS, OFFSETS)).to(tl.int64)
    base = tl.where(is_sorted, tl.load(ids).to(tl.int64), low)
    # A single id has no word.
    largest = tl.where(is_sorted, widest.to(tl.int64) - step, high - low).to(tl.uint64)
    bits = bit_length(tl.where(count > 0, largest, 0))
    fewest, unary_nbytes = (bits * count + 7) // 8, tl.cast(0, tl.int64)
    if is_sorted & (count > 0):
        last = tl.load(ids + m - 1).to(tl.int64)
        span = (last - base - step * count).to(tl.uint64)
        num_bits = bit_length(span // count.to(tl.uint64))
        first_bits = tl.maximum(num_bits - 2, 0)
        last_bits = tl.minimum(tl.maximum(num_bits, 1), MAX_UNARY_BITS)
        if first_bits <= last_bits:
            sum0, sum1, sum2 = _sums_of_high_parts(ids, m, step, first_bits, BLOCK)
            for t in tl.static_range(3):
                k = first_bits + t
                total = sum0 if t == 0 else (sum1 if t == 1 else sum2)
                unary = (count + total + 7) // 8
                nbytes = (k * count + 7) // 8 + unary
                better = (k <= last_bits) & (nbytes < fewest)
                fewest = tl.where(better, nbytes, fewest)
                bits = tl.where(better, k, bits)
                unary_nbytes = tl.where(better, unary, unary_nbytes)
                kind = tl.where(better, kind | UNARY, kind)
    return kind, bits, base, unary_nbytes, fewest


@triton.jit(do_not_specialize=["num_ids"])
def plan(
    ids, lengths, ends, first_bag, plans, runs, sizes, num_segments, num_ids,
    STATES_BAGS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Choose the parameters of a segment.

    Args:
        ends: [B] running sums of the lengths.  first_bag: [S + 1].
        plans: [S, NUM_COLUMNS] int64, written; RUNS is the number of runs.
        runs: [S, 2 MAX_RUNS] int64, written: length and number of bags of each.
        sizes: [2, S] int64, written: bytes of heads, and of streams. The head of a segment with a
            length that is negative, or above the number of all ids, has -1.
    """
    s = tl.program_id(0).to(tl.int64)
    bag = tl.load(first_bag + s)
    n = tl.load(first_bag + s + 1) - bag
    first, m = ids_of_segment(ends, first_bag, s, num_ids)
    low, high, num_runs = _lengths(lengths + bag, n, BLOCK)
    length_bits = bit_length((high - low).to(tl.uint64))
    low = tl.where(high > num_ids, -1, low)
    head, stream = varint_nbytes(low) + varint_nbytes(m), (length_bits * n + 7) // 8
    if (low >= 0) & (num_runs <= MAX_RUNS):
        nbytes = _runs(lengths + bag, n, num_runs, runs + s * 2 * MAX_RUNS, BLOCK)
        if nbytes <= head + stream:
            head, stream, length_bits, low = nbytes, stream * 0, length_bits * 0, low * 0
    head += 1
    if STATES_BAGS:
        head += varint_nbytes(n)
    row = plans + s * columns.NUM_COLUMNS
    tl.store(row + columns.BAGS, n)
    tl.store(row + columns.IDS, m)
    tl.store(row + columns.LENGTH_BITS, length_bits)
    tl.store(row + columns.LENGTH_BASE, low)
    tl.store(row + columns.RUNS, num_runs)
    if m > 0:
        kind, bits, base, unary_nbytes, nbytes = _words(ids + first, m, BLOCK)
        tl.store(row + columns.KIND, kind)
        tl.store(row + columns.BITS, bits)
        tl.store(row + columns.BASE, base)
        tl.store(row + columns.UNARY_NBYTES, unary_nbytes)
        stream += nbytes
        head += 2 + varint_nbytes(zigzag(base))
        head += tl.where((kind & UNARY) > 0, varint_nbytes(unary_nbytes), 0)
    tl.store(sizes + s, tl.where(low < 0, -1, head))
    tl.store(sizes + num_segments + s, stream)


@triton.jit(do_not_specialize=["room", "alignment"])
def lay_out(
    plans, sizes, first_segment, nbytes, head_at, wrong, num_segments, room, alignment,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Set the size of a message, and the places of its segments in it.

    Args:
        first_segment: [P + 1].  nbytes: [P] int64, written, `room` included.
        plans: AT is written, from the message's beginning.  head_at: [S] int64, written alike.
        wrong: [1] int64, 1 where a length is out of range.
    """
    p = tl.program_id(0)
    begin, end = tl.load(first_segment + p), tl.load(first_segment + p + 1)
    head, stream, items = tl.cast(0, tl.int64), tl.cast(0, tl.int64), tl.cast(0, tl.int64)
    tile = begin
    while tile < end:
        s = tile + tl.arange(0, BLOCK)
        there, row = s < end, plans + s * columns.NUM_COLUMNS
        head_nbytes = tl.load(sizes + s, mask=there, other=0)
        stream_nbytes = tl.load(sizes + num_segments + s, mask=there, other=0)
        tl.store(wrong, 1, mask=tl.min(head_nbytes, 0) < 0)
        tl.store(head_at + s, room + head + tl.cumsum(head_nbytes, 0) - head_nbytes, mask=there)
        tl.store(row + columns.AT, stream + tl.cumsum(stream_nbytes, 0) - stream_nbytes, mask=there)
        items += tl.sum(tl.load(row + columns.BAGS, mask=there, other=0), 0)
        items += tl.sum(tl.load(row + columns.IDS, mask=there, other=0), 0)
        head += tl.sum(head_nbytes, 0)
        stream += tl.sum(stream_nbytes, 0)
        tile += BLOCK
    size = tl.maximum(
        head + stream + _SPARE_NBYTES, (items + _ITEMS_PER_BYTE - 1) // _ITEMS_PER_BYTE
    )
    size = (room + size + alignment - 1) // alignment * alignment
    tl.store(nbytes + p, tl.where(end > begin, size, 0))
    tile = begin
    while tile < end:  # the places of streams, now that the size of all heads is known
        s = tile + tl.arange(0, BLOCK)
        at = plans + s * columns.NUM_COLUMNS + columns.AT
        tl.store(at, tl.load(at, mask=s < end, other=0) + room + head, mask=s < end)
        tile += BLOCK
