"""Coder of one stream in numba: its rANS states, and the 16-bit words that they emit.

Four states are in registers. More states are coded four at a time, so that their latencies
overlap. One or two states, of up to 1,023 indices, take the loop that codes the rest. Only the loop
that decodes the rest branches on the data. M = 2^log slots; a state lies in 2^15..2^31 - 1.

The encoder goes through the indices backwards and writes the words in that order, so the last word
of the stream comes first.
"""

# mypy: ignore-errors
import numpy as np

from trec_qcomm.jit import inner

LOWER = np.uint64(1 << 15)
ESCAPED = np.int64(-0x80000000)  # decoded value of the escape symbol, before its low bits

_ZERO, _ONE, _TWO, _FOUR, _SIXTEEN = (np.uint64(n) for n in (0, 1, 2, 4, 16))


@inner
def fill_encoder_table(frequencies, log, inverses, updates):
    """Fill the tables that `_push` needs for each symbol.

    x // f == x * inverse >> (31 + log) for all states x < f * 2^(31 - log), f being the symbol's
    frequency: the inverse is too large by less than 2^-(31 + log), so the product by less than 1/f.

    Args: inverses: [257] uint64, 2^(31 + log) / f, rounded up.
          updates: [257, 4] uint16, f, the symbol's first slot, 2^log - f, and nothing.
    """
    start, one = 0, np.float64(np.int64(1) << (31 + log))
    for s in range(frequencies.size):
        f = frequencies[s]
        inverses[s] = np.uint64(np.ceil(one / max(f, 1)))  # exact: the quotient has 43 bits
        updates[s, 0], updates[s, 1], updates[s, 2] = f, start, (1 << log) - f
        start += f


@inner
def _fill_symbols(q, base, shift, last, symbols):
    """Set symbols [N] uint16: the class of each index, or `last`, the escape symbol, outside."""
    base, shift, last = np.int32(base), np.uint32(shift), np.uint32(last)
    for i in range(q.size):
        symbols[i] = np.uint16(min(np.uint32(np.uint32(q[i] - base) >> shift), last))


@inner(forceinline=True)
def _push(x, s, tables, shifts, words, used):
    """Encode one symbol without a branch.

    A word is always written; it counts only where it had to leave the state.

    Args:    shifts: 31 + log and 31 - log.
    Returns: (the state, the number of words).
    """
    inverses, updates = tables
    words[used] = np.uint16(x)
    leaves = np.uint64((x >> shifts[1]) >= np.uint64(updates[s, _ZERO]))
    x >>= leaves << _FOUR
    quotient = (x * inverses[s]) >> shifts[0]
    x += np.uint64(updates[s, _ONE]) + quotient * np.uint64(updates[s, _TWO])
    return x, used + leaves


@inner
def _push_each(symbols, begin, tables, shifts, words, used, states):
    """Encode symbols from the last one down to number `begin`, with any number of states."""
    for i in range(symbols.size - 1, begin - 1, -1):
        lane = i & (states.size - 1)
        x, used = _push(np.uint64(states[lane]), symbols[i], tables, shifts, words, used)
        states[lane] = x
    return used


@inner
def _push_four_states(symbols, tables, shifts, words, used, states):
    """Encode symbols, a multiple of four, with four states."""
    x0, x1, x2, x3 = (
        np.uint64(states[0]),
        np.uint64(states[1]),
        np.uint64(states[2]),
        np.uint64(states[3]),
    )
    for i in range(symbols.size - 4, -1, -4):
        g = symbols[i : i + 4]
        x3, used = _push(x3, g[3], tables, shifts, words, used)
        x2, used = _push(x2, g[2], tables, shifts, words, used)
        x1, used = _push(x1, g[1], tables, shifts, words, used)
        x0, used = _push(x0, g[0], tables, shifts, words, used)
    states[0], states[1], states[2], states[3] = x0, x1, x2, x3
    return used


@inner
def _push_many_states(symbols, tables, shifts, words, used, states):
    """Encode symbols, a multiple of four, with 8 states or more."""
    for i in range(symbols.size - 4, -1, -4):
        lane = i & (states.size - 4)
        g, x = symbols[i : i + 4], states[lane : lane + 4]
        x3, used = _push(np.uint64(x[3]), g[3], tables, shifts, words, used)
        x2, used = _push(np.uint64(x[2]), g[2], tables, shifts, words, used)
        x1, used = _push(np.uint64(x[1]), g[1], tables, shifts, words, used)
        x0, used = _push(np.uint64(x[0]), g[0], tables, shifts, words, used)
        x[0], x[1], x[2], x[3] = x0, x1, x2, x3
    return used


