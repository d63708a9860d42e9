"""Kernels that decode headers of all segments, rows of all but rans, and verbatim values."""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.bitpack import gpu as bitpack
from trec_qcomm.ops.error_bound import NUM_REASONS, reference
from trec_qcomm.ops.error_bound.quantizer import gpu as quantizer
from trec_qcomm.ops.rans.gpu import header

_HEADER_NBYTES, _GROUP, _BLOCKS = (tl.constexpr(n) for n in (reference.HEADER_NBYTES, 1024, 32))
_RAW, _BITPACK = tl.constexpr(reference.RAW), tl.constexpr(reference.BITPACK)
_CONSTANT, _RANS = tl.constexpr(reference.CONSTANT), tl.constexpr(reference.RANS)
_MAX_VERBATIM = tl.constexpr(reference.MAX_VERBATIM)
_MIN_NORMAL, _FLT_MAX = tl.constexpr(2.0**-126), tl.constexpr(3.4028234663852886e38)
_NUM_FIELDS, _NUM_ENTRIES = tl.constexpr(header.NUM_FIELDS), tl.constexpr(header.NUM_ENTRIES)
_POSITIONS_PER_STEP = tl.constexpr(128)  # positions that a program handles together

_NUM_REASONS = tl.constexpr(NUM_REASONS)
# The reasons are those of cpu.py.
_OK, _BAD_SIZE, _BAD_ENCODER, _BAD_STEP, BAD_INDICES, _BAD_VERBATIM, _OTHER_ENCODER = (
    tl.constexpr(n) for n in range(7)
)


@triton.jit
def note_invalid(first_invalid, segment, reason):
    """Lower first_invalid [1] to NUM_REASONS * segment + reason, unless the reason is OK.

    first_invalid is -1 at first, the largest uint32.
    """
    if reason != _OK:
        code = segment * _NUM_REASONS + reason
        tl.atomic_min(
            first_invalid.to(tl.pointer_type(tl.uint32)), code.to(tl.uint32), sem="relaxed"
        )


