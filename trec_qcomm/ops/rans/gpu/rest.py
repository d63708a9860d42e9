"""Low bits and escaped indices in Triton, a group of 1024 indices at a time."""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.rans.gpu import header
from trec_qcomm.ops.rans.gpu.numbers import GROUP, LANES, STREAM, end_of_stream, num_lanes
from trec_qcomm.ops.rans.gpu.words import load32, store32

_GROUPS_A_STREAM = tl.constexpr(STREAM.value // GROUP.value)
_MANY = tl.constexpr(256)


@triton.jit
def _sum(numbers, first, end):
    """Of numbers[first:end], int32."""
    total = tl.zeros((_MANY,), tl.int32)
    while first < end:
        i = first + tl.arange(0, _MANY)
        total += tl.load(numbers + i, mask=i < end, other=0)
        first += _MANY
    return tl.sum(total, 0)


@triton.jit
def escapes_before(group, num_values, of_groups, of_streams):
    """How many of a segment's escapes are in groups before this one. of_groups, of_streams:
    pointers to the segment's numbers of them."""
    stream = tl.minimum(group // _GROUPS_A_STREAM, tl.maximum(num_values // STREAM - 1, 0))
    before = _sum(of_streams, stream * 0, stream)
    return before + _sum(of_groups, stream * _GROUPS_A_STREAM, group)


@triton.jit
def num_escapes(num_values, of_streams):
    """Of a segment."""
    num_streams = tl.maximum(num_values // STREAM, 1)
    return _sum(of_streams, num_streams * 0, num_streams)


@triton.jit
def get_group(payload, payload16, facts, symbols, first, num_values, rank):
    """(indices [1024] int32 from `first` on, number of escapes before the next group).
    symbols: pointer to the first one's.  rank: number of escapes before."""
    base, shift = tl.load(facts + header.BASE), tl.load(facts + header.SHIFT).to(tl.int32)
    size, log = tl.load(facts + header.SIZE).to(tl.int32), tl.load(facts + header.LOG)
    k = tl.arange(0, GROUP)
    live = k < num_values - first
    q = tl.zeros_like(k) + base.to(tl.int32)
    if shift > 0:
        plane = payload + tl.load(facts + header.LOW_AT)
        stride, done = (num_values + 7) // 8, 0
        t = (first + k) // stride
        bit = ((first + k - t * stride) << 3) | t  # of a plane, in half the registers
        while done < shift:
            byte = tl.load(plane + (bit >> 3), mask=live, other=0).to(tl.int32)
            q += ((byte >> (bit & 7)) & 1) << done
            plane += stride
            done += 1
    symbol = tl.load(symbols + k, mask=live & (log > 0), other=0).to(tl.int32)
    q += symbol << shift
    num_all = tl.load(facts + header.ESCAPES).to(tl.int32)
    if num_all > 0:
        is_escape = (live & (symbol == size)).to(tl.int32)
        at = rank + tl.cumsum(is_escape, 0) - 1
        escapes_at, _ = header.places(facts, num_values)
        live = (is_escape > 0) & (at < num_all)
        escaped = load32(payload16 + (escapes_at + 2 * rank), 2 * (at - rank), live)
        q = tl.where(is_escape > 0, escaped, q)
        rank += tl.sum(is_escape, 0)
    return q, rank


@triton.jit
def _put_low_bits(payload, facts, q, group, num_values, shift):
    """128 bytes of each plane; q: pointer to the segment's first index."""
    base, stride = tl.load(facts + header.BASE).to(tl.int32), (num_values + 7) // 8
    t = tl.arange(0, 8)[:, None]
    j = group * (GROUP // 8) + tl.arange(0, GROUP // 8)
    i = t * stride + j[None, :]
    v = tl.load(q + i, mask=(i < num_values) & (j < stride)[None, :], other=base) - base
    plane, done = payload + tl.load(facts + header.LOW_AT) + j, shift * 0
    while done < shift:
        byte = tl.sum(((v >> done) & 1) << t, 0)
        tl.store(plane, byte.to(tl.uint8), mask=j < stride)
        plane += stride
        done += 1


@triton.jit
def put_group(payload, payload16, facts, q, group, num_values, num_escapes, rank):
    """Write a group's share of the low bits, and its num_escapes escaped indices, of which there
    are `rank` before. q: pointer to the segment's first index."""
    shift = tl.load(facts + header.SHIFT).to(tl.int32)
    if shift > 0:
        _put_low_bits(payload, facts, q, group, num_values, shift)
    if num_escapes > 0:
        i = group * GROUP + tl.arange(0, GROUP)
        base, size = tl.load(facts + header.BASE).to(tl.int32), tl.load(facts + header.SIZE)
        v = tl.load(q + i, mask=i < num_values, other=base)
        place = (v - base).to(tl.uint32, bitcast=True) >> shift.to(tl.uint32)
        is_escape = place >= size.to(tl.uint32)
        at = rank + tl.cumsum(is_escape.to(tl.int32), 0) - 1
        escapes_at, _ = header.places(facts, num_values)
        store32(payload16, escapes_at + 2 * at, v, is_escape)


@triton.jit
def put_words(payload16, facts, group, num_values, states, words, word_places, num_words):
    """Write a group's share of its stream's words, the first group its states and the number of
    its words. states, word_places, num_words: pointers to those of the segment's first stream, as
    push_stream writes them.  words: pointer to what push_stream wrote for its first index."""
    last = tl.maximum(num_values // STREAM - 1, 0)
    stream = tl.minimum(group // _GROUPS_A_STREAM, last)
    count = tl.load(num_words + stream)
    k = (group - stream * _GROUPS_A_STREAM) * GROUP + tl.arange(0, GROUP)
    word = tl.load(words + (end_of_stream(stream, num_values) - count + k), mask=k < count, other=0)
    tl.store(payload16 + tl.load(word_places + stream) + k, word, mask=k < count)
    if group == stream * _GROUPS_A_STREAM:
        _, states_at = header.places(facts, num_values)
        lane, lanes = tl.arange(0, LANES), num_lanes(num_values)
        state = tl.load(states + stream * LANES + lane)
        store32(payload16, states_at + 2 * (stream * lanes + lane), state, lane < lanes)
        counts_at = states_at + 2 * lanes * (last + 1)
        store32(payload16, counts_at + 2 * stream, count, stream < last)
