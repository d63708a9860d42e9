"""Sort distinct bags by id, in numba. Same results as reference.py.

A group's ids are sorted byte by byte, the lowest byte first, by counting. Only the bytes of the
largest distance from the smallest id take a pass.
"""

import numpy as np

from trec_qcomm.jit import inner, kernel
from trec_qcomm.ops.bitpack.cpu import bit_length
from trec_qcomm.ops.copying import copy

_BYTE = np.uint64(255)


@inner
def _sort_pass(keys, order, shift, counts, next_keys, next_order):
    """Sort stably by one byte of the keys."""
    counts[:] = 0
    for i in range(keys.size):
        counts[np.int64((keys[i] >> shift) & _BYTE)] += 1
    total = 0
    for byte in range(256):
        count = counts[byte]
        counts[byte] = total
        total += count
    for i in range(keys.size):
        byte = np.int64((keys[i] >> shift) & _BYTE)
        next_keys[counts[byte]], next_order[counts[byte]] = keys[i], order[i]
        counts[byte] += 1


@inner
def _sorted_order(keys, order, counts, next_keys, next_order):
    """Return `order` sorted by its keys. All but counts [256] have one number an id."""
    low, high = keys[0], keys[0]
    for i in range(keys.size):
        low, high = min(low, keys[i]), max(high, keys[i])
    num_passes = (bit_length(high - low) + 7) // 8
    for i in range(keys.size):
        keys[i] -= low
    for number in range(num_passes):
        _sort_pass(keys, order, np.uint64(8 * number), counts, next_keys, next_order)
        keys, next_keys = next_keys, keys
        order, next_order = next_order, order
    return order


@inner
def _at_most_one(lengths):
    several = False
    for b in range(lengths.size):
        several |= lengths[b] > 1
    return not several


@kernel
def sort_by_id(values, lengths, num_bags, counts, first, inverse, new_first, new_inverse, most):
    """Write new_first and new_inverse. most: how many bags the largest group has."""
    places, order, rank = (
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
    )
    keys, next_keys = np.empty(most, np.uint64), np.empty(most, np.uint64)
    next_order, by_byte = np.empty(most, np.int64), np.empty(256, np.int64)
    begin, begin_id, total = 0, 0, 0
    for g in range(counts.size):
        n, u = num_bags[g], counts[g]
        group_lengths, firsts = lengths[begin : begin + n], first[total : total + u]
        if _at_most_one(group_lengths):
            place = begin_id
            for b in range(n):
                places[b] = place
                place += group_lengths[b]
            num_empty, num_ids = 0, 0
            for i in range(u):
                b = firsts[i] - begin
                if group_lengths[b] == 0:
                    new_first[total + num_empty], rank[i] = firsts[i], num_empty
                    num_empty += 1
                else:  # by its bits, with the sign's turned: the order of signed numbers
                    keys[num_ids] = np.uint64(values[places[b]]) ^ (np.uint64(1) << np.uint64(63))
                    order[num_ids] = i
                    num_ids += 1
            by_id = order[:num_ids]
            if num_ids:
                by_id = _sorted_order(
                    keys[:num_ids], by_id, by_byte, next_keys[:num_ids], next_order[:num_ids]
                )
            for k in range(num_ids):
                new_first[total + num_empty + k] = firsts[by_id[k]]
                rank[by_id[k]] = num_empty + k
            for b in range(begin, begin + n):
                new_inverse[b] = rank[inverse[b]]
            begin_id = place
        else:
            copy(firsts, new_first[total : total + u])
            copy(inverse[begin : begin + n], new_inverse[begin : begin + n])
            begin_id += group_lengths.sum()
        begin, total = begin + n, total + u
