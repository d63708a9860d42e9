"""Distinct bags in numba. Same results as reference.py.

Each group has an open-addressing hash table of bag numbers, cleared by one small memset. The
numbers have 16 bits if that is enough; the table then stays in the L1 cache for a batch of 2048.
"""

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.batch.rank_sum.cpu import plus

_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: multiplicative hashing
_EMPTY = -1


@inner(forceinline=True)
def _log2_slots(num_bags):
    """Return log2 of the number of slots: at least four slots a bag, so that few bags collide."""
    log2 = 4
    while (1 << log2) < 4 * num_bags:
        log2 += 1
    return log2


@inner
def _unique_ids(ids, slots, shift, keys, firsts, inverse):
    """Find the distinct ones of bags with one id each; return how many there are.

    Whether an id is new is as good as random to the processor, and a mispredicted branch costs more
    than everything else here. So both cases do the same work: the next free number is prepared, and
    a new id is one that gets it. Only a collision branches.

    Args: keys, firsts: [n + 1], written.
    """
    mask = np.int64(slots.size - 1)
    slots[:] = _EMPTY
    num_unique = 0
    for b in range(ids.size):
        value = ids[b]
        place = np.int64((np.uint64(value) * _MIX) >> shift)
        keys[num_unique] = value
        firsts[num_unique] = b
        while True:
            seen = np.int64(slots[place])
            number = num_unique if seen < 0 else seen
            if keys[number] == value:
                break
            place = (place + 1) & mask
        slots[place] = number
        inverse[b] = number
        num_unique += number == num_unique
    return num_unique


@inner
def _equal(values, bits, a, b, length):
    for i in range(length):
        if values[a + i] != values[b + i]:
            return False
    if bits.size:
        for i in range(length):
            if bits[a + i] != bits[b + i]:
                return False
    return True


@inner
def _hash(values, bits, begin, length):
    h = np.uint64(length) * _MIX
    for i in range(begin, begin + length):
        h = (h ^ np.uint64(values[i])) * _MIX
        h ^= h >> np.uint64(32)
    if bits.size:
        for i in range(begin, begin + length):
            h = (h ^ np.uint64(np.uint32(bits[i]))) * _MIX
            h ^= h >> np.uint64(32)
    return h * _MIX


@inner
def _unique_lists(values, bits, starts, slots, shift, firsts, inverse):
    """Find the distinct ones of bags of any length; return how many there are.

    Bag b of the group is values[starts[b] : starts[b + 1]].
    """
    mask = np.int64(slots.size - 1)
    slots[:] = _EMPTY
    num_unique = 0
    for b in range(starts.size - 1):
        begin, length = starts[b], starts[b + 1] - starts[b]
        place = np.int64(_hash(values, bits, begin, length) >> shift)
        while True:
            number = slots[place]
            if number < 0:
                slots[place] = num_unique
                firsts[num_unique] = b
                inverse[b] = num_unique
                num_unique += 1
                break
            other = firsts[number]
            same_length = starts[other + 1] - starts[other] == length
            if same_length and _equal(values, bits, starts[other], begin, length):
                inverse[b] = number
                break
            place = (place + 1) & mask
    return num_unique


@inner(forceinline=True)
def _unique(values, bits, starts, one_hot, slots, keys, firsts, inverse):
    """Find the distinct ones of a group's bags; return how many there are.

    Args: values: the group's ids where each bag has one, else all ids.
    """
    log2 = _log2_slots(inverse.size)
    slots, shift = slots[: 1 << log2], np.uint64(64 - log2)
    if one_hot:
        return _unique_ids(values, slots, shift, keys, firsts, inverse)
    starts = starts[: inverse.size + 1]
    return _unique_lists(values, bits, starts, slots, shift, firsts, inverse)


@kernel
def all_ones(lengths):
    """Return whether every bag holds one id."""
    different = 0
    for i in range(lengths.size):
        different |= lengths[i] ^ 1
    return different == 0


@kernel
def unique_bags(
    values, lengths, num_bags, max_share, bits, narrow, wide, most, first, counts, inverse
):
    """Write first, counts and inverse; return U, or -1 if lengths do not sum up to N.

    Args:
        narrow, wide: memory for the hash table, int16 and int32; one of them is empty.
        most: how many bags the largest group has.
    """
    keys, starts = np.empty(most, values.dtype), np.empty(most + 1, np.int64)
    total, begin, begin_id = 0, 0, 0
    for g in range(counts.size):
        n = num_bags[g]
        group_lengths, group_inverse = lengths[begin : begin + n], inverse[begin : begin + n]
        firsts = first[total : total + n]
        one_hot = bits.size == 0 and all_ones(group_lengths)
        starts[0] = begin_id
        for b in range(0 if one_hot else n):
            starts[b + 1] = starts[b] + max(group_lengths[b], 0)
        end_id = begin_id + n if one_hot else starts[n]
        if end_id > values.size:
            return -1
        num_unique = n + 1
        if max_share[g] > 0:
            ids = values[begin_id:end_id] if one_hot else values
            if narrow.size:
                num_unique = _unique(
                    ids, bits, starts, one_hot, narrow, keys, firsts, group_inverse
                )
            else:
                num_unique = _unique(ids, bits, starts, one_hot, wide, keys, firsts, group_inverse)
        if num_unique > max_share[g] * n:
            num_unique = n
            for b in range(n):
                firsts[b] = b
                group_inverse[b] = b
        for u in range(num_unique):
            firsts[u] += begin
        counts[g] = num_unique
        total += num_unique
        begin += n
        begin_id = end_id
    return total if begin_id == values.size else -1


@kernel
def positions(starts, bags, index):
    """Write the places of these bags' ids to `index`. starts: [B + 1], where all bags begin."""
    at = 0
    for u in range(bags.size):
        for i in range(starts[bags[u]], starts[bags[u] + 1]):
            index[at] = i
            at += 1


@kernel
def expand(rows, start, num_rows, dim, column, group, inverse, out):
    """Expand rows, sample by sample, so that the matrix is written in its own order."""
    flat, width = out.reshape(-1), out.shape[1]
    for b in range(out.shape[0]):
        for s in range(start.size):
            d = dim[s]
            source = start[s] + inverse[group[s], b] * d
            target = b * width + column[s]
            row, place = rows[source : source + d], flat[target : target + d]
            for i in range(d):
                place[i] = row[i]


@kernel
def sum_by_bag(matrix, start, num_rows, dim, column, group, inverse, out):
    """Sum rows, sample by sample: each packed row gets its samples in their order."""
    flat, width = matrix.reshape(-1), matrix.shape[1]
    for s in range(start.size):
        out[start[s] : start[s] + num_rows[s] * dim[s]] = 0
    for b in range(matrix.shape[0]):
        for s in range(start.size):
            d = dim[s]
            target = start[s] + inverse[group[s], b] * d
            source = b * width + column[s]
            row, place = flat[source : source + d], out[target : target + d]
            for i in range(d):
                place[i] = plus(place[i], row[i])
