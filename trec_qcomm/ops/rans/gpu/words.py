"""The states of one stream and the 16-bit words they give off, in Triton: a lane is a state.

All lanes do a step at the same time. The words of a step are in the order of the lanes.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.rans.gpu.numbers import GROUP, LANES, LOWER, bit_count, votes


@triton.jit
def load32(data16, at, live):
    """The int32 whose halves, int16, begin at data16 + at; 0 where not live."""
    low = tl.load(data16 + at, mask=live, other=0).to(tl.int32) & 0xFFFF
    return low | (tl.load(data16 + at + 1, mask=live, other=0).to(tl.int32) << 16)


@triton.jit
def store32(data16, at, value, live):
    """The inverse."""
    tl.store(data16 + at, value.to(tl.int16), mask=live)
    tl.store(data16 + at + 1, (value >> 16).to(tl.int16), mask=live)


@triton.jit
def pop_stream(
    payload16, states_at, words_at, num_words, entries, slots, log, lanes, num_classes, num_values,
    symbols, escapes,
):  # fmt: skip
    """Write symbols, int16, of the num_values indices of a stream, and how many are escapes: of
    each group to escapes, int32. Returns whether the stream is valid, and its number of escapes.

    entries, slots: see table.py.  states_at, words_at: in payload16, int16.  lanes: K.
    """
    lane = tl.arange(0, LANES)
    below = (1 << lane.to(tl.uint32)) - 1
    x = load32(payload16, states_at + 2 * lane, lane < lanes)
    valid = tl.min(((x >= LOWER) | (lane >= lanes)).to(tl.int32), 0) > 0  # < 0 is 2^31 or more
    x = tl.where(x >= LOWER, x, LOWER)
    words, num_words = payload16 + words_at, tl.minimum(num_words, 1 << 30).to(tl.int32)
    used, first, total = num_words * 0, num_values * 0, num_values * 0
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
        tl.store(escapes, tl.sum(count, 0))
        total += tl.sum(count, 0)
        escapes += 1
    ended = tl.min(((x == LOWER) | (lane >= lanes)).to(tl.int32), 0) > 0
    return valid & ended & (used == num_words), total


@triton.jit
def _symbol(q, base, shift, size):
    place = (q - base).to(tl.uint32, bitcast=True) >> shift.to(tl.uint32)
    return tl.minimum(place, size.to(tl.uint32)).to(tl.int32)


@triton.jit
def push_stream(q, num_values, base, shift, size, log, lanes, entries, words, states):
    """Code num_values indices of a stream, from pointer q on. Writes the words to the end of words
    [num_values], int16, and states [K], int32. Returns the number of words.

    entries: see table.py. Indices are loaded four steps before they are coded, entries one.
    """
    lane = tl.arange(0, LANES)
    is_state, voted_from = lane < lanes, lane.to(tl.uint32)
    first, free = (num_values - 1) // lanes * lanes, num_values
    i = first + lane
    x = tl.full((LANES,), LOWER, tl.int64)
    this = tl.load(q + i, mask=is_state & (i < num_values), other=0)
    entry = tl.load(entries + _symbol(this, base, shift, size))
    next1 = tl.load(q + (i - lanes), mask=is_state & (i >= lanes), other=0)
    next2 = tl.load(q + (i - 2 * lanes), mask=is_state & (i >= 2 * lanes), other=0)
    next3 = tl.load(q + (i - 3 * lanes), mask=is_state & (i >= 3 * lanes), other=0)
    while first >= 0:
        live = is_state & (i < num_values)
        ahead = tl.load(q + (i - 4 * lanes), mask=is_state & (i >= 4 * lanes), other=0)
        entry_ahead = tl.load(entries + _symbol(next1, base, shift, size))
        f = (entry >> 45) & 0x1FFF
        leaves = live & (x >= (f << (31 - log)))
        voted = votes(leaves)
        place = free - bit_count(voted >> voted_from)  # lanes above have left before
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
