"""Kernels that decode rans: symbols, stream by stream; then rows, chunk by chunk."""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.device import segment_of
from trec_qcomm.ops.error_bound import reference
from trec_qcomm.ops.error_bound.gpu.decode_segments import BAD_INDICES, note_invalid, read_verbatim
from trec_qcomm.ops.error_bound.quantizer import gpu as quantizer
from trec_qcomm.ops.rans.gpu import header, remainders, stream
from trec_qcomm.ops.rans.gpu.arithmetic import STREAM, end_of_stream, num_lanes

_GROUP, _RANS = tl.constexpr(1024), tl.constexpr(reference.RANS)
_NUM_FIELDS, _NUM_ENTRIES = tl.constexpr(header.NUM_FIELDS), tl.constexpr(header.NUM_ENTRIES)


@triton.jit(do_not_specialize=["num_slots", "groups_per_chunk"])
def pop_streams(
    payload16, first_invalid, kinds, fields, entries, slots, word_places, word_counts, symbols,
    group_escapes, stream_escapes, stream_offsets,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
    num_slots, STEPS: tl.constexpr,
):  # fmt: skip
    """Decode the symbols of each stream. One program a stream.

    The program must have one warp. A program of another stream may store the segment's kind while
    this program loads it, and warps that load different kinds would not meet at a barrier.

    Args: kinds: [S], becomes -1 if a stream is invalid.
          symbols: [1024 G] int16, to write.
          group_escapes: [G], stream_escapes: [T], to write the number of escape symbols.
    """
    stream_number = tl.program_id(0)
    segment = segment_of(stream_number, stream_offsets, num_segments, STEPS)
    if tl.load(kinds + segment) == _RANS:
        segment_fields = fields + segment.to(tl.int64) * _NUM_FIELDS
        part = stream_number - tl.load(stream_offsets + segment)
        log, n = tl.load(segment_fields + header.LOG).to(tl.int32), tl.load(num_values + segment)
        num_escapes = 0
        if log > 0:
            first, lanes = part.to(tl.int32) * STREAM, num_lanes(n)
            group = tl.load(group_offsets + segment) + first // _GROUP
            _, states_at = header.escapes_and_states_at(segment_fields, n)
            valid, num_escapes = stream.pop_stream(
                payload16, states_at + 2 * lanes * part, tl.load(word_places + stream_number),
                tl.load(word_counts + stream_number), entries + segment.to(tl.int64) * _NUM_ENTRIES,
                slots + segment.to(tl.int64) * num_slots, log, lanes,
                tl.load(segment_fields + header.NUM_CLASSES).to(tl.int32),
                end_of_stream(part, n) - first, symbols + group * _GROUP, group_escapes + group,
            )  # fmt: skip
            if not valid:
                tl.store(kinds + segment, -1)
                note_invalid(first_invalid, segment, BAD_INDICES)
        tl.store(stream_escapes + stream_number, num_escapes)


@triton.jit(do_not_specialize=["groups_per_chunk"])
def read_rans_rows(
    payload, payload16, payload32, out, nbytes, first_invalid, kinds, segment_of_chunk, fields,
    symbols, group_escapes, stream_escapes, stream_offsets,
    num_values, start, gaps, at, group_offsets, chunk_offsets, num_segments, groups_per_chunk, dim,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Write the rows of segments that `read_headers` and `pop_streams` found valid."""
    chunk = tl.program_id(0)
    segment = tl.load(segment_of_chunk + chunk)
    if tl.load(kinds + segment) == _RANS:
        first_chunk = tl.load(chunk_offsets + segment)
        first_group = (chunk - first_chunk) * groups_per_chunk
        n, segment32 = tl.load(num_values + segment).to(tl.int32), payload32
        segment32 += tl.load(at + segment) // 4
        begin, gap = tl.load(start + segment), tl.load(gaps + segment).to(tl.int32)
        first = first_group.to(tl.int32) * _GROUP
        end, done = tl.minimum(first + groups_per_chunk * _GROUP, n), first
        step = tl.load(segment32).to(tl.float32, bitcast=True)
        segment_fields = fields + segment.to(tl.int64) * _NUM_FIELDS
        group = tl.load(group_offsets + segment)
        segment_stream_escapes = stream_escapes + tl.load(stream_offsets + segment)
        num_escapes, num_before = tl.load(segment_fields + header.NUM_ESCAPES).to(tl.int32), 0
        if num_escapes > 0:
            num_before = remainders.escapes_before(
                first // _GROUP, n, group_escapes + group, segment_stream_escapes
            )
            if first == 0:
                total = remainders.count_escapes(n, segment_stream_escapes)
                note_invalid(first_invalid, segment, tl.where(total == num_escapes, 0, BAD_INDICES))
        group_symbols = symbols + (group + first_group) * _GROUP
        while done < end:
            q, num_before = remainders.get_indices(
                payload, payload16, segment_fields, group_symbols, done, n, num_before
            )
            quantizer.store_group(q.to(tl.float32) * step, out, done, n, begin, gap, dim, VECTOR)
            done += _GROUP
            group_symbols += _GROUP
        num_chunks = tl.load(chunk_offsets + segment + 1) - first_chunk
        read_verbatim(
            segment32, out, first_invalid, tl.load(nbytes + segment), segment, chunk - first_chunk,
            num_chunks, first, end, n, begin, gap, dim,
        )  # fmt: skip
