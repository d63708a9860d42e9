"""Kernels that encode with bitpack. The head of the package says what each is for."""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.bitpack import gpu as bitpack
from trec_qcomm.ops.error_bound import reference
from trec_qcomm.ops.error_bound.gpu import encode_segments
from trec_qcomm.ops.error_bound.quantizer import gpu as quantizer

_HEADER_NBYTES, _GROUP, _BLOCKS = (tl.constexpr(n) for n in (reference.HEADER_NBYTES, 1024, 32))
_RAW, _CONSTANT = tl.constexpr(reference.RAW), tl.constexpr(reference.CONSTANT)


@triton.jit(do_not_specialize=["groups_per_chunk"])
def measure_groups(
    values, range_keys, bounds, segment_of_chunk, group_nbytes, verbatim_counts, block_widths,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
    RELATIVE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write the widths of blocks, and each group's bytes and number of verbatim values.

    Args: group_nbytes, verbatim_counts: [G] int32, block_widths: [32 G] uint8, to write; not
              written for raw segments.
    """
    # Backwards, as what was read last may still be in the cache.
    chunk = tl.num_programs(0) - 1 - tl.program_id(0)
    segment = tl.load(segment_of_chunk + chunk)
    first_group = (chunk - tl.load(chunk_offsets + segment)) * groups_per_chunk
    n = tl.load(num_values + segment).to(tl.int32)
    begin, gap = tl.load(start + segment), tl.load(gaps + segment).to(tl.int32)
    kind, bound, step, inverse = quantizer.choose_step(
        range_keys, bounds, segment, num_segments, RELATIVE
    )
    first = first_group.to(tl.int32) * _GROUP
    end = tl.where(kind == _RAW, 0, tl.minimum(first + groups_per_chunk * _GROUP, n))
    constant = quantizer.constant_of(values, range_keys, segment, num_segments, begin, gap, dim)
    group = tl.load(group_offsets + segment) + first_group
    while first < end:
        x = quantizer.load_group(values, first, n, begin, gap, dim, 0.0, VECTOR)
        if kind == _CONSTANT:
            live = tl.arange(0, _GROUP) < n - first
            differs = live & (x.to(tl.int32, bitcast=True) != constant)
            tl.store(verbatim_counts + group, tl.sum(differs.to(tl.int32), 0))
            tl.store(group_nbytes + group, 0)
        else:
            word, all_fit = quantizer.quantize(x, bound, step, inverse)
            width, num_verbatim = bitpack.block_widths(word), 0
            if not all_fit:
                # Loaded again: few groups need it, and the others have the registers free.
                x = quantizer.load_group(values, first, n, begin, gap, dim, 0.0, VECTOR)
                fits = quantizer.fits(x, bound, step, inverse)
                word, _fit = quantizer.quantize(x, bound, step, inverse)
                width = bitpack.block_widths(tl.where(fits, word, 0))
                num_verbatim = tl.sum((~fits).to(tl.int32), 0)
            tl.store(verbatim_counts + group, num_verbatim)
            tl.store(group_nbytes + group, bitpack.group_nbytes(width, n - first))
            tl.store(block_widths + group * _BLOCKS + tl.arange(0, _BLOCKS), width.to(tl.uint8))
        first += _GROUP
        group += 1


@triton.jit(do_not_specialize=["groups_per_chunk"])
def lay_out_bitpack(
    values, payload, payload32, range_keys, bounds, group_nbytes, verbatim_counts, group_places,
    verbatim_before, kinds, nbytes,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
    RELATIVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the places of all groups, and around them headers, padding, kinds [S] and nbytes [S].

    Args: group_places: [G] int64, to write the place of each group in the payload.
          verbatim_before: [G] int64, to write the number of verbatim values before it.
    """
    segment = tl.program_id(0)
    n = tl.load(num_values + segment)
    begin = tl.load(at + segment)
    group, end = tl.load(group_offsets + segment), tl.load(group_offsets + segment + 1)
    kind, _, _, _ = quantizer.choose_step(range_keys, bounds, segment, num_segments, RELATIVE)
    place, num_verbatim = begin + _HEADER_NBYTES, n * 0
    end = tl.where(kind == _RAW, group, end)
    while group < end:
        i = group + tl.arange(0, BLOCK)
        size = tl.load(group_nbytes + i, mask=i < end, other=0)
        count = tl.load(verbatim_counts + i, mask=i < end, other=0)
        tl.store(group_places + i, place + tl.cumsum(size, 0) - size, mask=i < end)
        tl.store(verbatim_before + i, num_verbatim + tl.cumsum(count, 0) - count, mask=i < end)
        place += tl.sum(size, 0)
        num_verbatim += tl.sum(count, 0)
        group += BLOCK
    encode_segments.end_segment(
        values, payload, payload32, range_keys, bounds, kinds, nbytes, segment, kind,
        place - begin - _HEADER_NBYTES, num_verbatim, num_values, start, gaps, at, num_segments,
        dim, RELATIVE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["groups_per_chunk"])
def write_bitpack(
    values, payload, payload32, range_keys, bounds, segment_of_chunk, kinds, group_nbytes,
    verbatim_counts, group_places, block_widths,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
    RELATIVE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write raw rows and indices where `lay_out_bitpack` says."""
    chunk = tl.program_id(0)
    segment = tl.load(segment_of_chunk + chunk)
    first_group = (chunk - tl.load(chunk_offsets + segment)) * groups_per_chunk
    n = tl.load(num_values + segment).to(tl.int32)
    begin, gap = tl.load(start + segment), tl.load(gaps + segment).to(tl.int32)
    kind = tl.load(kinds + segment)
    _, bound, step, inverse = quantizer.choose_step(
        range_keys, bounds, segment, num_segments, RELATIVE
    )
    group = tl.load(group_offsets + segment) + first_group
    body = tl.multiple_of(payload32 + (tl.load(at + segment) + _HEADER_NBYTES) // 4, 2)
    first = first_group.to(tl.int32) * _GROUP
    end = tl.where(kind == _CONSTANT, 0, tl.minimum(first + groups_per_chunk * _GROUP, n))
    while first < end:
        x = quantizer.load_group(values, first, n, begin, gap, dim, 0.0, VECTOR)
        if kind == _RAW:
            k = first + tl.arange(0, _GROUP)
            tl.store(body + k, x.to(tl.int32, bitcast=True), mask=k < n)
        else:
            word, _fit = quantizer.quantize(x, bound, step, inverse)
            if tl.load(verbatim_counts + group) > 0:
                word = tl.where(quantizer.fits(x, bound, step, inverse), word, 0)
            place, size = tl.load(group_places + group), tl.load(group_nbytes + group)
            bitpack.pack_group(
                payload + place, word, block_widths + group * _BLOCKS, size, n - first
            )
        first += _GROUP
        group += 1