@triton.jit(do_not_specialize=["num_slots", "groups_per_chunk"])
def read_headers(
    payload, payload16, payload32, nbytes, first_invalid, kinds, sinks, segment_of_chunk,
    group_places, block_widths, fields, entries, slots, word_places, word_counts, stream_offsets,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
    num_slots,
):  # fmt: skip
    """Read the headers of each segment. One program a segment.

    Args: segment_of_chunk: [C], to write.
          kinds: [S], to write the encoder field, or -1 for an invalid segment.
          group_places: [G] int64, block_widths: [32 G] uint8, to write for bitpack: where the
              blocks of each group begin, and how wide they are.
          sinks: [S], to write numbers without meaning: see bitpack.read_group_headers.
          fields: [S, NUM_FIELDS], entries: [S, NUM_ENTRIES], slots: [S, num_slots], word_places,
              word_counts: [T], to write for rans: see rans.gpu.header.read_header.
    """
    segment = tl.program_id(0)
    chunk, last_chunk = tl.load(chunk_offsets + segment), tl.load(chunk_offsets + segment + 1)
    while chunk < last_chunk:
        i = chunk + tl.arange(0, 32)
        tl.store(segment_of_chunk + i, i.to(tl.int32) * 0 + segment, mask=i < last_chunk)
        chunk += 32

    n, size = tl.load(num_values + segment), tl.load(nbytes + segment)
    begin = tl.load(at + segment)
    has_header = size >= _HEADER_NBYTES
    step = tl.load(payload32 + begin // 4, mask=has_header, other=0).to(tl.float32, bitcast=True)
    word = tl.load(payload32 + begin // 4 + 1, mask=has_header, other=0)
    kind, num_verbatim = word & 15, (word >> 7) & _MAX_VERBATIM
    indices = size - _HEADER_NBYTES - 8 * num_verbatim.to(tl.int64) - ((word >> 4) & 7)
    fits = has_header & (size % 8 == 0) & (indices >= 0)
    fits = fits & ((kind != _RAW) | ((indices == 4 * n) & (num_verbatim == 0)))
    fits = fits & ((kind != _CONSTANT) | (indices == 0))
    is_normal = (step >= _MIN_NORMAL) & (step <= _FLT_MAX)
    indexed = (kind != _RAW) & (kind != _CONSTANT)
    reason = tl.where(indexed & (kind != _BITPACK) & (kind != _RANS), _OTHER_ENCODER, _OK)
    reason = tl.where(indexed & ~is_normal, _BAD_STEP, reason)
    reason = tl.where(indexed & (kind > _RANS), _BAD_ENCODER, reason)
    reason = tl.where(fits, reason, _BAD_SIZE)
    reason = tl.where(n > 0, reason, tl.where(size == 0, _OK, _BAD_SIZE))
    sink = 0
    if (kind == _BITPACK) & (reason == _OK) & (n > 0):
        from_byte, group = begin + _HEADER_NBYTES, tl.load(group_offsets + segment)
        valid, sink = bitpack.read_group_headers(
            payload, payload32, from_byte, from_byte + indices, n.to(tl.int32),
            group_places + group, block_widths + group * _BLOCKS,
        )  # fmt: skip
        reason = tl.where(valid, _OK, BAD_INDICES)
    if (kind == _RANS) & (reason == _OK) & (n > 0):
        stream = tl.load(stream_offsets + segment)
        valid = header.read_header(
            payload, payload16, begin + _HEADER_NBYTES, begin + _HEADER_NBYTES + indices, n,
            fields + segment.to(tl.int64) * _NUM_FIELDS,
            entries + segment.to(tl.int64) * _NUM_ENTRIES, slots + segment.to(tl.int64) * num_slots,
            word_places + stream, word_counts + stream,
        )  # fmt: skip
        reason = tl.where(valid, _OK, BAD_INDICES)
    tl.store(sinks + segment, sink)
    tl.store(kinds + segment, tl.where(reason == _OK, kind, -1))
    note_invalid(first_invalid, segment, reason)


@triton.jit(do_not_specialize=["num_words32", "groups_per_chunk"])
def read_rows(
    payload32, num_words32, out, nbytes, first_invalid, kinds, segment_of_chunk, group_places,
    block_widths,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Write the rows of segments that `read_headers` found valid, except those of rans."""
    chunk = tl.program_id(0)
    segment = tl.load(segment_of_chunk + chunk)
    first_chunk = tl.load(chunk_offsets + segment)
    first_group = (chunk - first_chunk) * groups_per_chunk
    n = tl.load(num_values + segment).to(tl.int32)
    begin, gap = tl.load(start + segment), tl.load(gaps + segment).to(tl.int32)
    kind, header = tl.load(kinds + segment), tl.load(at + segment) // 4
    first = first_group.to(tl.int32) * _GROUP
    end = tl.where(
        (kind < 0) | (kind == _RANS), 0, tl.minimum(first + groups_per_chunk * _GROUP, n)
    )
    done = first
    if kind == _BITPACK:
        step = tl.load(payload32 + header).to(tl.float32, bitcast=True)
        group = tl.load(group_offsets + segment) + first_group
        while done < end:
            place = tl.load(group_places + group)
            q = bitpack.unpack_group(
                payload32, num_words32, block_widths + group * _BLOCKS, place, n - done
            )
            quantizer.store_group(q.to(tl.float32) * step, out, done, n, begin, gap, dim, VECTOR)
            done += _GROUP
            group += 1
    else:
        while done < end:
            k = done + tl.arange(0, _GROUP)
            # For a constant, all values read the same word.
            word = payload32 + header + tl.where(kind == _RAW, 2 + k, 0)
            x = tl.load(word, mask=k < n, other=0).to(tl.float32, bitcast=True)
            quantizer.store_group(x, out, done, n, begin, gap, dim, VECTOR)
            done += _GROUP
    if first < end:
        num_chunks = tl.load(chunk_offsets + segment + 1) - first_chunk
        read_verbatim(
            payload32 + header, out, first_invalid, tl.load(nbytes + segment), segment,
            chunk - first_chunk, num_chunks, first, end, n, begin, gap, dim,
        )  # fmt: skip


@triton.jit
def read_verbatim(
    segment32,
    out,
    first_invalid,
    nbytes,
    segment,
    part,
    num_parts,
    first,
    end,
    num_values,
    begin,
    gap,
    dim,
):
    """Write the verbatim values at first..end - 1 of a segment, and check some of its positions.

    Args: segment32: pointer to the segment's bytes as int32.
          part, num_parts: which part of the positions to check, of how many.
    """
    num_verbatim = (tl.load(segment32 + 1) >> 7) & _MAX_VERBATIM
    if num_verbatim > 0:
        positions = segment32 + nbytes // 4 - 2 * num_verbatim
        valid = _are_positions(positions, num_verbatim, num_values, part, num_parts)
        note_invalid(first_invalid, segment, tl.where(valid, _OK, _BAD_VERBATIM))
        tl.debug_barrier()  # until the values that they replace are stored
        _place_verbatim(positions, num_verbatim, out, first, end, begin, gap, dim)


@triton.jit
def _are_positions(positions, num_verbatim, num_values, part, num_parts):
    """Return whether one of num_parts of the positions increases and is below num_values."""
    valid = num_verbatim > 0
    done = (num_verbatim * part // num_parts).to(tl.int32)
    last = (num_verbatim * (part + 1) // num_parts).to(tl.int32)
    while done < last:
        v = done + tl.arange(0, _POSITIONS_PER_STEP)
        k = tl.load(positions + v, mask=v < last, other=0)
        before = tl.load(positions + v - 1, mask=(v < last) & (v > 0), other=-1)
        good = (k > before) & (k < num_values)  # as int32, 2^31 or more is below 0
        valid = valid & (tl.min((good | (v >= last)).to(tl.int32), 0) > 0)
        done += _POSITIONS_PER_STEP
    return valid


@triton.jit
def _place_verbatim(positions, num_verbatim, out, first, end, begin, gap, dim):
    """Write the verbatim values of a segment whose positions are first..end - 1."""
    low, high = num_verbatim * 0, num_verbatim
    while low < high:  # ends, whatever the positions are
        middle = (low + high) // 2
        is_before = tl.load(positions + middle) < first
        low = tl.where(is_before, middle + 1, low)
        high = tl.where(is_before, high, middle)
    more = low < num_verbatim
    while more:
        v = low + tl.arange(0, _POSITIONS_PER_STEP)
        k = tl.load(positions + v, mask=v < num_verbatim, other=-1)
        inside = (k >= first) & (k < end)
        bits = tl.load(positions + num_verbatim + v, mask=inside, other=0)
        place = begin + k + (k // dim).to(tl.int64) * gap
        tl.store(out + place, bits.to(tl.float32, bitcast=True), mask=inside)
        low += _POSITIONS_PER_STEP
        more = (low < num_verbatim) & (tl.max(inside.to(tl.int32), 0) > 0)
