"""Runs: segments that lie side by side, to be visited row by row and not one after the other.

In a [samples, columns] matrix a table's rows are far apart (a page each, for 26 tables of 64
columns), so a kernel that visits table after table gets nothing from the prefetcher. Visiting all
tables of a row before the next row reads the matrix in its own order.
"""

from numba import njit


@njit(nogil=True, cache=True)
def run_end(first, offsets, start, stride, dim):
    """The end (exclusive) of the longest run that begins at segment `first`: equal num_rows and
    stride, starts increasing within one stride."""
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


@njit(nogil=True, cache=True)
def largest_run(offsets, start, stride, dim):
    """(most segments, most rows over all its segments) that any run has."""
    most_segments, most_rows, first = 0, 0, 0
    while first < start.size:
        end = run_end(first, offsets, start, stride, dim)
        most_segments = max(most_segments, end - first)
        most_rows = max(most_rows, offsets[end] - offsets[first])
        first = end
    return most_segments, most_rows
