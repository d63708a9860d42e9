"""Count the values that rowwise loses beside a far larger value of their row, in numba.

A value is flushed if it is not 0 and below 1/256 of its row's scale. Flushed values count if there
are at least 3 in a row, and if they are three quarters of its nonzero values. Most rows are not
looked at, so that counting costs next to nothing.
"""
# mypy: ignore-errors

import numpy as np

from trec_qcomm.jit import inner
from trec_qcomm.ops.rowwise.headers import exponent_of, scale_of
from trec_qcomm.ops.rowwise.reference import MIN_EXPONENT

_FLUSHED = np.float32(1 / 256)  # of a scale
_SAMPLED_ROWS = 4


@inner
def _looks_flushed(values, at, dim, least):
    """Return whether three of four values of a row are below `least`, and not all are 0."""
    num_small, num_nonzero = 0, 0
    for j in range(4):
        x = values[at + np.uint64(j * dim // 4)]
        is_small = abs(x) < least
        num_small += is_small
        num_nonzero += is_small & (x != 0)
    return (num_small >= 3) & (num_nonzero > 0)


@inner
def _count(values, at, dim, least):
    """Return the number of flushed values of a row that count."""
    if not _looks_flushed(values, at, dim, least):
        return 0
    num_small, num_other = 0, 0
    for d in range(dim):
        x = values[at + np.uint64(d)]
        is_small = abs(x) < least
        num_small += is_small & (x != 0)
        num_other += not is_small
    return num_small if num_small >= max(3, 3 * num_other) else 0


@inner
def count_flushed(values, start, stride, dim, headers, bits):
    """Return the number of flushed values of a segment.

    Rows are looked at that are 64 times as coarse as the finest row of a sample, or all rows if one
    row of the sample looks flushed. So a segment without such rows costs a look at 4 rows.
    """
    looked_at, n = np.float32(np.inf), headers.size
    for i in range(0, n, max(1, -(-n // _SAMPLED_ROWS))):
        scale, at = scale_of(headers[i], bits), np.uint64(start + i * stride)
        if exponent_of(headers[i]) > MIN_EXPONENT:  # else it is a row of zeros, or nearly
            if _looks_flushed(values, at, dim, np.float32(scale * _FLUSHED)):
                scale = np.float32(0)
            looked_at = min(looked_at, np.float32(scale * np.float32(64)))
    coarsest = np.float32(0)
    for i in range(n):
        coarsest = max(coarsest, scale_of(headers[i], bits))
    num_flushed = 0
    for i in range(n if coarsest >= looked_at else 0):
        scale = scale_of(headers[i], bits)
        if scale >= looked_at and exponent_of(headers[i]) > MIN_EXPONENT:
            at = np.uint64(start + i * stride)
            num_flushed += _count(values, at, dim, np.float32(scale * _FLUSHED))
    return num_flushed