@inner
def push_stream(q, base, shift, last, tables, log, symbols, words, states):
    """Encode all indices q of a stream, the last one first.

    Args:    last: the last symbol, which is the escape if there is one.
             tables: inverses and updates of `fill_encoder_table`.
             symbols: uint16 scratch, as many as q.
             words: uint16, as many as q; the last word of the stream is first.
             states: [K] uint32, all LOWER; becomes the states to send.
    Returns: the number of words.
    """
    shifts = np.uint64(31 + log), np.uint64(31 - log)
    lanes, used = states.size, np.uint64(0)
    _fill_symbols(q, base, shift, last, symbols)
    whole = q.size & -4 if lanes >= 4 else 0
    used = _push_each(symbols[: q.size], whole, tables, shifts, words, used, states)
    symbols = symbols[:whole]
    if lanes == 4:
        used = _push_four_states(symbols, tables, shifts, words, used, states)
    elif lanes > 4:
        used = _push_many_states(symbols, tables, shifts, words, used, states)
    return np.int64(used)


@inner
def fill_decoder_table(frequencies, base, shift, num_classes, table):
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
def _pop(x, table, log, words, at):
    """Decode one value without a branch.

    Args:    table: entries as 16-bit and as 32-bit numbers, and their number less 1.
    Returns: (the state, the next word, the value).
    """
    parts, values, mask = table
    slot = x & mask
    x = np.uint64(parts[slot, _ONE]) * (x >> log) + np.uint64(parts[slot, _ZERO])
    full = (x << _SIXTEEN) | np.uint64(words[at])
    short = x < LOWER
    return (full if short else x), at + np.uint64(short), values[slot, _ONE]


@inner
def _pop_four_states(words, table, log, states, at, q):
    """Decode with four states, four values at a time, as long as there are four words.

    Returns: (the number of values, the next word).
    """
    x0, x1 = np.uint64(states[0]), np.uint64(states[1])
    x2, x3 = np.uint64(states[2]), np.uint64(states[3])
    i, enough = 0, np.uint64(max(words.size - 3, 0))
    while i + 4 <= q.size and at < enough:
        g = q[i : i + 4]
        x0, at, g[0] = _pop(x0, table, log, words, at)
        x1, at, g[1] = _pop(x1, table, log, words, at)
        x2, at, g[2] = _pop(x2, table, log, words, at)
        x3, at, g[3] = _pop(x3, table, log, words, at)
        i += 4
    states[0], states[1], states[2], states[3] = x0, x1, x2, x3
    return i, at


@inner
def _pop_many_states(words, table, log, states, at, q):
    """Do what `_pop_four_states` does, with 8 states or more."""
    i, enough = 0, np.uint64(max(words.size - 3, 0))
    while i + 4 <= q.size and at < enough:
        lane = i & (states.size - 4)
        g, x = q[i : i + 4], states[lane : lane + 4]
        x0, at, g[0] = _pop(np.uint64(x[0]), table, log, words, at)
        x1, at, g[1] = _pop(np.uint64(x[1]), table, log, words, at)
        x2, at, g[2] = _pop(np.uint64(x[2]), table, log, words, at)
        x3, at, g[3] = _pop(np.uint64(x[3]), table, log, words, at)
        x[0], x[1], x[2], x[3] = x0, x1, x2, x3
        i += 4
    return i, at


@inner
def pop_rest(words, table, log, states, i, at, q):
    """Decode values i and the following, testing for the end of the words.

    Args:    table: [2^log] uint64 of `fill_decoder_table`.
    Returns: True if all words were used and every state ended at LOWER, where the encoder began.
    """
    lanes, log = states.size, np.uint64(log)
    mask = np.uint64(table.size - 1)
    parts = table.view(np.uint16).reshape(table.size, 4)
    for k in range(i, q.size):
        lane = k & (lanes - 1)
        x = np.uint64(states[lane])
        slot = x & mask
        x = np.uint64(parts[slot, _ONE]) * (x >> log) + np.uint64(parts[slot, _ZERO])
        if x < LOWER:
            if at >= words.size:
                return False
            x = (x << _SIXTEEN) | np.uint64(words[at])
            at += 1
        states[lane] = x
        q[k] = np.int32(np.int64(table[slot]) >> 32)
    for x in states:
        if x != LOWER:
            return False
    return at == words.size


@inner
def pop_stream(words, table, log, states, q):
    """Decode words into q with the states [K] uint32 of a stream. Returns as `pop_rest` does."""
    parts = table.view(np.uint16).reshape(table.size, 4)
    values = table.view(np.int32).reshape(table.size, 2)
    views = parts, values, np.uint64(table.size - 1)
    lanes, i, at, places = states.size, 0, np.uint64(0), np.uint64(log)
    if lanes == 4:
        i, at = _pop_four_states(words, views, places, states, at, q)
    elif lanes > 4:
        i, at = _pop_many_states(words, views, places, states, at, q)
    return pop_rest(words, table, log, states, i, np.int64(at), q)
