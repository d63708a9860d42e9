"""Kernels for the parts that all encoders share: ranges, headers and padding, verbatim values.

GroupedBatch.layout explains the arguments from num_values to dim. The package's head has the shapes
of other arrays.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.device import segment_of
from trec_qcomm.ops.error_bound import reference
from trec_qcomm.ops.error_bound.quantizer import gpu as quantizer

_HEADER_NBYTES, _GROUP = tl.constexpr(reference.HEADER_NBYTES), tl.constexpr(1024)
_RAW, _CONSTANT = tl.constexpr(reference.RAW), tl.constexpr(reference.CONSTANT)
_MAX_VERBATIM = tl.constexpr(reference.MAX_VERBATIM)
_NO_KEY = tl.constexpr(quantizer.NO_KEY)


@triton.jit(do_not_specialize=["groups_per_chunk"])
def find_ranges(
    values, range_keys, segment_of_chunk,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
    STEPS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write segment_of_chunk [C], and range_keys [3, S] as quantizer.lower_range_keys does."""
    chunk = tl.program_id(0)
    segment = segment_of(chunk, chunk_offsets, num_segments, STEPS)
    tl.store(segment_of_chunk + chunk, segment)
    first = (chunk - tl.load(chunk_offsets + segment)).to(tl.int32) * groups_per_chunk * _GROUP
    n = tl.load(num_values + segment).to(tl.int32)
    begin, gap = tl.load(start + segment), tl.load(gaps + segment).to(tl.int32)
    end = tl.minimum(first + groups_per_chunk * _GROUP, n)
    low, high, first_equal = float("inf"), float("-inf"), _NO_KEY
    while first < end:
        x = quantizer.load_group(values, first, n, begin, gap, dim, float("nan"), VECTOR)
        lowest, highest = quantizer.finite_range(x)
        low, high = tl.minimum(low, lowest), tl.maximum(high, highest)
        if (lowest == highest) & (first_equal == _NO_KEY):
            x = quantizer.load_group(values, first, n, begin, gap, dim, float("nan"), VECTOR)
            k = first + tl.arange(0, _GROUP)
            first_equal = tl.min(tl.where(x == lowest, k, _NO_KEY), 0)
        first += _GROUP
    quantizer.lower_range_keys(range_keys, segment, num_segments, low, high, first_equal)


@triton.jit
def end_segment(
    values, payload, payload32, range_keys, bounds, kinds, nbytes, segment, kind, size,
    num_verbatim,
    num_values, start, gaps, at, num_segments, dim,
    RELATIVE: tl.constexpr,
):  # fmt: skip
    """Write kind and nbytes, the header and the padding of a segment.

    The segment becomes a raw one if that is not longer.

    Args: kind: RAW, CONSTANT or the encoder.  size: bytes of the indices.
    """
    n, begin = tl.load(num_values + segment), tl.load(at + segment)
    _, _, step, _ = quantizer.choose_step(range_keys, bounds, segment, num_segments, RELATIVE)
    raw_size = (4 * n + 7) // 8 * 8
    too_long = (size + 7) // 8 * 8 + 8 * num_verbatim >= raw_size
    is_raw = (kind == _RAW) | (num_verbatim > _MAX_VERBATIM) | too_long
    kind = tl.where(is_raw, _RAW, kind)
    size, num_verbatim = tl.where(is_raw, 4 * n, size), tl.where(is_raw, 0, num_verbatim)
    padding = -size & 7
    tl.store(kinds + segment, kind.to(tl.int64))
    tl.store(
        nbytes + segment, tl.where(n > 0, _HEADER_NBYTES + size + padding + 8 * num_verbatim, 0)
    )
    if n > 0:
        first, gap = tl.load(start + segment), tl.load(gaps + segment)
        constant = quantizer.constant_of(values, range_keys, segment, num_segments, first, gap, dim)
        word = tl.where(kind == _CONSTANT, constant, step.to(tl.int32, bitcast=True))
        tl.store(payload32 + begin // 4, tl.where(is_raw, 0, word))
        tl.store(
            payload32 + begin // 4 + 1, (kind | (padding << 4) | (num_verbatim << 7)).to(tl.int32)
        )
        t = tl.arange(0, 8)
        tl.store(
            payload + begin + _HEADER_NBYTES + size + t, tl.zeros_like(t).to(tl.uint8), t < padding
        )


@triton.jit(do_not_specialize=["groups_per_chunk"])
def write_verbatim(
    values, payload32, range_keys, bounds, segment_of_chunk, kinds, verbatim_counts,
    verbatim_before, nbytes,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
    RELATIVE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write positions and bits of verbatim values.

    Few groups have any. The kernel that writes the indices would need twice the registers for them.

    Args: verbatim_before: [G] number of verbatim values of the segment before each group.
    """
    chunk = tl.program_id(0)
    segment = tl.load(segment_of_chunk + chunk)
    first_group = (chunk - tl.load(chunk_offsets + segment)) * groups_per_chunk
    n = tl.load(num_values + segment).to(tl.int32)
    kind, header = tl.load(kinds + segment), tl.load(at + segment) // 4
    group = tl.load(group_offsets + segment) + first_group
    first = first_group.to(tl.int32) * _GROUP
    end = tl.where(kind == _RAW, 0, tl.minimum(first + groups_per_chunk * _GROUP, n))
    while first < end:
        if tl.load(verbatim_counts + group) > 0:
            begin, gap = tl.load(start + segment), tl.load(gaps + segment).to(tl.int32)
            x = quantizer.load_group(values, first, n, begin, gap, dim, 0.0, VECTOR)
            bits, k = x.to(tl.int32, bitcast=True), first + tl.arange(0, _GROUP)
            if kind == _CONSTANT:
                constant = quantizer.constant_of(
                    values, range_keys, segment, num_segments, begin, gap, dim
                )
                verbatim = (k < n) & (bits != constant)
            else:
                _, bound, step, inverse = quantizer.choose_step(
                    range_keys, bounds, segment, num_segments, RELATIVE
                )
                verbatim = ~quantizer.fits(x, bound, step, inverse)
            num_verbatim = (tl.load(payload32 + header + 1) >> 7) & _MAX_VERBATIM
            positions = payload32 + header + tl.load(nbytes + segment) // 4 - 2 * num_verbatim
            target = (
                positions
                + tl.load(verbatim_before + group)
                + tl.cumsum(verbatim.to(tl.int32), 0)
                - 1
            )
            tl.store(target, k, mask=verbatim)
            tl.store(target + num_verbatim, bits, mask=verbatim)
        first += _GROUP
        group += 1
