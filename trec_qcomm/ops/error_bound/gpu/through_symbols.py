"""The kernels that decode rans, whose symbols are found stream by stream, then made to indices."""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.device import segment_of
from trec_qcomm.ops.error_bound import reference
from trec_qcomm.ops.error_bound.gpu.reading import BAD_INDICES, note, read_verbatim
from trec_qcomm.ops.error_bound.quantizer import gpu as quantizer
from trec_qcomm.ops.rans.gpu import header, rest, words
from trec_qcomm.ops.rans.gpu.numbers import STREAM, end_of_stream, num_lanes

_GROUP, _RANS = tl.constexpr(1024), tl.constexpr(reference.RANS)
_FACTS, _ENTRIES = tl.constexpr(header.FACTS), tl.constexpr(header.ENTRIES)


@triton.jit
def read_symbols(
    payload16, wrong, kinds, facts, entries, slots, word_places, word_counts, symbols, escapes,
    escapes_of_streams, streams, num_values, start, gaps, at, groups, chunks, num_segments,
    per_chunk, dim, SLOTS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """A program a stream: write symbols [1024 G], int16, and how many are escapes: of
    each group to escapes [G], and to escapes_of_streams [T]. kinds becomes -1 where a stream is
    invalid."""
    stream = tl.program_id(0)
    segment = segment_of(stream, streams, num_segments, STEPS)
    if tl.load(kinds + segment) == _RANS:
        own_facts, part = facts + segment.to(tl.int64) * _FACTS, stream - tl.load(streams + segment)
        log, n = tl.load(own_facts + header.LOG).to(tl.int32), tl.load(num_values + segment)
        num_escapes = 0
        if log > 0:
            first, lanes = part.to(tl.int32) * STREAM, num_lanes(n)
            group = tl.load(groups + segment) + first // _GROUP
            _, states_at = header.places(own_facts, n)
            valid, num_escapes = words.pop_stream(
                payload16, states_at + 2 * lanes * part, tl.load(word_places + stream),
                tl.load(word_counts + stream), entries + segment.to(tl.int64) * _ENTRIES,
                slots + segment.to(tl.int64) * SLOTS, log, lanes,
                tl.load(own_facts + header.SIZE).to(tl.int32), end_of_stream(part, n) - first,
                symbols + group * _GROUP, escapes + group,
            )  # fmt: skip
            if not valid:
                tl.store(kinds + segment, -1)
                note(wrong, segment, BAD_INDICES)
        tl.store(escapes_of_streams + stream, num_escapes)


@triton.jit
def read_rans(
    payload, payload16, payload32, out, nbytes, wrong, kinds, segment_of_chunk, facts, symbols,
    escapes, escapes_of_streams, streams,
    num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Write the rows of segments that `read_headers` and `read_symbols` found valid."""
    chunk = tl.program_id(0)
    segment = tl.load(segment_of_chunk + chunk)
    if tl.load(kinds + segment) == _RANS:
        first_chunk = tl.load(chunks + segment)
        first_group = (chunk - first_chunk) * per_chunk
        n, segment32 = tl.load(num_values + segment).to(tl.int32), payload32
        segment32 += tl.load(at + segment) // 4
        begin, gap = tl.load(start + segment), tl.load(gaps + segment).to(tl.int32)
        first = first_group.to(tl.int32) * _GROUP
        end, done = tl.minimum(first + per_chunk * _GROUP, n), first
        step = tl.load(segment32).to(tl.float32, bitcast=True)
        own_facts, group = facts + segment.to(tl.int64) * _FACTS, tl.load(groups + segment)
        of_streams = escapes_of_streams + tl.load(streams + segment)
        num_escapes, rank = tl.load(own_facts + header.ESCAPES).to(tl.int32), 0
        if num_escapes > 0:
            rank = rest.escapes_before(first // _GROUP, n, escapes + group, of_streams)
            if first == 0:
                found = rest.num_escapes(n, of_streams)
                note(wrong, segment, tl.where(found == num_escapes, 0, BAD_INDICES))
        own_symbols = symbols + (group + first_group) * _GROUP
        while done < end:
            q, rank = rest.get_group(payload, payload16, own_facts, own_symbols, done, n, rank)
            quantizer.store_group(q.to(tl.float32) * step, out, done, n, begin, gap, dim, VECTOR)
            done += _GROUP
            own_symbols += _GROUP
        num_chunks = tl.load(chunks + segment + 1) - first_chunk
        read_verbatim(
            segment32, out, wrong, tl.load(nbytes + segment), segment, chunk - first_chunk,
            num_chunks, first, end, n, begin, gap, dim,
        )  # fmt: skip
