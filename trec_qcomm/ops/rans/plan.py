"""How a segment is coded: its classes, their frequencies, and what that costs. In numba.

N indices, A classes of 2^shift neighbouring indices.
"""

# mypy: ignore-errors
import numpy as np
from numba import njit

MAX_SHIFT, MAX_LOG = 20, 12
SAMPLES = 1024


@njit(forceinline=True)
def bit_length(n):
    """n.bit_length() of 0 <= n < 2^53."""
    return max(0, (np.float64(n).view(np.int64) >> 52) - 1022)


@njit(forceinline=True)
def _log2(n):
    """log2(n) * 2^16 for n >= 1, at most 0.9 % of one bit off."""
    b = bit_length(n) - 1
    f = ((n << 16) >> b) - 65536
    return (b << 16) + f + ((((f * (65536 - f)) >> 16) * 22544) >> 16)


@njit(forceinline=True)
def lanes_of(num_values):
    """States of a stream that take turns: see reference.py."""
    length = bit_length(num_values)
    return 1 << min(5, max(min(2, max(0, (length - 7) // 2)), length - 12))


@njit(forceinline=True)
def num_streams(num_values):
    """Of 2^16 indices each; the last one has what remains, too."""
    return max(1, num_values >> 16)


@njit(forceinline=True)
def table_log(num_values, num_symbols):
    """log2 of the slots: enough for every symbol, and filled faster than the indices are read."""
    return max(bit_length(num_symbols) + 1, min(MAX_LOG, bit_length(num_values) // 2 + 4))


@njit(forceinline=True)
def _most_classes(num_values):
    return 1 << min(8, max(4, bit_length(num_values) - 3))


@njit(forceinline=True)
def coarse(count):
    """The count to 4 significant bits."""
    drop = max(0, bit_length(count) - 4)
    return (count + ((1 << drop) >> 1)) >> drop << drop


@njit(nogil=True, cache=True)
def table_nbits(counts):
    """Size of the coded weights of `counts`."""
    nbits, before = 0, 0
    for count in counts:
        length = bit_length(coarse(count))
        delta = length - before
        nbits += 2 * bit_length((delta << 1 ^ delta >> 63) + 1) - 1 + min(3, max(0, length - 1))
        before = length
    return nbits


@njit(nogil=True, cache=True)
def _cost(counts, shift, num_values, num_escapes):
    """Bits * 2^16 of the table, the symbols and the low bits."""
    cost = (num_values * shift + table_nbits(counts)) << 16
    if counts.size + (num_escapes > 0) == 1:
        return cost
    cost += num_values * _log2(num_values)
    for count in counts:
        if count:
            cost -= count * _log2(count)
    if num_escapes:
        cost -= num_escapes * _log2(num_escapes)
    return cost


@njit(nogil=True, cache=True)
def _window(q, low, high):
    """(base, shift) of the classes to begin with."""
    shift, most = 0, _most_classes(q.size)
    while (high - low) >> shift >= most:
        shift += 1
    if shift == 0:
        return low, shift
    picks = np.empty(15, np.int64)
    for k in range(15):
        picks[k] = q[(2 * k + 1) * q.size // 30]
    picks.sort()
    center = picks[7]
    lengths = np.zeros(26, np.int64)
    for i in range(0, q.size, max(1, q.size // SAMPLES)):
        lengths[bit_length(abs(q[i] - center))] += 1
    base, best = low, np.int64(0)
    for b in range(shift):
        best += lengths[b] * (shift - b)
    for fewer in range(shift - 1, -1, -1):
        cost, half = np.int64(0), (most << fewer) // 2
        for b in range(26):
            cost += lengths[b] * (40 if b >= bit_length(half) else max(fewer - b, 0))
        if cost < best:
            base, shift, best = center - half, fewer, cost
    return base, shift


@njit(nogil=True, cache=True)
def _count(q, base, shift, counts):
    """counts: [num classes + 1]; the last is for what lies beyond them. Four histograms, as
    neighbours are often equal and an increment must not wait for the one before."""
    last = counts.size - 1
    parts = np.zeros(4 * counts.size, np.uint32)
    base, shift, most = np.int32(base), np.uint32(shift), np.uint32(last)
    for i in range(q.size):
        u = min(np.uint32(np.uint32(q[i] - base) >> shift), most)
        parts[np.uint64((i & 3) * counts.size + u)] += np.uint32(1)
    for s in range(counts.size):
        counts[s] = 0
        for k in range(s, parts.size, counts.size):
            counts[s] += parts[k]


@njit(nogil=True, cache=True)
def plan(q, counts):
    """(base, shift, number of classes A, number of escapes, cost); counts: [257], A are set.

    Starts with the finest classes and halves their number as long as that saves 0.4 %.
    """
    low, high = q[0], q[0]
    for i in range(q.size):
        low, high = min(low, q[i]), max(high, q[i])
    base, shift = _window(q, np.int64(low), np.int64(high))
    size = _most_classes(q.size)
    _count(q, base, shift, counts[: size + 1])
    first, escapes = 0, counts[size]
    while counts[size - 1] == 0:
        size -= 1
    while counts[first] == 0 and escapes == 0:  # else no class may reach beyond the first ones
        first += 1
    base, size = base + (first << shift), size - first
    counts[:size] = counts[first : first + size].copy()
    best = _cost(counts[:size], shift, q.size, escapes)
    folded = np.zeros(128, np.int64)
    while size > 1 and shift < MAX_SHIFT:
        half = (size + 1) // 2
        counts[size] = 0
        for s in range(half):
            folded[s] = counts[2 * s] + counts[2 * s + 1]
        cost = _cost(folded[:half], shift + 1, q.size, escapes)
        if cost > best - (best >> 8):
            break
        counts[:half] = folded[:half]
        shift, size, best = shift + 1, half, cost
    return base, shift, size, escapes, best


@njit(nogil=True, cache=True)
def frequencies_of(weights, log):
    """[n] weights -> frequencies in place, of sum 2^log, at least 1 where a weight is not 0."""
    total = weights.sum()
    for s in range(weights.size):
        if weights[s]:
            weights[s] = max(1, ((weights[s] << log) + total // 2) // total)
    excess = weights.sum() - (1 << log)
    while excess != 0:
        s = weights.argmax()
        change = min(excess, max(1, weights[s] >> 4))
        weights[s] -= change
        excess -= change
