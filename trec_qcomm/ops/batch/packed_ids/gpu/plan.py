"""Packed ids in Triton: the parameters of each segment, and the places of segments in messages.

`measure` goes through bags and ids once, a block a program. `plan` adds up the blocks of a segment.
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
    block_of,
    first_block,
    varint_nbytes,
    zigzag,
)

_ITEMS_PER_BYTE = tl.constexpr(reference.ITEMS_PER_BYTE)
_SPARE_NBYTES = tl.constexpr(reference.SPARE_NBYTES)
_LOWEST, _HIGHEST = tl.constexpr(-(2**63)), tl.constexpr(2**63 - 1)


@triton.jit
def _measure_bags(lengths, begin, n, num_runs, starts, row, BLOCK: tl.constexpr):
    """Measure a block of a segment's n lengths, and note where runs of equal lengths begin.

    Blocks note their runs in any order: `_runs` sorts them.

    Args: num_runs: pointer to a sum over blocks.  starts: pointer to MAX_RUNS int64.
    """
    i = begin + tl.arange(0, BLOCK)
    x = tl.load(lengths + i, mask=i < n, other=0).to(tl.int64)
    before = tl.load(lengths + i - 1, mask=(i < n) & (i > 0), other=0).to(tl.int64)
    tl.store(row + columns.LEAST, tl.min(tl.where(i < n, x, _HIGHEST), 0))
    tl.store(row + columns.MOST, tl.max(tl.where(i < n, x, _LOWEST), 0))
    is_start = ((i < n) & ((i == 0) | (x != before))).to(tl.int32)
    num_starts = tl.sum(is_start, 0)
    if num_starts > 0:
        slot = tl.atomic_add(num_runs, num_starts.to(tl.int64), sem="relaxed")
        slot += tl.cumsum(is_start, 0) - 1
        tl.store(starts + slot, i, mask=(is_start > 0) & (slot < MAX_RUNS))


@triton.jit
def _mean_bits(span, count, step):
    """Return the bit length of the mean word of sorted ids.

    Args: span: uint64, from the first id to the last.  count: words, above 0.
    """
    return bit_length(span // count.to(tl.uint64) - step.to(tl.uint64))


@triton.jit
def _measure_ids(ids, begin, m, row, BLOCK: tl.constexpr):
    """Measure a block of a segment's m ids, and of the words from each of them to the next."""
    i = begin + tl.arange(0, BLOCK)
    x = tl.load(ids + i, mask=i < m, other=0).to(tl.int64)
    is_gap = i < m - 1
    after = tl.load(ids + i + 1, mask=is_gap, other=0).to(tl.int64)
    gap = tl.where(is_gap, after - x, 0).to(tl.uint64)
    disorder = tl.where(after < x, 2, (after == x).to(tl.int32))
    disorder = tl.max(tl.where(is_gap, disorder, 0), 0)
    tl.store(row + columns.LEAST, tl.min(tl.where(i < m, x, _HIGHEST), 0))
    tl.store(row + columns.MOST, tl.max(tl.where(i < m, x, _LOWEST), 0))
    tl.store(row + columns.DISORDER, disorder.to(tl.int64))
    if (begin < m - 1) & (disorder < 2):
        tl.store(row + columns.WIDEST, tl.max(gap, 0).to(tl.int64))
        span = (tl.load(ids + m - 1).to(tl.int64) - tl.load(ids).to(tl.int64)).to(tl.uint64)
        for step in tl.static_range(2):
            bits = tl.maximum(_mean_bits(span, m - 1, tl.cast(step, tl.int64)) - 2, 0)
            high = tl.where(is_gap, gap - step, 0).to(tl.uint64) >> bits.to(tl.uint64)
            for t in tl.static_range(3):
                total = tl.sum((high >> t).to(tl.int64), 0)
                tl.store(row + columns.SUMS + 3 * step + t, total)


