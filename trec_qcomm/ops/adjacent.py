"""Group segments that lie side by side in one matrix, so that kernels visit them together.

In a [samples, columns] matrix the rows of one table are far apart: a page each, for 26 tables of 64
columns. A kernel that visits table after table gets nothing from the prefetcher. Visiting all
tables of a row before the next row reads the matrix in its own order. A segment without neighbours
is a group by itself.
"""

from trec_qcomm.jit import inner


@inner
def group_end(first, offsets, start, stride, dim):
    """Return the end (exclusive) of the longest group that begins at segment `first`.

    Its segments have equal num_rows and stride, and their starts increase within one stride.
    """
    num_rows = offsets[first + 1] - offsets[first]
    end = first + 1
    while (
        end < start.size
        and offsets[end + 1] - offsets[end] == num_rows
        and stride[end] == stride[first]
        and start[end] > start[end - 1]
        and start[end] + dim <= start[first] + stride[first]
    ):
        end += 1
    return end


@inner
def largest_group(offsets, start, stride, dim):
    """Return the most segments of any group."""
    most_segments, first = 0, 0
    while first < start.size:
        end = group_end(first, offsets, start, stride, dim)
        most_segments = max(most_segments, end - first)
        first = end
    return most_segments
