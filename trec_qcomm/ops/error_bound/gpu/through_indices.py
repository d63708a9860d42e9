"""The kernels that encode with rans, which needs the indices of a segment before it writes any."""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.device import segment_of
from trec_qcomm.ops.error_bound import reference
from trec_qcomm.ops.error_bound.gpu import writing
from trec_qcomm.ops.error_bound.quantizer import gpu as quantizer
from trec_qcomm.ops.rans.gpu import header, rest, window, words
from trec_qcomm.ops.rans.gpu.numbers import CLASSES, LANES, STREAM, end_of_stream, num_lanes

_HEADER, _GROUP = tl.constexpr(reference.HEADER_NBYTES), tl.constexpr(1024)
_RAW, _RANS = tl.constexpr(reference.RAW), tl.constexpr(reference.RANS)
_CONSTANT, _NO_KEY = tl.constexpr(reference.CONSTANT), tl.constexpr(quantizer.NO_KEY)
_FACTS, _ENTRIES = tl.constexpr(header.FACTS), tl.constexpr(header.ENTRIES)
_RANS_HEADER, _SUMS = tl.constexpr(header.HEADER), tl.constexpr(header.ENTRIES)


@triton.jit
def make_indices(
    values, found, bounds, segment_of_chunk, indices, span, counts,
    num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim,
    RELATIVE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write indices [1024 G], counts [G] of verbatim values and, to span [2, S] that is NO_KEY, the
    lowest index of each segment and the highest with all bits flipped; of constants the counts."""
    chunk = tl.num_programs(0) - 1 - tl.program_id(0)
    segment = tl.load(segment_of_chunk + chunk)
    first_group = (chunk - tl.load(chunks + segment)) * per_chunk
    n = tl.load(num_values + segment).to(tl.int32)
    begin, gap = tl.load(start + segment), tl.load(gaps + segment).to(tl.int32)
    kind, bound, step, inverse = quantizer.rule(found, bounds, segment, num_segments, RELATIVE)
    first = first_group.to(tl.int32) * _GROUP
    end = tl.where(kind == _RAW, 0, tl.minimum(first + per_chunk * _GROUP, n))
    constant = quantizer.constant_of(values, found, segment, num_segments, begin, gap, dim)
    group, low, high = tl.load(groups + segment) + first_group, _NO_KEY, -_NO_KEY
    while first < end:
        x = quantizer.load_group(values, first, n, begin, gap, dim, 0.0, VECTOR)
        k = tl.arange(0, _GROUP)
        live = k < n - first
        if kind == _CONSTANT:
            differs = live & (x.to(tl.int32, bitcast=True) != constant)
            tl.store(counts + group, tl.sum(differs.to(tl.int32), 0))
        else:
            word, _fit = quantizer.quantize(x, bound, step, inverse)
            fits = quantizer.fits(x, bound, step, inverse)
            word = tl.where(fits, word, 0).to(tl.int32, bitcast=True)
            q = ((word >> 1) & 0x7FFFFFFF) ^ -(word & 1)
            tl.store(indices + group * _GROUP + k, q, mask=live)
            tl.store(counts + group, tl.sum((fits == 0).to(tl.int32), 0))
            low = tl.minimum(low, tl.min(tl.where(live, q, _NO_KEY), 0))
            high = tl.maximum(high, tl.max(tl.where(live, q, -_NO_KEY), 0))
        first += _GROUP
        group += 1
    if low <= high:
        tl.atomic_min(span + segment, low, sem="relaxed")
        tl.atomic_min(span + num_segments + segment, ~high, sem="relaxed")


@triton.jit
def choose_window(
    found, bounds, indices, span, kinds, facts,
    num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim,
    RELATIVE: tl.constexpr,
):  # fmt: skip
    """A program a segment: write kinds [S], RAW, CONSTANT or RANS, and BASE and SHIFT of the facts
    of the classes to begin with."""
    segment = tl.program_id(0)
    kind, _, _, _ = quantizer.rule(found, bounds, segment, num_segments, RELATIVE)
    n = tl.load(num_values + segment)
    indexed = (kind != _RAW) & (kind != _CONSTANT) & (n > 0)
    tl.store(kinds + segment, tl.where(indexed, _RANS, kind).to(tl.int64))
    if indexed:
        low, high = tl.load(span + segment), ~tl.load(span + num_segments + segment)
        q = indices + tl.load(groups + segment) * _GROUP
        base, shift = window.window(q, n, low, high)
        tl.store(facts + segment * _FACTS + header.BASE, base.to(tl.int64))
        tl.store(facts + segment * _FACTS + header.SHIFT, shift.to(tl.int64))


@triton.jit
def count_classes(
    indices, segment_of_chunk, kinds, facts, classes, escapes,
    num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim,
):  # fmt: skip
    """Add to classes [S, 256], int32, the indices in each, and write how many of each group are in
    none to escapes [G]."""
    chunk = tl.program_id(0)
    segment = tl.load(segment_of_chunk + chunk)
    if tl.load(kinds + segment) == _RANS:
        first_group = (chunk - tl.load(chunks + segment)) * per_chunk
        n = tl.load(num_values + segment)
        base = tl.load(facts + segment * _FACTS + header.BASE).to(tl.int32)
        shift = tl.load(facts + segment * _FACTS + header.SHIFT).to(tl.int32)
        first = first_group.to(tl.int32) * _GROUP
        end = tl.minimum(first + per_chunk * _GROUP, n.to(tl.int32))
        group, counts = tl.load(groups + segment) + first_group, tl.zeros((CLASSES,), tl.int32)
        k = tl.arange(0, _GROUP)
        while first < end:
            q = tl.load(indices + group * _GROUP + k, mask=k < end - first, other=0)
            more, outside = window.count_group(q, k < end - first, base, shift, n)
            counts += more
            tl.store(escapes + group, outside)
            first += _GROUP
            group += 1
        own = classes + segment * CLASSES + tl.arange(0, CLASSES)
        tl.atomic_add(own, counts, mask=counts > 0, sem="relaxed")


@triton.jit
def choose_classes(
    kinds, facts, classes, sums, headers, headers32, entries,
    num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim,
):  # fmt: skip
    """A program a segment: write all facts [S, 8], headers [S, 512], uint8, that are 0 (headers32:
    as int32), and entries [S, 264], int64, of rans.gpu. sums: [S, 264] int32, scratch."""
    segment = tl.program_id(0)
    if tl.load(kinds + segment) == _RANS:
        wide = segment.to(tl.int64)
        header.make_header(
            classes + wide * CLASSES, sums + wide * _SUMS, tl.load(num_values + segment),
            tl.load(at + segment) + _HEADER, facts + wide * _FACTS, headers + wide * _RANS_HEADER,
            headers32 + wide * (_RANS_HEADER // 4), entries + wide * _ENTRIES,
        )  # fmt: skip


@triton.jit
def push_symbols(
    indices, kinds, facts, entries, coded, states, num_words, streams,
    num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim,
    STEPS: tl.constexpr,
):  # fmt: skip
    """A program a stream: write its words to the end of its part of coded [1024 G], int16, their
    number to num_words [T], and states [T, 32], int32."""
    stream = tl.program_id(0)
    segment = segment_of(stream, streams, num_segments, STEPS)
    if tl.load(kinds + segment) == _RANS:
        own_facts = facts + segment.to(tl.int64) * _FACTS
        log, n = tl.load(own_facts + header.LOG), tl.load(num_values + segment)
        if log > 0:
            part = stream - tl.load(streams + segment)
            first = part.to(tl.int32) * STREAM
            place = tl.load(groups + segment) * _GROUP + first
            count = words.push_stream(
                indices + place, end_of_stream(part, n) - first,
                tl.load(own_facts + header.BASE).to(tl.int32),
                tl.load(own_facts + header.SHIFT).to(tl.int32),
                tl.load(own_facts + header.SIZE).to(tl.int32), log, num_lanes(n),
                entries + segment.to(tl.int64) * _ENTRIES, coded + place, states + stream * LANES,
            )  # fmt: skip
            tl.store(num_words + stream, count)


@triton.jit
def _add_up(sizes, places, first, end, place, BLOCK: tl.constexpr):
    """Write places[first:end]: `place` plus the sizes before each. Returns that of the end."""
    while first < end:
        i = first + tl.arange(0, BLOCK)
        size = tl.load(sizes + i, mask=i < end, other=0)
        tl.store(places + i, place + tl.cumsum(size, 0) - size, mask=i < end)
        place += tl.sum(size, 0)
        first += BLOCK
    return place


@triton.jit
def lay_out_rans(
    values, payload, payload32, found, bounds, kinds, facts, counts, ranks, escapes, escape_ranks,
    num_words, word_places, nbytes, streams,
    num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim,
    RELATIVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As writing.lay_out, of segments of these kinds: write ranks and escape_ranks [G], numbers of
    verbatim values and of escaped indices before each group; word_places [T], int64, in units of 2
    bytes; kinds and nbytes [S], the headers and the padding."""
    segment = tl.program_id(0)
    n, begin = tl.load(num_values + segment), tl.load(at + segment) + _HEADER
    kind, first, size = tl.load(kinds + segment), tl.load(groups + segment), n * 0
    last = tl.load(groups + segment + 1)
    rank = _add_up(counts, ranks, first, tl.where(kind == _RAW, first, last), n * 0, BLOCK)
    if kind == _RANS:
        own_facts = facts + segment.to(tl.int64) * _FACTS
        _ = _add_up(escapes, escape_ranks, first, last, n * 0, BLOCK)
        _, place = header.places(own_facts, n)
        if tl.load(own_facts + header.LOG) > 0:
            stream, end = tl.load(streams + segment), tl.load(streams + segment + 1)
            place += 2 * num_lanes(n) * (end - stream) + 2 * (end - stream - 1)
            place = _add_up(num_words, word_places, stream, end, place, BLOCK)
        size = 2 * place - begin
    writing.end_segment(
        values, payload, payload32, found, bounds, kinds, nbytes, segment, kind, size, rank,
        num_values, start, gaps, at, num_segments, dim, RELATIVE,
    )  # fmt: skip


@triton.jit
def write_rans(
    values, payload, payload16, payload32, segment_of_chunk, kinds, facts, headers, indices,
    escapes, escape_ranks, coded, states, num_words, word_places, streams,
    num_values, start, gaps, at, groups, chunks, num_segments, per_chunk, dim,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Write raw rows and indices where `lay_out_rans` says."""
    chunk = tl.program_id(0)
    segment = tl.load(segment_of_chunk + chunk)
    first_group = (chunk - tl.load(chunks + segment)) * per_chunk
    n, kind = tl.load(num_values + segment).to(tl.int32), tl.load(kinds + segment)
    own_facts, body = facts + segment.to(tl.int64) * _FACTS, tl.load(at + segment) + _HEADER
    first = first_group.to(tl.int32) * _GROUP
    end = tl.minimum(first + per_chunk * _GROUP, n)
    base_group, stream = tl.load(groups + segment), tl.load(streams + segment)
    if kind == _RANS:
        if first == 0:
            own_header = headers + segment.to(tl.int64) * _RANS_HEADER
            header.put_header(payload, body, n, own_facts, own_header)
        has_words = tl.load(own_facts + header.LOG) > 0
        group = first // _GROUP
        while first < end:
            num_escapes = tl.load(escapes + base_group + group)
            rest.put_group(
                payload, payload16, own_facts, indices + base_group * _GROUP, group, n, num_escapes,
                tl.load(escape_ranks + base_group + group),
            )  # fmt: skip
            if has_words:
                rest.put_words(
                    payload16, own_facts, group, n, states + stream * LANES,
                    coded + base_group * _GROUP, word_places + stream, num_words + stream,
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
