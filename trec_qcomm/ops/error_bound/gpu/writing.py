"""The kernels that encode. What they are for: the package's head."""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.bitpack import gpu as bitpack
from trec_qcomm.ops.device import segment_of
from trec_qcomm.ops.error_bound import reference
from trec_qcomm.ops.error_bound.quantizer import gpu as quantizer

_HEADER, _GROUP, _BLOCKS = (tl.constexpr(n) for n in (reference.HEADER_NBYTES, 1024, 32))
_RAW, _CONSTANT = tl.constexpr(reference.RAW), tl.constexpr(reference.CONSTANT)
_MAX_VERBATIM = tl.constexpr(reference.MAX_VERBATIM)
_NO_KEY = tl.constexpr(quantizer.NO_KEY)


@triton.jit
def find_ranges(
    values, found, segment_of_chunk,
    num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim,
    STEPS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write segment_of_chunk [C], and found, see quantizer.note_range."""
    chunk = tl.program_id(0)
    segment = segment_of(chunk, chunks, num_segments, STEPS)
    tl.store(segment_of_chunk + chunk, segment)
    first = (chunk - tl.load(chunks + segment)).to(tl.int32) * per_chunk * _GROUP
    n = tl.load(num_values + segment).to(tl.int32)
    begin, gap = tl.load(start + segment), tl.load(gaps + segment).to(tl.int32)
    end = tl.minimum(first + per_chunk * _GROUP, n)
    low, high, first_equal = float("inf"), float("-inf"), _NO_KEY
    while first < end:
        x = quantizer.load_group(values, first, n, begin, gap, dim, float("nan"), VECTOR)
        lowest, highest = quantizer.range_of(x)
        low, high = tl.minimum(low, lowest), tl.maximum(high, highest)
        if (lowest == highest) & (first_equal == _NO_KEY):
            x = quantizer.load_group(values, first, n, begin, gap, dim, float("nan"), VECTOR)
            k = first + tl.arange(0, _GROUP)
            first_equal = tl.min(tl.where(x == lowest, k, _NO_KEY), 0)
        first += _GROUP
    quantizer.note_range(found, segment, num_segments, low, high, first_equal)


@triton.jit
def measure(
    values, found, bounds, segment_of_chunk, sizes, counts, widths,
    num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim,
    RELATIVE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write widths [32 G] uint8 of blocks, sizes [G] of groups in bytes, counts [G] of their
    verbatim values; of segments that are sent raw, nothing."""
    # Backwards: what was read last may be cached still.
    chunk = tl.num_programs(0) - 1 - tl.program_id(0)
    segment = tl.load(segment_of_chunk + chunk)
    first_group = (chunk - tl.load(chunks + segment)) * per_chunk
    n = tl.load(num_values + segment).to(tl.int32)
    begin, gap = tl.load(start + segment), tl.load(gaps + segment).to(tl.int32)
    kind, bound, step, inverse = quantizer.rule(found, bounds, segment, num_segments, RELATIVE)
    first = first_group.to(tl.int32) * _GROUP
    end = tl.where(kind == _RAW, 0, tl.minimum(first + per_chunk * _GROUP, n))
    constant = quantizer.constant_of(values, found, segment, num_segments, begin, gap, dim)
    group = tl.load(groups + segment) + first_group
    while first < end:
        x = quantizer.load_group(values, first, n, begin, gap, dim, 0.0, VECTOR)
        if kind == _CONSTANT:
            live = tl.arange(0, _GROUP) < n - first
            differs = live & (x.to(tl.int32, bitcast=True) != constant)
            tl.store(counts + group, tl.sum(differs.to(tl.int32), 0))
            tl.store(sizes + group, 0)
        else:
            word, all_fit = quantizer.quantize(x, bound, step, inverse)
            width, count = bitpack.widths_of(word), 0
            if not all_fit:
                # Loaded again: these are few groups, and the others get the registers.
                x = quantizer.load_group(values, first, n, begin, gap, dim, 0.0, VECTOR)
                fits = quantizer.fits(x, bound, step, inverse)
                word, _fit = quantizer.quantize(x, bound, step, inverse)
                width = bitpack.widths_of(tl.where(fits, word, 0))
                count = tl.sum((~fits).to(tl.int32), 0)
            tl.store(counts + group, count)
            tl.store(sizes + group, bitpack.nbytes_of(width, n - first))
            tl.store(widths + group * _BLOCKS + tl.arange(0, _BLOCKS), width.to(tl.uint8))
        first += _GROUP
        group += 1


@triton.jit
def lay_out(
    values, payload, payload32, found, bounds, sizes, counts, places, ranks, kinds, nbytes,
    num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim,
    RELATIVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write places [G] of the groups in the payload, ranks [G], the number of verbatim values of
    their segment before them, kinds [S] and nbytes [S], all int64, the headers and the padding."""
    segment = tl.program_id(0)
    n = tl.load(num_values + segment)
    begin = tl.load(at + segment)
    group, end = tl.load(groups + segment), tl.load(groups + segment + 1)
    kind, _, _, _ = quantizer.rule(found, bounds, segment, num_segments, RELATIVE)
    place, rank = begin + _HEADER, n * 0
    end = tl.where(kind == _RAW, group, end)
    while group < end:
        i = group + tl.arange(0, BLOCK)
        size = tl.load(sizes + i, mask=i < end, other=0)
        count = tl.load(counts + i, mask=i < end, other=0)
        tl.store(places + i, place + tl.cumsum(size, 0) - size, mask=i < end)
        tl.store(ranks + i, rank + tl.cumsum(count, 0) - count, mask=i < end)
        place += tl.sum(size, 0)
        rank += tl.sum(count, 0)
        group += BLOCK
    end_segment(
        values, payload, payload32, found, bounds, kinds, nbytes, segment, kind,
        place - begin - _HEADER, rank, num_values, start, gaps, at, num_segments, dim, RELATIVE,
    )  # fmt: skip


@triton.jit
def end_segment(
    values, payload, payload32, found, bounds, kinds, nbytes, segment, kind, size, rank,
    num_values, start, gaps, at, num_segments, dim, RELATIVE: tl.constexpr,
):  # fmt: skip
    """Write the kind and nbytes, the header and the padding of a segment of size bytes of indices
    and `rank` verbatim values, or of a raw one where that is not shorter."""
    n, begin = tl.load(num_values + segment), tl.load(at + segment)
    _, _, step, _ = quantizer.rule(found, bounds, segment, num_segments, RELATIVE)
    raw_size = (4 * n + 7) // 8 * 8
    too_long = (size + 7) // 8 * 8 + 8 * rank >= raw_size
    is_raw = (kind == _RAW) | (rank > _MAX_VERBATIM) | too_long
    kind = tl.where(is_raw, _RAW, kind)
    size, rank = tl.where(is_raw, 4 * n, size), tl.where(is_raw, 0, rank)
    padding = -size & 7
    tl.store(kinds + segment, kind.to(tl.int64))
    tl.store(nbytes + segment, tl.where(n > 0, _HEADER + size + padding + 8 * rank, 0))
    if n > 0:
        first, gap = tl.load(start + segment), tl.load(gaps + segment)
        constant = quantizer.constant_of(values, found, segment, num_segments, first, gap, dim)
        word = tl.where(kind == _CONSTANT, constant, step.to(tl.int32, bitcast=True))
        tl.store(payload32 + begin // 4, tl.where(is_raw, 0, word))
        tl.store(payload32 + begin // 4 + 1, (kind | (padding << 4) | (rank << 7)).to(tl.int32))
        t = tl.arange(0, 8)
        tl.store(payload + begin + _HEADER + size + t, tl.zeros_like(t).to(tl.uint8), t < padding)


@triton.jit
def write(
    values, payload, payload32, found, bounds, segment_of_chunk, kinds, sizes, counts, places,
    widths, num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim,
    RELATIVE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write raw rows and indices where `lay_out` says."""
    chunk = tl.program_id(0)
    segment = tl.load(segment_of_chunk + chunk)
    first_group = (chunk - tl.load(chunks + segment)) * per_chunk
    n = tl.load(num_values + segment).to(tl.int32)
    begin, gap = tl.load(start + segment), tl.load(gaps + segment).to(tl.int32)
    kind = tl.load(kinds + segment)
    _, bound, step, inverse = quantizer.rule(found, bounds, segment, num_segments, RELATIVE)
    group = tl.load(groups + segment) + first_group
    body = tl.multiple_of(payload32 + (tl.load(at + segment) + _HEADER) // 4, 2)
    first = first_group.to(tl.int32) * _GROUP
    end = tl.where(kind == _CONSTANT, 0, tl.minimum(first + per_chunk * _GROUP, n))
    while first < end:
        x = quantizer.load_group(values, first, n, begin, gap, dim, 0.0, VECTOR)
        if kind == _RAW:
            k = first + tl.arange(0, _GROUP)
            tl.store(body + k, x.to(tl.int32, bitcast=True), mask=k < n)
        else:
            word, _fit = quantizer.quantize(x, bound, step, inverse)
            if tl.load(counts + group) > 0:
                word = tl.where(quantizer.fits(x, bound, step, inverse), word, 0)
            place, size = tl.load(places + group), tl.load(sizes + group)
            bitpack.pack(payload + place, word, widths + group * _BLOCKS, size, n - first)
        first += _GROUP
        group += 1


@triton.jit
def write_verbatim(
    values, payload32, found, bounds, segment_of_chunk, kinds, counts, ranks, nbytes,
    num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim,
    RELATIVE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write positions and bits of verbatim values. Few groups have any; `write` would need twice
    the registers for them."""
    chunk = tl.program_id(0)
    segment = tl.load(segment_of_chunk + chunk)
    first_group = (chunk - tl.load(chunks + segment)) * per_chunk
    n = tl.load(num_values + segment).to(tl.int32)
    kind, header = tl.load(kinds + segment), tl.load(at + segment) // 4
    group = tl.load(groups + segment) + first_group
    first = first_group.to(tl.int32) * _GROUP
    end = tl.where(kind == _RAW, 0, tl.minimum(first + per_chunk * _GROUP, n))
    while first < end:
        if tl.load(counts + group) > 0:
            begin, gap = tl.load(start + segment), tl.load(gaps + segment).to(tl.int32)
            x = quantizer.load_group(values, first, n, begin, gap, dim, 0.0, VECTOR)
            bits, k = x.to(tl.int32, bitcast=True), first + tl.arange(0, _GROUP)
            if kind == _CONSTANT:
                constant = quantizer.constant_of(
                    values, found, segment, num_segments, begin, gap, dim
                )
                verbatim = (k < n) & (bits != constant)
            else:
                _, bound, step, inverse = quantizer.rule(
                    found, bounds, segment, num_segments, RELATIVE
                )
                verbatim = ~quantizer.fits(x, bound, step, inverse)
            num_verbatim = (tl.load(payload32 + header + 1) >> 7) & _MAX_VERBATIM
            rest = payload32 + header + tl.load(nbytes + segment) // 4 - 2 * num_verbatim
            to = rest + tl.load(ranks + group) + tl.cumsum(verbatim.to(tl.int32), 0) - 1
            tl.store(to, k, mask=verbatim)
            tl.store(to + num_verbatim, bits, mask=verbatim)
        first += _GROUP
        group += 1
