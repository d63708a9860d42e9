"""Choose, take and add rows of a buffer, in numba. Same results as reference.py."""

from trec_qcomm.jit import kernel
from trec_qcomm.ops.batch.rank_sum.cpu import plus


@kernel
def choose(chosen, first, num_rows, start, stride, counts, position):
    """Fill counts and position, and return U.

    There is no branch: every row's position is written, but only chosen rows move the place to
    write.
    """
    total = 0
    for g in range(first.size):
        begin = total
        flags = chosen[first[g] : first[g] + num_rows[g]]
        at = start[g]
        for i in range(flags.size):
            position[total] = at
            total += flags[i]
            at += stride[g]
        counts[g] = total - begin
    return total


@kernel
def take(values, position, offsets, dim, out):
    """Copy the rows to `out`. offsets: [S + 1], the first row of each segment, and the end."""
    at = 0
    for s in range(dim.size):
        d = dim[s]
        for u in range(offsets[s], offsets[s + 1]):
            row, place = values[position[u] : position[u] + d], out[at : at + d]
            for i in range(d):
                place[i] = row[i]
            at += d


@kernel
def add(packed, position, offsets, dim, out):
    """Add the rows to `out`. offsets: [S + 1], the first row of each segment, and the end."""
    at = 0
    for s in range(dim.size):
        d = dim[s]
        for u in range(offsets[s], offsets[s + 1]):
            row, place = packed[at : at + d], out[position[u] : position[u] + d]
            for i in range(d):
                place[i] = plus(place[i], row[i])
            at += d
