"""The coder of one stream in numba: its rANS states and the 16-bit words they give off.

Four states are coded at a time, in registers where a stream has no more, so that their latencies
overlap. No loop branches on the data. M = 2^log slots; a state lies in 2^15..2^31 - 1.
"""

# mypy: ignore-errors
import numpy as np

from trec_qcomm.kernels import inner
from trec_qcomm.ops.rans.classes import bit_length

LOWER = np.uint64(1 << 15)
ESCAPED = np.int64(-0x80000000)  # decoded value of the escape symbol, before its low bits

_ONE, _TWO, _THREE, _SIXTEEN = (np.uint64(n) for n in (1, 2, 3, 16))
_LOW16 = np.uint64(0xFFFF)
_LOW32, _THIRTY_TWO = np.uint64(0xFFFFFFFF), np.uint64(32)


@inner
def fill_encoder_table(frequencies, log, inverses, updates):
    """Fill in what `_push` needs of each symbol.

    x // f == x * factor >> places for all x < 2^31, where f is the symbol's frequency.

    Args: inverses: uint64 of each symbol: the factor, and the places << 32.
          updates: uint64 of each symbol: the state from which on a word must leave, the symbol's
                   first slot << 32, and (2^log - f) << 48.
    """
    start = 0
    for s in range(frequencies.size):
        f = frequencies[s]
        if f == 0:
            continue
        places = 31 + bit_length(f - 1)
        inverses[s] = np.uint64((((1 << places) + f - 1) // f) | places << 32)
        updates[s] = np.uint64(f << (31 - log) | start << 32 | ((1 << log) - f) << 48)
        start += f


@inner(forceinline=True)
def _next_state(x, s, inverses, updates):
    """Return the state after symbol s enters state x."""
    a, b = inverses[s], updates[s]
    quotient = (x * (a & _LOW32)) >> (a >> _THIRTY_TWO)
    return x + ((b >> _THIRTY_TWO) & _LOW16) + quotient * (b >> np.uint64(48))


@inner(forceinline=True)
def _push(x, s, inverses, updates, words, free):
    """Encode one symbol without a branch.

    A word is always written; it counts only where it had to leave the state.

    Returns: (the state, the place of the first word used).
    """
    words[free - _ONE] = np.uint16(x & _LOW16)
    leaves = np.uint64(x >= (updates[s] & _LOW32))
    return _next_state(x >> (leaves * _SIXTEEN), s, inverses, updates), free - leaves


@inner(forceinline=True)
def _symbol(index, base, shift, last):
    """Return the symbol of an index: its class, or `last`, the escape symbol, outside of all."""
    return np.uint64(min(np.uint32(index - base) >> shift, last))


@inner
def _push_checked(q, begin, end, base, shift, last, inverses, updates, words, free, states):
    """Encode indices end - 1 down to begin, testing for room.

    Returns: the place of the first word used, or -1: the words do not fit.
    """
    for i in range(end - 1, begin - 1, -1):
        s = _symbol(q[i], base, shift, last)
        lane = i & (states.size - 1)
        x = states[lane]
        if x >= (updates[s] & _LOW32):
            if free == 0:
                return -1
            free -= 1
            words[free] = np.uint16(x & _LOW16)
            x >>= _SIXTEEN
        states[lane] = _next_state(x, s, inverses, updates)
    return free


@inner
def push_stream(q, base, shift, last, inverses, updates, words, states):
    """Encode all indices q of a stream, the last one first, to the end of words.

    Args:    last: the last symbol, which is the escape where there is one.
             inverses, updates: tables of `fill_encoder_table`.
             states: [K] uint64, all LOWER; becomes the states to send.
    Returns: the place of the first word used, or -1: the words do not fit.
    """
    base, shift, last = np.int32(base), np.uint32(shift), np.uint32(last)
    i = q.size // 4 * 4 if states.size >= 4 else 0
    first = _push_checked(
        q, i, q.size, base, shift, last, inverses, updates, words, words.size, states
    )
    if i == 0 or first < 0:
        return first
    free = np.uint64(first)
    if states.size == 4:
        i, first = _push_four_states(
            q, i, base, shift, last, inverses, updates, words, free, states
        )
    else:
        i, first = _push_many_states(
            q, i, base, shift, last, inverses, updates, words, free, states
        )
    return _push_checked(q, 0, i, base, shift, last, inverses, updates, words, first, states)


@inner
def _push_four_states(q, i, base, shift, last, inverses, updates, words, free, states):
    """Encode indices i - 1 down to 0 with 4 states, while there is room for four words.

    Returns: (the number of indices left, the place of the first word used).
    """
    x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
    while i > 0 and free >= np.uint64(4):
        i -= 4
        g = q[i : i + 4]
        x3, free = _push(x3, _symbol(g[3], base, shift, last), inverses, updates, words, free)
        x2, free = _push(x2, _symbol(g[2], base, shift, last), inverses, updates, words, free)
        x1, free = _push(x1, _symbol(g[1], base, shift, last), inverses, updates, words, free)
        x0, free = _push(x0, _symbol(g[0], base, shift, last), inverses, updates, words, free)
    states[0], states[1], states[2], states[3] = x0, x1, x2, x3
    return i, np.int64(free)


@inner
def _push_many_states(q, i, base, shift, last, inverses, updates, words, free, states):
    """Do what `_push_four_states` does with 8 states or more."""
    while i > 0 and free >= np.uint64(4):
        i -= 4
        k = np.uint64(i & (states.size - 4))
        g = q[i : i + 4]
        x0, x1, x2, x3 = states[k], states[k + _ONE], states[k + _TWO], states[k + _THREE]
        x3, free = _push(x3, _symbol(g[3], base, shift, last), inverses, updates, words, free)
        x2, free = _push(x2, _symbol(g[2], base, shift, last), inverses, updates, words, free)
        x1, free = _push(x1, _symbol(g[1], base, shift, last), inverses, updates, words, free)
        x0, free = _push(x0, _symbol(g[0], base, shift, last), inverses, updates, words, free)
        states[k], states[k + _ONE], states[k + _TWO], states[k + _THREE] = x0, x1, x2, x3
    return i, np.int64(free)


@inner
def fill_decoder_table(frequencies, log, base, shift, num_classes, table):
    """Fill table [2^log] uint64, an entry for each slot.

    From the highest bits: 32 of the decoded value, 16 of the frequency, 16 of the number of the
    slot within its symbol.
    """
    slot = 0
    for s in range(frequencies.size):
        f = frequencies[s]
        value = base + (s << shift) if s < num_classes else ESCAPED
        entry = np.uint64(value << 32 | f << 16)
        for k in range(f):
            table[slot + k] = entry + np.uint64(k)
        slot += f


@inner(forceinline=True)
def _pop(x, table, mask, log, words, at):
    """Decode one value without a branch. Return (the state, the next word, the value)."""
    entry = table[x & mask]
    x = ((entry >> _SIXTEEN) & _LOW16) * (x >> log) + (entry & _LOW16)
    full = (x << _SIXTEEN) | np.uint64(words[at])
    short = x < LOWER
    return (full if short else x), at + np.uint64(short), np.int32(entry >> _THIRTY_TWO)


@inner
def pop_stream(words, table, log, states, q):
    """Decode words into q with the states of a stream.

    Returns: True if all words were used and every state ended at LOWER, where the encoder began.
    """
    mask, log = np.uint64(table.size - 1), np.uint64(log)
    lanes, at = states.size, np.uint64(0)
    i, num_words = 0, np.uint64(words.size)
    if lanes > 4:
        while i + 4 <= q.size and at + np.uint64(4) <= num_words:
            lane = i & (lanes - 4)
            g, x = q[i : i + 4], states[lane : lane + 4]
            x[0], at, g[0] = _pop(x[0], table, mask, log, words, at)
            x[1], at, g[1] = _pop(x[1], table, mask, log, words, at)
            x[2], at, g[2] = _pop(x[2], table, mask, log, words, at)
            x[3], at, g[3] = _pop(x[3], table, mask, log, words, at)
            i += 4
    elif lanes == 4:
        x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
        while i + 4 <= q.size and at + np.uint64(4) <= num_words:
            g = q[i : i + 4]
            x0, at, g[0] = _pop(x0, table, mask, log, words, at)
            x1, at, g[1] = _pop(x1, table, mask, log, words, at)
            x2, at, g[2] = _pop(x2, table, mask, log, words, at)
            x3, at, g[3] = _pop(x3, table, mask, log, words, at)
            i += 4
        states[0], states[1], states[2], states[3] = x0, x1, x2, x3
    while i < q.size:
        lane = i & (lanes - 1)
        entry = table[states[lane] & mask]
        x = ((entry >> _SIXTEEN) & _LOW16) * (states[lane] >> log) + (entry & _LOW16)
        if x < LOWER:
            if at >= num_words:
                return False
            x = (x << _SIXTEEN) | np.uint64(words[at])
            at += _ONE
        states[lane] = x
        q[i] = np.int32(entry >> _THIRTY_TWO)
        i += 1
    for k in range(lanes):
        if states[k] != LOWER:
            return False
    return at == num_words