@triton.jit(do_not_specialize=["num_bags"])
def measure(
    ids, lengths, first_bag, first_id, plans, starts, measures, num_segments, num_bags,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Measure a block of bags, or of ids, of a segment.

    Args:
        first_bag, first_id: [S + 1] int64.
        plans: zeros; RUNS is written, the number of runs.
        starts: [S, MAX_RUNS] int64, written: where runs begin, unless there are more.
        measures: [blocks of bags, then of ids; NUM_MEASURES] int64, written.
    """
    b = tl.program_id(0).to(tl.int64)
    row, bag_blocks = measures + b * columns.NUM_MEASURES, num_bags // BLOCK + num_segments
    if b < bag_blocks:
        s, begin = block_of(b, first_bag, num_segments, BLOCK)
        first, end = tl.load(first_bag + s), tl.load(first_bag + s + 1)
        num_runs, starts = plans + s * columns.NUM_COLUMNS + columns.RUNS, starts + s * MAX_RUNS
        if begin < end - first:
            _measure_bags(lengths + first, begin, end - first, num_runs, starts, row, BLOCK)
    else:
        s, begin = block_of(b - bag_blocks, first_id, num_segments, BLOCK)
        first, end = tl.load(first_id + s), tl.load(first_id + s + 1)
        # Where lengths are negative, the places do not increase, and nothing is written in the end.
        if (begin >= 0) & (begin < end - first):
            _measure_ids(ids + first, begin, end - first, row, BLOCK)


@triton.jit
def _range(measures, count, BLOCKS: tl.constexpr):
    """Return the least and the largest number of a segment, from its blocks; 0 of no block."""
    low, high = tl.cast(_HIGHEST, tl.int64), tl.cast(_LOWEST, tl.int64)
    tile = tl.cast(0, tl.int64)
    while tile < count:
        b = tile + tl.arange(0, BLOCKS)
        row = measures + b * columns.NUM_MEASURES
        least = tl.load(row + columns.LEAST, mask=b < count, other=_HIGHEST)
        most = tl.load(row + columns.MOST, mask=b < count, other=_LOWEST)
        low, high = tl.minimum(low, tl.min(least, 0)), tl.maximum(high, tl.max(most, 0))
        tile += BLOCKS
    return tl.where(count > 0, low, 0), tl.where(count > 0, high, 0)


@triton.jit
def _runs(lengths, n, num_runs, starts, runs):
    """Write each run's length and number of bags, in order. Return the bytes of all.

    Args: num_runs: at most MAX_RUNS.  runs: pointer to 2 MAX_RUNS int64.
    """
    k = tl.arange(0, MAX_RUNS)
    at = tl.load(starts + k, mask=k < num_runs, other=n)
    is_later = at[:, None] < at[None, :]
    end = tl.min(tl.where(is_later, at[None, :], n), 1)
    place = tl.sum((at[None, :] < at[:, None]).to(tl.int32), 1)
    value = tl.load(lengths + at, mask=at < n, other=0).to(tl.int64)
    tl.store(runs + 2 * place, value, mask=at < n)
    tl.store(runs + 2 * place + 1, end - at, mask=at < n)
    nbytes = varint_nbytes(value) + tl.where(end < n, varint_nbytes(end - at), 0)
    return varint_nbytes(num_runs) + tl.sum(tl.where(at < n, nbytes, 0), 0)


@triton.jit
def _order(measures, count, BLOCKS: tl.constexpr):
    """Return the largest DISORDER and WIDEST of a segment's blocks."""
    disorder, widest, tile = tl.cast(0, tl.int64), tl.cast(0, tl.uint64), tl.cast(0, tl.int64)
    while tile < count:
        b = tile + tl.arange(0, BLOCKS)
        row = measures + b * columns.NUM_MEASURES
        most = tl.load(row + columns.DISORDER, mask=b < count, other=0)
        gap = tl.load(row + columns.WIDEST, mask=b < count, other=0).to(tl.uint64)
        disorder, widest = tl.maximum(disorder, tl.max(most, 0)), tl.maximum(widest, tl.max(gap, 0))
        tile += BLOCKS
    return disorder, widest


@triton.jit
def _total(sums, count, BLOCKS: tl.constexpr):
    """Return the sum of a column of a segment's blocks. sums: pointer to the first one's."""
    total, tile = tl.cast(0, tl.int64), tl.cast(0, tl.int64)
    while tile < count:
        b = tile + tl.arange(0, BLOCKS)
        total += tl.sum(tl.load(sums + b * columns.NUM_MEASURES, mask=b < count, other=0), 0)
        tile += BLOCKS
    return total


@triton.jit
def _add_up(sums, count, before, BLOCKS: tl.constexpr):
    """Write the sums of a column over earlier blocks. before: pointer to another column."""
    total, tile = tl.cast(0, tl.int64), tl.cast(0, tl.int64)
    while tile < count:
        b = tile + tl.arange(0, BLOCKS)
        part = tl.load(sums + b * columns.NUM_MEASURES, mask=b < count, other=0)
        earlier = total + tl.cumsum(part, 0) - part
        tl.store(before + b * columns.NUM_MEASURES, earlier, mask=b < count)
        total += tl.sum(part, 0)
        tile += BLOCKS


@triton.jit
def _words(ids, m, measures, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Return (kind, low bits, base, bytes of high parts, bytes of all) of m > 0 ids.

    Where words have high parts, BEFORE of the blocks is written.
    """
    low, high = _range(measures, (m + BLOCK - 1) // BLOCK, BLOCKS)
    # A single id has no word. The last block may have an id, but no word.
    blocks = (m + BLOCK - 2) // BLOCK
    disorder, widest = _order(measures, blocks, BLOCKS)
    is_sorted, is_distinct = disorder < 2, disorder == 0
    step, count = is_distinct.to(tl.int64), tl.where(is_sorted, m - 1, m)
    kind = tl.where(is_distinct, STEPS, tl.where(is_sorted, GAPS, OFFSETS)).to(tl.int64)
    base = tl.where(is_sorted, tl.load(ids).to(tl.int64), low)
    largest = tl.where(is_sorted, widest.to(tl.int64) - step, high - low).to(tl.uint64)
    bits = bit_length(tl.where(count > 0, largest, 0))
    fewest, unary_nbytes = (bits * count + 7) // 8, tl.cast(0, tl.int64)
    if is_sorted & (count > 0):
        num_bits = _mean_bits((high - low).to(tl.uint64), count, step)
        first_bits = tl.maximum(num_bits - 2, 0)
        last_bits = tl.minimum(tl.maximum(num_bits, 1), MAX_UNARY_BITS)
        sums = measures + columns.SUMS + 3 * step
        for t in tl.static_range(3):
            k = first_bits + t
            unary = (count + _total(sums + t, blocks, BLOCKS) + 7) // 8
            nbytes = (k * count + 7) // 8 + unary
            better = (k <= last_bits) & (nbytes < fewest)
            fewest = tl.where(better, nbytes, fewest)
            bits = tl.where(better, k, bits)
            unary_nbytes = tl.where(better, unary, unary_nbytes)
            kind = tl.where(better, kind | UNARY, kind)
        if (kind & UNARY) > 0:
            _add_up(sums + bits - first_bits, blocks, measures + columns.BEFORE, BLOCKS)
    return kind, bits, base, unary_nbytes, fewest


@triton.jit(do_not_specialize=["num_bags", "num_ids"])
def plan(
    ids, lengths, first_bag, first_id, plans, starts, runs, measures, sizes, num_segments,
    num_bags, num_ids, STATES_BAGS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Choose the parameters of a segment.

    Args:
        plans: [S, NUM_COLUMNS] int64, written; RUNS is the number of runs.
        runs: [S, 2 MAX_RUNS] int64, written: length and number of bags of each.
        measures: [blocks, NUM_MEASURES] of `measure`; BEFORE is written.
        sizes: [2, S] int64, written: bytes of heads, and of streams. The head of a segment with a
            length that is negative, or above the number of all ids, has -1.
    """
    s = tl.program_id(0).to(tl.int64)
    bag, first = tl.load(first_bag + s), tl.load(first_id + s)
    n = tl.load(first_bag + s + 1) - bag
    m = tl.maximum(tl.load(first_id + s + 1) - first, 0)
    block = first_block(first_bag, s, BLOCK)
    blocks = (n + BLOCK - 1) // BLOCK
    low, high = _range(measures + block * columns.NUM_MEASURES, blocks, BLOCKS)
    row = plans + s * columns.NUM_COLUMNS
    num_runs = tl.load(row + columns.RUNS)
    length_bits = bit_length((high - low).to(tl.uint64))
    low = tl.where(high > num_ids, -1, low)
    head, stream = varint_nbytes(low) + varint_nbytes(m), (length_bits * n + 7) // 8
    if (low >= 0) & (num_runs <= MAX_RUNS):
        nbytes = _runs(lengths + bag, n, num_runs, starts + s * MAX_RUNS, runs + s * 2 * MAX_RUNS)
        if nbytes <= head + stream:
            head, stream, length_bits, low = nbytes, stream * 0, length_bits * 0, low * 0
    head += 1
    if STATES_BAGS:
        head += varint_nbytes(n)
    tl.store(row + columns.BAGS, n)
    tl.store(row + columns.IDS, m)
    tl.store(row + columns.LENGTH_BITS, length_bits)
    tl.store(row + columns.LENGTH_BASE, low)
    if m > 0:
        block = num_bags // BLOCK + num_segments + first_block(first_id, s, BLOCK)
        kind, bits, base, unary_nbytes, nbytes = _words(
            ids + first, m, measures + block * columns.NUM_MEASURES, BLOCK, BLOCKS
        )
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
