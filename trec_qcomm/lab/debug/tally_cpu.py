"""Tally's sums in numba, for rows on a CPU: one look at each value, where torch takes thirty.

What is summed up: tally.py, whose code for other devices is the definition.
"""
# mypy: ignore-errors

import numpy as np

from trec_qcomm.jit import kernel

_INF = np.float64(np.inf)


@kernel
def add_rows(x, y, bounds, sums, largest, histogram, rows):
    """Add rows to the sums.

    x, y: [n D] float32.  bounds: [n] float64, inf without a bound.  sums: [17] float64 in the
    order of tally._SUMS.  largest: [3] float64, that of tally._LARGEST.  histogram: int64.  rows:
    [3 n] float64, range, norm and largest |x| of each row.
    """
    num_rows = bounds.size
    dim = x.size // num_rows
    last = histogram.size - 1
    ratios = np.empty(dim, np.float64)
    bits = ratios.view(np.int64)
    for i in range(num_rows):
        high, low, top, error, largest_y = -_INF, _INF, 0.0, 0.0, 0.0
        sum_x, abs_x, xx, yy, xy, sum_e, ee = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        num_unusable, num_zeros = 0, 0
        for d in range(dim):
            a, b = np.float64(x[i * dim + d]), np.float64(y[i * dim + d])
            magnitude = abs(a)
            if magnitude < _INF:
                high, low = max(high, a), min(low, a)
            if magnitude < _INF and abs(b) < _INF:
                e = b - a
                distance = abs(e)
                top, error, largest_y = (
                    max(top, magnitude),
                    max(error, distance),
                    max(largest_y, abs(b)),
                )
                sum_x += a
                abs_x += magnitude
                xx += a * a
                yy += b * b
                xy += a * b
                sum_e += e
                ee += e * e
                num_zeros += a == 0
                sums[15] += (a != 0) & (distance >= magnitude)
                ratios[d] = distance
            else:
                num_unusable += 1
                ratios[d] = -1.0
                sums[2] += a != a
                sums[3] += magnitude == _INF
                sums[4] += not (a == b or (a != a and b != b))
        width = high - low if high >= low else 0.0
        if width > 0:
            for d in range(dim):
                if ratios[d] >= 0:
                    ratios[d] = ratios[d] / width
                    exponent = (bits[d] >> 52) - 1023  # of a number > 0: floor(log2)
                    histogram[min(max(exponent + last, 0), last)] += 1
        rows[i] = width
        rows[num_rows + i] = np.sqrt(xx)
        rows[2 * num_rows + i] = top
        sums[0] += 1
        sums[1] += dim
        sums[5] += num_unusable
        sums[6] += sum_x
        sums[7] += abs_x
        sums[8] += xx
        sums[9] += yy
        sums[10] += xy
        sums[11] += sum_e
        sums[12] += ee
        sums[13] += num_zeros
        sums[14] += num_zeros == dim
        sums[16] += width == 0
        largest[0] = max(largest[0], error)
        if error > 0:
            largest[1] = max(largest[1], error / bounds[i] if bounds[i] > 0 else _INF)
        largest[2] = max(largest[2], largest_y)


@kernel
def squares(values, num_rows, start, stride, dim, out):
    """Write the sum of squares of the finite values of each segment to `out`, [S] float64.

    values: [N] float32.  num_rows, start, stride: [S] int64, see core.segments.
    """
    for s in range(out.size):
        total = 0.0
        for i in range(num_rows[s]):
            of_row = 0.0
            for d in range(dim):
                y = np.float64(values[start[s] + i * stride[s] + d])
                if abs(y) < _INF:
                    of_row += y * y
            total += of_row
        out[s] = total
