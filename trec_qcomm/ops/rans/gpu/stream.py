"""Coder of one stream in Triton: its states, and the 16-bit words that they emit.

A lane is a state, and all lanes take a step at the same time. The words of a step are in the order
of the lanes.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.rans.gpu import header
from trec_qcomm.ops.rans.gpu.arithmetic import (
    GROUP,
    GROUPS_PER_STREAM,
    LANES,
    LOWER,
    STREAM,
    bit_count,
    end_of_stream,
    num_lanes,
    votes,
)


@triton.jit
def load32(data16, at, live):
    """Load the int32 whose halves, int16, begin at data16 + at; 0 where not live."""
    low = tl.load(data16 + at, mask=live, other=0).to(tl.int32) & 0xFFFF
    return low | (tl.load(data16 + at + 1, mask=live, other=0).to(tl.int32) << 16)


@triton.jit
def store32(data16, at, value, live):
    """Store an int32 as two int16 from data16 + at on, where live."""
    tl.store(data16 + at, value.to(tl.int16), mask=live)
    tl.store(data16 + at + 1, (value >> 16).to(tl.int16), mask=live)


@triton.jit
def pop_stream(
    payload16, states_at, words_at, num_words, entries, slots, log, lanes, num_classes, num_values,
    symbols, group_escapes,
):  # fmt: skip
    """Decode the symbols of a stream.

    Args:    states_at, words_at: places in payload16, int16.  num_words: number of words.
             entries, slots: pointers to a decoder's table, see coding_tables.py.
             lanes: number of states K.  num_values: number of indices.
             symbols: pointer, int16, to write [num_values] symbols.
             group_escapes: pointer, int32, to write the number of escape symbols of each group.
    Returns: (whether the stream is valid, its number of escape symbols).
    """
    lane = tl.arange(0, LANES)
    below = (1 << lane.to(tl.uint32)) - 1
    x = load32(payload16, states_at + 2 * lane, lane < lanes)
    # States of 2^31 or more are below 0 as int32.
    valid = tl.min(((x >= LOWER) | (lane >= lanes)).to(tl.int32), 0) > 0
    x = tl.where(x >= LOWER, x, LOWER)
    words, num_words = payload16 + words_at, tl.minimum(num_words, 1 << 30).to(tl.int32)
    used, first, num_escapes = num_words * 0, num_values * 0, num_values * 0
    while valid & (first < num_values):
        count, end = tl.zeros_like(lane), tl.minimum(first + GROUP, num_values)
        i = first + lane
        while first < end:
            live = (lane < lanes) & (i < end)
            slot = x & ((1 << log) - 1)
            symbol = tl.load(slots + slot, mask=live, other=0)
            entry = tl.load(entries + symbol, mask=live, other=0)
            y = (entry & 0xFFFF) * (x >> log) + slot - (entry >> 16)
            short = live & (y < LOWER)
            voted = votes(short)
            at = used + bit_count(voted & below)
            word = tl.load(words + at, mask=short & (at < num_words), other=0)
            y = tl.where(short, (y << 16) | (word.to(tl.int32) & 0xFFFF), y)
            x = tl.where(live, y, x)
            used += bit_count(voted)
            tl.store(symbols + i, symbol, mask=live)
            count += (live & (symbol == num_classes)).to(tl.int32)
            i += lanes
            first += lanes
        first = end
        tl.store(group_escapes, tl.sum(count, 0))
        num_escapes += tl.sum(count, 0)
        group_escapes += 1
    ended = tl.min(((x == LOWER) | (lane >= lanes)).to(tl.int32), 0) > 0
    return valid & ended & (used == num_words), num_escapes


@triton.jit
def _symbol_of(q, base, shift, num_classes):
    """Return the symbols of indices: their class, or num_classes (the escape) outside of all."""
    place = (q - base).to(tl.uint32, bitcast=True) >> shift.to(tl.uint32)
    return tl.minimum(place, num_classes.to(tl.uint32)).to(tl.int32)


@triton.jit
def push_stream(q, num_values, base, shift, num_classes, log, lanes, entries, words, states):
    """Encode the indices of a stream. Return its number of words.

    Indices are loaded four steps before they are coded, entries one step.

    Args: q: pointer to its num_values indices.  lanes: number of states K.
          entries: pointer to an encoder's table, see coding_tables.py.
          words: pointer to [num_values] int16, to whose end the words are written.
          states: pointer to write [K] int32.
    """
    lane = tl.arange(0, LANES)
    is_state, lane_shift = lane < lanes, lane.to(tl.uint32)
    first, free = (num_values - 1) // lanes * lanes, num_values
    i = first + lane
    x = tl.full((LANES,), LOWER, tl.int64)
    this = tl.load(q + i, mask=is_state & (i < num_values), other=0)
    entry = tl.load(entries + _symbol_of(this, base, shift, num_classes))
    next1 = tl.load(q + (i - lanes), mask=is_state & (i >= lanes), other=0)
    next2 = tl.load(q + (i - 2 * lanes), mask=is_state & (i >= 2 * lanes), other=0)
    next3 = tl.load(q + (i - 3 * lanes), mask=is_state & (i >= 3 * lanes), other=0)
    while first >= 0:
        live = is_state & (i < num_values)
        ahead = tl.load(q + (i - 4 * lanes), mask=is_state & (i >= 4 * lanes), other=0)
        entry_ahead = tl.load(entries + _symbol_of(next1, base, shift, num_classes))
        f = (entry >> 45) & 0x1FFF
        leaves = live & (x >= (f << (31 - log)))
        voted = votes(leaves)
        place = free - bit_count(voted >> lane_shift)  # the lanes above come first
        tl.store(words + place, x.to(tl.int16), mask=leaves)
        y = tl.where(leaves, x >> 16, x)
        quotient = (y * (entry & 0xFFFFFFFF)) >> (31 + (entry >> 58))
        y += ((entry >> 32) & 0x1FFF) + quotient * ((1 << log) - f)
        x = tl.where(live, y, x)
        free -= bit_count(voted)
        entry, next1, next2, next3 = entry_ahead, next2, next3, ahead
        i -= lanes
        first -= lanes
    tl.store(states + lane, x.to(tl.int32), mask=is_state)
    return num_values - free


@triton.jit
def put_stream(payload16, fields, group, num_values, states, words, word_places, num_words):
    """Write a group's part of its stream's words. The first also writes states and word count.

    Args: states, word_places, num_words: pointers to the segment's first stream in what
              `push_stream` wrote.
          words: pointer to what `push_stream` wrote for the segment's first index.
    """
    last = tl.maximum(num_values // STREAM - 1, 0)
    stream = tl.minimum(group // GROUPS_PER_STREAM, last)
    count = tl.load(num_words + stream)
    k = (group - stream * GROUPS_PER_STREAM) * GROUP + tl.arange(0, GROUP)
    word = tl.load(words + (end_of_stream(stream, num_values) - count + k), mask=k < count, other=0)
    tl.store(payload16 + tl.load(word_places + stream) + k, word, mask=k < count)
    if group == stream * GROUPS_PER_STREAM:
        _, states_at = header.escapes_and_states_at(fields, num_values)
        lane, lanes = tl.arange(0, LANES), num_lanes(num_values)
        state = tl.load(states + stream * LANES + lane)
        store32(payload16, states_at + 2 * (stream * lanes + lane), state, lane < lanes)
        counts_at = states_at + 2 * lanes * (last + 1)
        store32(payload16, counts_at + 2 * stream, count, stream < last)
