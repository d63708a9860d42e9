"""Distinct bags in numba. Same results as reference.py.

An open-addressing table of bag numbers for each group, cleared by one small memset; of 16-bit
numbers where they do, it stays in the L1 cache for a batch of 2048.
"""

import numpy as np
from numba import njit

from trec_qcomm.ops.rank_sum.cpu import plus

_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: multiplicative hashing
_EMPTY = -1


@njit(forceinline=True)
def _log2_slots(num_bags):
    """Four slots a bag, so that few collide."""
    log2 = 4
    while (1 << log2) < 4 * num_bags:
        log2 += 1
    return log2


@njit(nogil=True, cache=True)
def _unique_ids(ids, slots, shift, keys, firsts, inverse):
    """Bags of one id each. keys, firsts: [n + 1]. Returns how many are distinct.

    Whether an id is new is as good as random, and a wrong guess costs more than everything else
    here. So both cases do the same: the next free number is prepared, and a new id is one that
    finds it. Only a collision branches.
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
            found = np.int64(slots[place])
            number = num_unique if found < 0 else found
            if keys[number] == value:
                break
            place = (place + 1) & mask
        slots[place] = number
        inverse[b] = number
        num_unique += number == num_unique
    return num_unique


@njit(nogil=True, cache=True)
def _equal(values, bits, a, b, length):
    for i in range(length):
        if values[a + i] != values[b + i]:
            return False
    if bits.size:
        for i in range(length):
            if bits[a + i] != bits[b + i]:
                return False
    return True


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def _unique_lists(values, bits, starts, slots, shift, firsts, inverse):
    """Bags of any length: bag b of the group is values[starts[b] : starts[b + 1]]."""
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


@njit(nogil=True, cache=True)
def all_ones(lengths):
    """Whether every bag holds one id."""
    different = 0
    for i in range(lengths.size):
        different |= lengths[i] ^ 1
    return different == 0


@njit(nogil=True, cache=True)
def _unique_groups(values, lengths, num_bags, max_share, bits, slots, most, first, counts, inverse):
    """slots: signed integers that hold `most`, the bags of the largest group."""
    keys, starts = np.empty(most, values.dtype), np.empty(most + 1, np.int64)
    total, begin, begin_id = 0, 0, 0
    for g in range(counts.size):
        n = num_bags[g]
        own_lengths, own_inverse = lengths[begin : begin + n], inverse[begin : begin + n]
        firsts = first[total : total + n]
        log2 = _log2_slots(n)
        own_slots, shift = slots[: 1 << log2], np.uint64(64 - log2)
        one_hot = bits.size == 0 and all_ones(own_lengths)
        starts[0] = begin_id
        for b in range(0 if one_hot else n):
            starts[b + 1] = starts[b] + max(own_lengths[b], 0)
        end_id = begin_id + n if one_hot else starts[n]
        if end_id > values.size:
            return -1
        num_unique = n + 1
        if max_share[g] > 0:
            if one_hot:
                ids = values[begin_id:end_id]
                num_unique = _unique_ids(ids, own_slots, shift, keys, firsts, own_inverse)
            else:
                num_unique = _unique_lists(
                    values, bits, starts[: n + 1], own_slots, shift, firsts, own_inverse
                )
        if num_unique > max_share[g] * n:
            num_unique = n
            for b in range(n):
                firsts[b] = b
                own_inverse[b] = b
        for u in range(num_unique):
            firsts[u] += begin
        counts[g] = num_unique
        total += num_unique
        begin += n
        begin_id = end_id
    return total if begin_id == values.size else -1


@njit(nogil=True, cache=True)
def unique_bags(values, lengths, num_bags, max_share, bits, first, counts, inverse):
    """Fills first, counts and inverse; returns U, or -1 where lengths do not sum up to N."""
    most = 0
    for g in range(num_bags.size):
        most = max(most, num_bags[g])
    slots = 1 << _log2_slots(most)
    if most < 1 << 15:
        return _unique_groups(
            values, lengths, num_bags, max_share, bits, np.empty(slots, np.int16), most, first,
            counts, inverse,
        )  # fmt: skip
    return _unique_groups(
        values, lengths, num_bags, max_share, bits, np.empty(slots, np.int32), most, first,
        counts, inverse,
    )  # fmt: skip


@njit(nogil=True, cache=True)
def positions(starts, bags, index):
    """index: where the ids of these bags are. starts: [B + 1] of all bags."""
    at = 0
    for u in range(bags.size):
        for i in range(starts[bags[u]], starts[bags[u] + 1]):
            index[at] = i
            at += 1


@njit(nogil=True, cache=True)
def expand(rows, start, num_rows, dim, column, group, inverse, out):
    """Sample by sample, so that the matrix is written in its own order."""
    flat, width = out.reshape(-1), out.shape[1]
    for b in range(out.shape[0]):
        for s in range(start.size):
            d = dim[s]
            source = start[s] + inverse[group[s], b] * d
            target = b * width + column[s]
            row, place = rows[source : source + d], flat[target : target + d]
            for i in range(d):
                place[i] = row[i]


@njit(nogil=True, cache=True)
def sum_by_bag(matrix, start, num_rows, dim, column, group, inverse, out):
    """Sample by sample, too: each packed row gets its samples in their order."""
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
