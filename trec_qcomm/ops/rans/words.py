"""The rANS states of one stream and the 16-bit words they give off. In numba.

Four states at a time, in registers where there are no more: their latencies overlap, and no loop
branches on the data. M = 2^log slots; a state lies in 2^15..2^31 - 1.
"""

# mypy: ignore-errors
import numpy as np
from numba import njit

from trec_qcomm.ops.rans.plan import bit_length

LOWER = np.uint64(1 << 15)
ESCAPED = np.int64(-0x80000000)  # what the slots of the escape symbol decode to

_ONE, _TWO, _THREE, _SIXTEEN = (np.uint64(n) for n in (1, 2, 3, 16))
_LOW16 = np.uint64(0xFFFF)
_LOW32, _THIRTY_TWO = np.uint64(0xFFFFFFFF), np.uint64(32)


@njit(nogil=True, cache=True)
def dividers(frequencies, log, divide, step):
    """What `_push` needs of each symbol. x // f == x * divide >> places for all x < 2^31.

    divide: low half the factor, high half the places.  step: the state from which a word must
    leave, the symbol's start << 32, and 2^log - f << 48.
    """
    start = 0
    for s in range(frequencies.size):
        f = frequencies[s]
        if f == 0:
            continue
        places = 31 + bit_length(f - 1)
        divide[s] = np.uint64((((1 << places) + f - 1) // f) | places << 32)
        step[s] = np.uint64(f << (31 - log) | start << 32 | ((1 << log) - f) << 48)
        start += f


@njit(forceinline=True)
def _enter(x, s, divide, step):
    a, b = divide[s], step[s]
    quotient = (x * (a & _LOW32)) >> (a >> _THIRTY_TWO)
    return x + ((b >> _THIRTY_TWO) & _LOW16) + quotient * (b >> np.uint64(48))


@njit(forceinline=True)
def _push(x, s, divide, step, words, free):
    """One step without a branch: a word is always written, and counts where it had to leave."""
    words[free - _ONE] = np.uint16(x & _LOW16)
    leaves = np.uint64(x >= (step[s] & _LOW32))
    return _enter(x >> (leaves * _SIXTEEN), s, divide, step), free - leaves


@njit(forceinline=True)
def _symbol(index, base, shift, last):
    return np.uint64(min(np.uint32(index - base) >> shift, last))


@njit(nogil=True, cache=True)
def _push_carefully(q, begin, end, base, shift, last, divide, step, words, free, states):
    """Push indices end - 1 down to begin. Returns the first word used, or -1: they do not fit."""
    for i in range(end - 1, begin - 1, -1):
        s = _symbol(q[i], base, shift, last)
        lane = i & (states.size - 1)
        x = states[lane]
        if x >= (step[s] & _LOW32):
            if free == 0:
                return -1
            free -= 1
            words[free] = np.uint16(x & _LOW16)
            x >>= _SIXTEEN
        states[lane] = _enter(x, s, divide, step)
    return free


@njit(nogil=True, cache=True)
def encode_words(q, base, shift, last, divide, step, words, states):
    """Push all indices, the last one first. Returns the first word used, or -1: they do not fit."""
    base, shift, last = np.int32(base), np.uint32(shift), np.uint32(last)
    i = q.size // 4 * 4 if states.size >= 4 else 0
    first = _push_carefully(
        q, i, q.size, base, shift, last, divide, step, words, words.size, states
    )
    if i == 0 or first < 0:
        return first
    free = np.uint64(first)
    if states.size == 4:
        i, first = _push_four(q, i, base, shift, last, divide, step, words, free, states)
    else:
        i, first = _push_fours(q, i, base, shift, last, divide, step, words, free, states)
    return _push_carefully(q, 0, i, base, shift, last, divide, step, words, first, states)


@njit(nogil=True, cache=True)
def _push_four(q, i, base, shift, last, divide, step, words, free, states):
    """Push indices i - 1 down to 0 while there is room for four words. Returns what is left:
    (i, the first word used)."""
    x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
    while i > 0 and free >= np.uint64(4):
        i -= 4
        g = q[i : i + 4]
        x3, free = _push(x3, _symbol(g[3], base, shift, last), divide, step, words, free)
        x2, free = _push(x2, _symbol(g[2], base, shift, last), divide, step, words, free)
        x1, free = _push(x1, _symbol(g[1], base, shift, last), divide, step, words, free)
        x0, free = _push(x0, _symbol(g[0], base, shift, last), divide, step, words, free)
    states[0], states[1], states[2], states[3] = x0, x1, x2, x3
    return i, np.int64(free)


@njit(nogil=True, cache=True)
def _push_fours(q, i, base, shift, last, divide, step, words, free, states):
    """`_push_four` of 8 states or more."""
    while i > 0 and free >= np.uint64(4):
        i -= 4
        k = np.uint64(i & (states.size - 4))
        g = q[i : i + 4]
        x0, x1, x2, x3 = states[k], states[k + _ONE], states[k + _TWO], states[k + _THREE]
        x3, free = _push(x3, _symbol(g[3], base, shift, last), divide, step, words, free)
        x2, free = _push(x2, _symbol(g[2], base, shift, last), divide, step, words, free)
        x1, free = _push(x1, _symbol(g[1], base, shift, last), divide, step, words, free)
        x0, free = _push(x0, _symbol(g[0], base, shift, last), divide, step, words, free)
        states[k], states[k + _ONE], states[k + _TWO], states[k + _THREE] = x0, x1, x2, x3
    return i, np.int64(free)


@njit(nogil=True, cache=True)
def fill_table(frequencies, log, base, shift, num_classes, table):
    """Slot -> what it decodes to << 32, frequency << 16, number of the slot in its symbol."""
    slot = 0
    for s in range(frequencies.size):
        f = frequencies[s]
        value = base + (s << shift) if s < num_classes else ESCAPED
        entry = np.uint64(value << 32 | f << 16)
        for k in range(f):
            table[slot + k] = entry + np.uint64(k)
        slot += f


@njit(forceinline=True)
def _pop(x, table, mask, log, words, at):
    entry = table[x & mask]
    x = ((entry >> _SIXTEEN) & _LOW16) * (x >> log) + (entry & _LOW16)
    full = (x << _SIXTEEN) | np.uint64(words[at])
    short = x < LOWER
    return (full if short else x), at + np.uint64(short), np.int32(entry >> _THIRTY_TWO)


@njit(nogil=True, cache=True)
def decode_words(words, table, log, states, q):
    """False unless all words are used and every state ends where the encoder began."""
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
