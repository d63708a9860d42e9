"""Kernels that encode with rans, which needs all indices of a segment before it writes any."""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.device import segment_of
from trec_qcomm.ops.error_bound import reference
from trec_qcomm.ops.error_bound.gpu import encode_segments
from trec_qcomm.ops.error_bound.quantizer import gpu as quantizer
from trec_qcomm.ops.rans.gpu import header, initial_classes, remainders, stream
from trec_qcomm.ops.rans.gpu.arithmetic import CLASSES, LANES, STREAM, end_of_stream, num_lanes

_HEADER_NBYTES, _GROUP = tl.constexpr(reference.HEADER_NBYTES), tl.constexpr(1024)
_RAW, _RANS = tl.constexpr(reference.RAW), tl.constexpr(reference.RANS)
_CONSTANT, _NO_KEY = tl.constexpr(reference.CONSTANT), tl.constexpr(quantizer.NO_KEY)
_NUM_FIELDS, _NUM_ENTRIES = tl.constexpr(header.NUM_FIELDS), tl.constexpr(header.NUM_ENTRIES)
_RANS_HEADER_NBYTES = tl.constexpr(header.HEADER_NBYTES)
_NUM_SUMS = tl.constexpr(header.NUM_ENTRIES)


@triton.jit(do_not_specialize=["groups_per_chunk"])
def quantize_groups(
    values, range_keys, bounds, segment_of_chunk, indices, index_keys, verbatim_counts,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
    RELATIVE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write indices [1024 G] and verbatim_counts [G]; for constants only the counts.

    Args: index_keys: [2, S], NO_KEY at first, to write the lowest index of each segment, and the
              highest with all bits flipped.
    """
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
    group, low, high = tl.load(group_offsets + segment) + first_group, _NO_KEY, -_NO_KEY
    while first < end:
        x = quantizer.load_group(values, first, n, begin, gap, dim, 0.0, VECTOR)
        k = tl.arange(0, _GROUP)
        live = k < n - first
        if kind == _CONSTANT:
            differs = live & (x.to(tl.int32, bitcast=True) != constant)
            tl.store(verbatim_counts + group, tl.sum(differs.to(tl.int32), 0))
        else:
            word, _fit = quantizer.quantize(x, bound, step, inverse)
            fits = quantizer.fits(x, bound, step, inverse)
            word = tl.where(fits, word, 0).to(tl.int32, bitcast=True)
            q = ((word >> 1) & 0x7FFFFFFF) ^ -(word & 1)
            # Whole fours, so that each is one store.
            tl.store(indices + group * _GROUP + k, q, mask=k // 4 * 4 < n - first)
            tl.store(verbatim_counts + group, tl.sum((fits == 0).to(tl.int32), 0))
            low = tl.minimum(low, tl.min(tl.where(live, q, _NO_KEY), 0))
            high = tl.maximum(high, tl.max(tl.where(live, q, -_NO_KEY), 0))
        first += _GROUP
        group += 1
    if low <= high:
        tl.atomic_min(index_keys + segment, low, sem="relaxed")
        tl.atomic_min(index_keys + num_segments + segment, ~high, sem="relaxed")


@triton.jit(do_not_specialize=["groups_per_chunk"])
def choose_initial_classes(
    range_keys, bounds, indices, index_keys, kinds, fields,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
    RELATIVE: tl.constexpr,
):  # fmt: skip
    """Write kinds [S], RAW, CONSTANT or RANS, and the fields BASE and SHIFT of the initial classes.

    One program a segment.
    """
    segment = tl.program_id(0)
    kind, _, _, _ = quantizer.choose_step(range_keys, bounds, segment, num_segments, RELATIVE)
    n = tl.load(num_values + segment)
    indexed = (kind != _RAW) & (kind != _CONSTANT) & (n > 0)
    tl.store(kinds + segment, tl.where(indexed, _RANS, kind).to(tl.int64))
    if indexed:
        low, high = tl.load(index_keys + segment), ~tl.load(index_keys + num_segments + segment)
        q = indices + tl.load(group_offsets + segment) * _GROUP
        base, shift = initial_classes.initial_classes(q, n, low, high)
        tl.store(fields + segment * _NUM_FIELDS + header.BASE, base.to(tl.int64))
        tl.store(fields + segment * _NUM_FIELDS + header.SHIFT, shift.to(tl.int64))


@triton.jit(do_not_specialize=["groups_per_chunk"])
def count_classes(
    indices, segment_of_chunk, kinds, fields, class_counts, group_escapes,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
):  # fmt: skip
    """Count the indices in each class.

    Args: class_counts: [S, 256] int32, to add to.
          group_escapes: [G], to write the number of indices of each group that are in no class.
    """
    chunk = tl.program_id(0)
    segment = tl.load(segment_of_chunk + chunk)
    if tl.load(kinds + segment) == _RANS:
        first_group = (chunk - tl.load(chunk_offsets + segment)) * groups_per_chunk
        n = tl.load(num_values + segment)
        base = tl.load(fields + segment * _NUM_FIELDS + header.BASE).to(tl.int32)
        shift = tl.load(fields + segment * _NUM_FIELDS + header.SHIFT).to(tl.int32)
        first = first_group.to(tl.int32) * _GROUP
        end = tl.minimum(first + groups_per_chunk * _GROUP, n.to(tl.int32))
        group = tl.load(group_offsets + segment) + first_group
        counts = tl.zeros((CLASSES,), tl.int32)
        k = tl.arange(0, _GROUP)
        while first < end:
            q = tl.load(indices + group * _GROUP + k, mask=k // 4 * 4 < end - first, other=0)
            group_counts, outside = initial_classes.count_group(q, k < end - first, base, shift, n)
            counts += group_counts
            tl.store(group_escapes + group, outside)
            first += _GROUP
            group += 1
        segment_counts = class_counts + segment * CLASSES + tl.arange(0, CLASSES)
        tl.atomic_add(segment_counts, counts, mask=counts > 0, sem="relaxed")


@triton.jit(do_not_specialize=["groups_per_chunk"])
def choose_classes(
    kinds, fields, class_counts, sums, headers, headers32, entries,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
):  # fmt: skip
    """Choose the classes of each segment; write its fields, header and encoder's table.

    One program a segment.

    Args: fields: [S, NUM_FIELDS] int64.  sums: [S, NUM_ENTRIES] int32, scratch.
          headers: [S, HEADER_NBYTES] uint8 of 0.  headers32: that memory as int32.
          entries: [S, NUM_ENTRIES] int64: see rans.gpu.coding_tables.
    """
    segment = tl.program_id(0)
    if tl.load(kinds + segment) == _RANS:
        wide = segment.to(tl.int64)
        header.make_header(
            class_counts + wide * CLASSES, sums + wide * _NUM_SUMS, tl.load(num_values + segment),
            tl.load(at + segment) + _HEADER_NBYTES, fields + wide * _NUM_FIELDS,
            headers + wide * _RANS_HEADER_NBYTES, headers32 + wide * (_RANS_HEADER_NBYTES // 4),
            entries + wide * _NUM_ENTRIES,
        )  # fmt: skip


@triton.jit(do_not_specialize=["groups_per_chunk"])
def push_streams(
    indices, kinds, fields, entries, stream_words, states, num_words, stream_offsets,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
    STEPS: tl.constexpr,
):  # fmt: skip
    """Encode the indices of each stream. One program a stream.

    Args: stream_words: [1024 G] int16; a stream's words are written to the end of its part.
          states: [T, 32] int32.  num_words: [T] int32.
    """
    stream_number = tl.program_id(0)
    segment = segment_of(stream_number, stream_offsets, num_segments, STEPS)
    if tl.load(kinds + segment) == _RANS:
        segment_fields = fields + segment.to(tl.int64) * _NUM_FIELDS
        log, n = tl.load(segment_fields + header.LOG), tl.load(num_values + segment)
        if log > 0:
            part = stream_number - tl.load(stream_offsets + segment)
            first = part.to(tl.int32) * STREAM
            place = tl.load(group_offsets + segment) * _GROUP + first
            count = stream.push_stream(
                indices + place, end_of_stream(part, n) - first,
                tl.load(segment_fields + header.BASE).to(tl.int32),
                tl.load(segment_fields + header.SHIFT).to(tl.int32),
                tl.load(segment_fields + header.NUM_CLASSES).to(tl.int32), log, num_lanes(n),
                entries + segment.to(tl.int64) * _NUM_ENTRIES, stream_words + place,
                states + stream_number * LANES,
            )  # fmt: skip
            tl.store(num_words + stream_number, count)


@triton.jit
def _add_up(sizes, places, first, end, place, BLOCK: tl.constexpr):
    """Write places[first:end]: `place` plus the sizes before each. Return the place of the end."""
    while first < end:
        i = first + tl.arange(0, BLOCK)
        size = tl.load(sizes + i, mask=i < end, other=0)
        tl.store(places + i, place + tl.cumsum(size, 0) - size, mask=i < end)
        place += tl.sum(size, 0)
        first += BLOCK
    return place


@triton.jit(do_not_specialize=["groups_per_chunk"])
def lay_out_rans(
    values, payload, payload32, range_keys, bounds, kinds, fields, verbatim_counts, verbatim_before,
    group_escapes, escapes_before, num_words, word_places, nbytes, stream_offsets,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
    RELATIVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the places of all parts, and around them headers, padding, kinds [S] and nbytes [S].

    One program a segment.

    Args: verbatim_before, escapes_before: [G] int64, to write the number of verbatim values and of
              escaped indices of the segment before each group.
          word_places: [T] int64, to write where words go, in units of 2 bytes.
    """
    segment = tl.program_id(0)
    n, begin = tl.load(num_values + segment), tl.load(at + segment) + _HEADER_NBYTES
    kind, first, size = tl.load(kinds + segment), tl.load(group_offsets + segment), n * 0
    last = tl.load(group_offsets + segment + 1)
    tl.debug_barrier()  # until all lanes have loaded the kind, which end_segment replaces
    num_verbatim = _add_up(
        verbatim_counts, verbatim_before, first, tl.where(kind == _RAW, first, last), n * 0, BLOCK
    )
    if kind == _RANS:
        segment_fields = fields + segment.to(tl.int64) * _NUM_FIELDS
        _ = _add_up(group_escapes, escapes_before, first, last, n * 0, BLOCK)
        _, place = header.escapes_and_states_at(segment_fields, n)
        if tl.load(segment_fields + header.LOG) > 0:
            stream_number = tl.load(stream_offsets + segment)
            end = tl.load(stream_offsets + segment + 1)
            place += 2 * num_lanes(n) * (end - stream_number) + 2 * (end - stream_number - 1)
            place = _add_up(num_words, word_places, stream_number, end, place, BLOCK)
        size = 2 * place - begin
    encode_segments.end_segment(
        values, payload, payload32, range_keys, bounds, kinds, nbytes, segment, kind, size,
        num_verbatim, num_values, start, gaps, at, num_segments, dim, RELATIVE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["groups_per_chunk"])
def write_rans(
    values, payload, payload16, payload32, segment_of_chunk, kinds, fields, headers, indices,
    group_escapes, escapes_before, stream_words, states, num_words, word_places, stream_offsets,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Write raw rows and indices where `lay_out_rans` says."""
    chunk = tl.program_id(0)
    segment = tl.load(segment_of_chunk + chunk)
    first_group = (chunk - tl.load(chunk_offsets + segment)) * groups_per_chunk
    n, kind = tl.load(num_values + segment).to(tl.int32), tl.load(kinds + segment)
    segment_fields = fields + segment.to(tl.int64) * _NUM_FIELDS
    body = tl.load(at + segment) + _HEADER_NBYTES
    first = first_group.to(tl.int32) * _GROUP
    end = tl.minimum(first + groups_per_chunk * _GROUP, n)
    base_group, stream_number = tl.load(group_offsets + segment), tl.load(stream_offsets + segment)
    if kind == _RANS:
        if first == 0:
            segment_header = headers + segment.to(tl.int64) * _RANS_HEADER_NBYTES
            header.put_header(payload, body, n, segment_fields, segment_header)
        has_words = tl.load(segment_fields + header.LOG) > 0
        group = first // _GROUP
        while first < end:
            num_escapes = tl.load(group_escapes + base_group + group)
            remainders.put_indices(
                payload, payload16, segment_fields, indices + base_group * _GROUP, group, n,
                num_escapes, tl.load(escapes_before + base_group + group),
            )  # fmt: skip
            if has_words:
                stream.put_stream(
                    payload16, segment_fields, group, n, states + stream_number * LANES,
                    stream_words + base_group * _GROUP, word_places + stream_number,
                    num_words + stream_number,
                )  # fmt: skip
            first += _GROUP
            group += 1
    elif kind == _RAW:
        begin, gap = tl.load(start + segment), tl.load(gaps + segment).to(tl.int32)
        while first < end:
            x = quantizer.load_group(values, first, n, begin, gap, dim, 0.0, VECTOR)
            k = first + tl.arange(0, _GROUP)
            tl.store(payload32 + body // 4 + k, x.to(tl.int32, bitcast=True), mask=k < n)
            first += _GROUP
