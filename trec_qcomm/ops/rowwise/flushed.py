"""Count the values that rowwise loses beside a far larger value of their row, in numba.

A value is flushed if it is not 0 and below 1/256 of its row's scale. Flushed values count if there
are at least 3 in a row, and if they are three quarters of its nonzero values. Most rows are not
looked at, so that counting costs next to nothing.
"""
# mypy: ignore-errors

import numpy as np

from trec_qcomm.jit import inner

_FLUSHED = np.float32(1 / 256)  # of a scale
_SAMPLED_ROWS = 4


@inner
def _looks_flushed(values, at, dim, first, second, inverse):
    """Return whether three of four values of a row are far below its scale, and not all are 0."""
    num_small, num_nonzero = 0, 0
    for j in range(4):
        x = values[at + np.uint64(j * dim // 4)]
        y = np.float32(np.float32(x * first) * second)
        is_small = abs(np.float32(y * inverse)) < _FLUSHED
        num_small += is_small
        num_nonzero += is_small & (x != 0)
    return (num_small >= 3) & (num_nonzero > 0)


@inner
def count_flushed(values, at, dim, first, second, inverse):
    """Return the number of flushed values of a row that count."""
    if not _looks_flushed(values, at, dim, first, second, inverse):
        return 0
    num_small, num_other = 0, 0
    for d in range(dim):
        x = values[at + np.uint64(d)]
        y = np.float32(np.float32(x * first) * second)
        is_small = abs(np.float32(y * inverse)) < _FLUSHED
        num_small += is_small & (x != 0)
        num_other += not is_small
    return num_small if num_small >= max(3, 3 * num_other) else 0


@inner
def coarsest_ordinary(values, start, stride, dim, first, second, inverses):
    """Return the largest inverse scale of a row whose flushed values are to be counted.

    Rows count that are 64 times as coarse as the finest row of a sample, or all rows if one row of
    the sample looks flushed. So a segment without such rows costs a look at 4 rows.
    """
    finest = np.float32(0)
    for i in range(0, inverses.size, max(1, -(-inverses.size // _SAMPLED_ROWS))):
        inverse = inverses[i]
        finest = max(finest, inverse)
        at = np.uint64(start + i * stride)
        if inverse > 0 and _looks_flushed(values, at, dim, first, second, inverse):
            return np.float32(np.inf)
    return np.float32(finest / np.float32(64))
