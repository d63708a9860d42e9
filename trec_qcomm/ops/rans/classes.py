"""Classes of a segment, their frequencies and their costs, in numba. Same as reference.py.

Shapes: N indices, A classes of 2^shift neighbouring indices.
"""

# mypy: ignore-errors
import numpy as np

from trec_qcomm.jit import inner

# Without reference counts: see ops.bitpack.cpu.
_inner = inner(_nrt=False)
_inline = inner(forceinline=True, _nrt=False)

MAX_SHIFT, MAX_LOG = 20, 12
SAMPLES = 1024


@_inline
def bit_length(n):
    """Return n.bit_length() of 0 <= n < 2^53."""
    return max(0, (np.float64(n).view(np.int64) >> 52) - 1022)


@_inline
def _log2(n):
    """Return log2(n) * 2^16 for n >= 1, at most 0.9 % of one bit off."""
    b = bit_length(n) - 1
    f = ((n << 16) >> b) - 65536
    return (b << 16) + f + ((((f * (65536 - f)) >> 16) * 22544) >> 16)


@_inline
def num_lanes(num_values):
    """Return how many states of a stream take turns, as reference.py defines it."""
    length = bit_length(num_values)
    return 1 << min(5, max(min(2, max(0, (length - 7) // 2)), length - 12))


@_inline
def num_streams(num_values):
    """Return the number of streams. Each has 2^16 indices; the last one also has the rest."""
    return max(1, num_values >> 16)


@_inline
def table_log(num_values, num_symbols):
    """Return log2 of the number of slots, as reference.py defines it."""
    return max(bit_length(num_symbols) + 1, min(MAX_LOG, bit_length(num_values) // 2 + 4))


@_inline
def _num_initial_classes(num_values):
    """Return how many classes an encoder begins with."""
    return 1 << min(8, max(4, bit_length(num_values) - 3))


@_inline
def coarse(count):
    """Round the count to 4 significant bits."""
    drop = max(0, bit_length(count) - 4)
    return (count + ((1 << drop) >> 1)) >> drop << drop


@_inner
def table_nbits(counts):
    """Return the number of bits of the coded weights of `counts`."""
    nbits, before = 0, 0
    for count in counts:
        length = bit_length(coarse(count))
        delta = length - before
        nbits += 2 * bit_length((delta << 1 ^ delta >> 63) + 1) - 1 + min(3, max(0, length - 1))
        before = length
    return nbits


@_inner
def _cost(counts, shift, num_values, num_escapes):
    """Return the bits, times 2^16, of the table, the symbols and the low bits."""
    cost = (num_values * shift + table_nbits(counts)) << 16
    if counts.size + (num_escapes > 0) == 1:
        return cost
    cost += num_values * _log2(num_values) - num_escapes * _log2(max(num_escapes, 1))
    for count in counts:  # vectorized: no branch
        cost -= count * _log2(max(count, 1))
    return cost


@_inner
def _median_of(q, picks):
    """Return the median of 15 indices. Args: picks: [15] int64 scratch."""
    for k in range(15):
        index, at = q[(2 * k + 1) * q.size // 30], k
        while at > 0 and picks[at - 1] > index:
            picks[at] = picks[at - 1]
            at -= 1
        picks[at] = index
    return picks[7]


@_inner
def _initial_classes(q, low, high, scratch):
    """Return (base, shift) of the classes an encoder begins with."""
    shift, num_classes = 0, _num_initial_classes(q.size)
    while (high - low) >> shift >= num_classes:
        shift += 1
    if shift == 0:
        return low, shift
    center = _median_of(q, scratch[:15])
    lengths = scratch[:26]
    lengths[:] = 0
    for i in range(0, q.size, max(1, q.size // SAMPLES)):
        lengths[bit_length(abs(q[i] - center))] += 1
    base, best_cost = low, np.int64(0)
    for b in range(shift):
        best_cost += lengths[b] * (shift - b)
    for smaller in range(shift - 1, -1, -1):
        cost, half = np.int64(0), (num_classes << smaller) // 2
        for b in range(26):
            cost += lengths[b] * (40 if b >= bit_length(half) else max(smaller - b, 0))
        if cost < best_cost:
            base, shift, best_cost = center - half, smaller, cost
    return base, shift


@_inner
def _count_classes(q, base, shift, counts, parts):
    """Set counts [number of classes + 1]; the last one is for indices outside of all classes.

    Four histograms are kept, because neighbours are often equal and an increment must not wait
    for the one before. Args: parts: of `class_scratch`.
    """
    size, last = counts.size, np.uint32(counts.size - 1)
    parts[: 4 * size] = 0
    part0, part1 = parts[:size], parts[size : 2 * size]
    part2, part3 = parts[2 * size : 3 * size], parts[3 * size : 4 * size]
    base, shift, whole = np.int32(base), np.uint32(shift), q.size & -4
    for i in range(0, whole, 4):
        g = q[i : i + 4]
        part0[_class_of(g[0], base, shift, last)] += np.uint32(1)
        part1[_class_of(g[1], base, shift, last)] += np.uint32(1)
        part2[_class_of(g[2], base, shift, last)] += np.uint32(1)
        part3[_class_of(g[3], base, shift, last)] += np.uint32(1)
    for i in range(whole, q.size):
        part0[_class_of(q[i], base, shift, last)] += np.uint32(1)
    for s in range(size):
        counts[s] = np.int64(part0[s]) + part1[s] + part2[s] + part3[s]


@_inline
def _class_of(index, base, shift, last):
    """Return the class of an index, or `last` outside of all."""
    return np.uint64(min(np.uint32(np.uint32(index - base) >> shift), last))


@_inner
def choose_classes(q, low, high, scratch):
    """Return (base, shift, number of classes A, number of escaped indices).

    It begins with the finest classes, and merges pairs of them as long as that saves 0.4 %.

    Args: low, high: the extremes of q, int64.
          scratch: arrays of `class_scratch`; the first one gets the counts of the classes.
    """
    counts, merged, parts = scratch
    base, shift = _initial_classes(q, low, high, merged)
    num_classes, first = _num_initial_classes(q.size), 0
    if base == low:  # the classes that indices are in
        num_classes = min(num_classes, ((high - low) >> shift) + 1)
    _count_classes(q, base, shift, counts[: num_classes + 1], parts)
    num_escapes = counts[num_classes]
    while counts[num_classes - 1] == 0:
        num_classes -= 1
    # Merged classes may not reach beyond the initial ones, where escaped indices are. Dropping
    # classes in front would shift the pairs, so it is done only without escaped indices.
    while counts[first] == 0 and num_escapes == 0:
        first += 1
    base, num_classes = base + (first << shift), num_classes - first
    if first:
        for s in range(num_classes):
            counts[s] = counts[first + s]
    best_cost = _cost(counts[:num_classes], shift, q.size, num_escapes)
    while num_classes > 1 and shift < MAX_SHIFT:
        half = (num_classes + 1) // 2
        counts[num_classes] = 0
        for s in range(half):
            merged[s] = counts[2 * s] + counts[2 * s + 1]
        cost = _cost(merged[:half], shift + 1, q.size, num_escapes)
        if cost > best_cost - (best_cost >> 8):
            break
        for s in range(half):
            counts[s] = merged[s]
        shift, num_classes, best_cost = shift + 1, half, cost
    return base, shift, num_classes, num_escapes


@inner
def class_scratch():
    """Return the scratch of `choose_classes`."""
    return np.empty(257, np.int64), np.empty(128, np.int64), np.empty(4 * 257, np.uint32)


@_inner
def frequencies_of(weights, log):
    """Turn weights [n] into frequencies of sum 2^log, in place, as reference.py defines them."""
    total = np.int64(0)
    for weight in weights:
        total += weight
    half, excess = total // 2, -(1 << log)
    for s in range(weights.size):  # in float64 the quotient is exact enough: below 2^13 + 2^-31
        f = np.int64(np.float64((weights[s] << log) + half) / np.float64(total))
        weights[s] = max(f, np.int64(weights[s] > 0))
        excess += weights[s]
    while excess != 0:
        s = 0
        for k in range(weights.size):
            s = k if weights[k] > weights[s] else s
        change = min(excess, max(1, weights[s] >> 4))
        weights[s] -= change
        excess -= change
