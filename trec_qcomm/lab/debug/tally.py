"""Tally: sums over the values of one table before and after a codec, and the figures of a record.

All sums are taken in float64, over values that are finite before and after the codec. Definitions:
records.debug.DebugRecord. On a CPU tally_cpu looks at each value once; the code here, which any
device runs, is the definition.

Knows: rows. Does not know: codecs, frames, files.
Shapes: n rows of D values.
"""

import math
import sys
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.core.segments import Segments
from trec_qcomm.lab.debug import tally_cpu
from trec_qcomm.lab.records.debug import HISTOGRAM_BINS, QUANTILES
from trec_qcomm.ops.dispatch import arrays

Figures = dict[str, Any]  # fields of a DebugRecord
_CHUNK = 2**18  # values that are looked at together, so that the float64 copies stay in caches
_SMALLEST_BIN = HISTOGRAM_BINS - 1  # minus the exponent of the upper end of bin 0
_CLIPPED = 9 / 8
_SUMS = (
    "rows", "values", "nan", "inf", "broken", "unusable", "x", "abs_x", "xx", "yy", "xy", "e", "ee",
    "zeros", "zero_rows", "lost", "zero_range",
)  # fmt: skip
_LARGEST = ("error", "error_over_bound", "abs_y")


class Tally:
    """Sums over rows that were added; `figures` makes them figures."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []  # [len(_SUMS)] float64 each
        self._largest: list[Tensor] = []  # [len(_LARGEST)] float64 each
        self._histogram: list[Tensor] = []  # [HISTOGRAM_BINS] int64 each
        self._rows: list[Tensor] = []  # [3, n] float64 each: range, norm, largest |x|
        self._dims: list[int] = []

    def add(self, x: Tensor, y: Tensor, bounds: Tensor | None = None) -> None:
        """Add rows.

        Args:
            x: [n, D] float32, the rows before the codec.
            y: [n, D] float32, the rows after it.
            bounds: [n] float64, the error bound of each row; None without one.
        """
        size = max(_CHUNK // x.shape[1], 1)
        for begin in range(0, len(x), size):
            part = slice(begin, begin + size)
            self._add(x[part], y[part], None if bounds is None else bounds[part])

    def _add(self, x: Tensor, y: Tensor, bounds: Tensor | None) -> None:
        if x.is_cpu:
            self._add_on_cpu(x, y, bounds)
        else:
            self._add_anywhere(x, y, bounds)

    def _add_on_cpu(self, x: Tensor, y: Tensor, bounds: Tensor | None) -> None:
        if bounds is None:
            bounds = torch.full((len(x),), math.inf, dtype=torch.float64)
        sums, largest = (torch.zeros(len(n), dtype=torch.float64) for n in (_SUMS, _LARGEST))
        histogram = torch.zeros(HISTOGRAM_BINS, dtype=torch.int64)
        rows = torch.empty(3, len(x), dtype=torch.float64)
        tally_cpu.add_rows(*arrays(x, y, bounds, sums, largest, histogram, rows))
        self._sums.append(sums)
        self._largest.append(largest.clamp_(max=sys.float_info.max))
        self._histogram.append(histogram)
        self._rows.append(rows)
        self._dims.append(x.shape[1])

    def _add_anywhere(self, x: Tensor, y: Tensor, bounds: Tensor | None) -> None:
        before, after = x.double(), y.double()
        squares = torch.stack([_dot(before, before), _dot(after, after)])
        if bool(squares.isfinite().all()):  # no float32 is so large that its square would not be
            self._add_finite(before, after, None, bounds)
            return
        finite = before.isfinite() & after.isfinite()
        self._add_finite(before, after, finite, bounds)

    def _add_finite(
        self, before: Tensor, after: Tensor, finite: Tensor | None, bounds: Tensor | None
    ) -> None:
        """Add rows. Args: before, after: [n, D] float64.  finite: [n, D] bool; None: all are."""
        zero = before.new_zeros(())
        counts = {"nan": zero, "inf": zero, "broken": zero, "unusable": zero}
        high, low = before.amax(1), before.amin(1)
        x, y = before, after
        if finite is not None:
            same = finite | (before == after) | (before.isnan() & after.isnan())
            counts = {
                "nan": before.isnan().sum(),
                "inf": before.isinf().sum(),
                "broken": (~same).sum(),
                "unusable": (~finite).sum(),
            }
            high, low = _finite_range(before)
            x, y = torch.where(finite, before, 0), torch.where(finite, after, 0)
        e, abs_x = y - x, x.abs()
        abs_e = e.abs()
        width, top, error = high - low, abs_x.amax(1), abs_e.amax(1)
        xx = torch.linalg.vecdot(x, x)
        is_zero = x == 0 if finite is None else (x == 0) & finite
        no_better = abs_e >= abs_x  # true where x was set to 0 above, too
        zeros = is_zero.sum()
        sums = counts | {
            "rows": before.new_tensor(float(len(before))),
            "values": before.new_tensor(float(before.numel())),
            "x": x.sum(), "abs_x": abs_x.sum(), "xx": xx.sum(),
            "yy": _dot(y, y), "xy": _dot(x, y), "e": e.sum(), "ee": _dot(e, e),
            "zeros": zeros, "zero_rows": (is_zero.sum(1) == is_zero.shape[1]).sum(),
            "lost": no_better.sum() - zeros - counts["unusable"],
            "zero_range": (width == 0).sum(),
        }  # fmt: skip
        ratio = zero if bounds is None else _largest_ratio(error, bounds)
        self._sums.append(torch.stack([sums[name].double() for name in _SUMS]))
        largest_y = torch.maximum(y.amax(), -y.amin())
        self._largest.append(torch.stack([error.amax(), ratio, largest_y]))
        self._histogram.append(_histogram(abs_e, width, finite))
        self._rows.append(torch.stack([width, xx.sqrt(), top]))
        self._dims.append(before.shape[1])

    @property
    def is_empty(self) -> bool:
        """Whether no row was added."""
        return not self._sums

    def sums(self) -> dict[str, float]:
        """Return sums by name: of values, squares x^2 and e^2, ranges of rows and so on."""
        names = (
            "rows", "values", "nan", "inf", "broken", "unusable", "xx", "ee", "zeros", "lost",
        )  # fmt: skip
        sums = dict(zip(_SUMS, torch.stack(self._sums).sum(0).tolist(), strict=True))
        widths = sum(float(rows[0].sum()) for rows in self._rows)
        return {name: sums[name] for name in names} | {"widths": widths}

    def norm(self) -> float:
        """Return the Euclidean norm of all x."""
        return math.sqrt(float(torch.stack(self._sums)[:, _SUMS.index("xx")].sum()))

    def figures(self, *, has_bound: bool = False) -> Figures:
        """Return the figures of all rows. Args: has_bound: whether `add` was given bounds."""
        s = dict(zip(_SUMS, torch.stack(self._sums).sum(0).tolist(), strict=True))
        largest = torch.stack(self._largest).amax(0)
        error, ratio, _ = largest.tolist()
        return self.figures_of_x() | {
            "num_broken": int(s["broken"]),
            "snr_db": _decibels(s["xx"], s["ee"]),
            "bias": _quotient(s["e"], s["abs_x"]),
            "cosine": _quotient(s["xy"], math.sqrt(s["xx"]) * math.sqrt(s["yy"])),
            "max_error": error,
            "error_over_bound": ratio if has_bound else None,
            "error_histogram": tuple(torch.stack(self._histogram).sum(0).tolist()),
            "lost_share": _quotient(s["lost"], s["values"] - s["unusable"] - s["zeros"]),
            "num_clipped_rows": self._num_clipped(largest[_LARGEST.index("abs_y")]),
        }

    def figures_of_x(self) -> Figures:
        """Return those figures that do not depend on what the codec did."""
        s = dict(zip(_SUMS, torch.stack(self._sums).sum(0).tolist(), strict=True))
        ranges, norms, tops = torch.cat(self._rows, 1)
        num_finite = s["values"] - s["unusable"]
        return {
            "num_rows": int(s["rows"]),
            "num_values": int(s["values"]),
            "num_nan": int(s["nan"]),
            "num_inf": int(s["inf"]),
            "rms": math.sqrt(s["xx"] / num_finite) if num_finite else None,
            "mean": _quotient(s["x"], num_finite),
            "num_zero_range": int(s["zero_range"]),
            "peak": self._peak(norms, tops),
            "zero_share": s["zeros"] / s["values"],
            "zero_row_share": s["zero_rows"] / s["rows"],
            "range_quantiles": _quantiles(ranges),
            "norm_quantiles": _quantiles(norms),
        }

    def _peak(self, norms: Tensor, tops: Tensor) -> float | None:
        roots = [
            part.new_full((part.shape[1],), math.sqrt(dim))
            for part, dim in zip(self._rows, self._dims, strict=True)
        ]
        some = norms > 0
        peaks = (tops * torch.cat(roots) / norms)[some]
        return _quantiles(peaks, (0.5,))[0] if len(peaks) else None

    def _num_clipped(self, largest: Tensor) -> int:
        tops = torch.cat(self._rows, 1)[2]
        return int((tops > _CLIPPED * largest).sum()) if bool(largest > 0) else 0


def segment_squares(values: Tensor, segments: Segments) -> Tensor:
    """Return [S] float64 on CPU, the sum of squares of the finite values of each segment.

    Args: values: float32, contiguous, the buffer that holds the rows.
    """
    if values.is_cpu:
        squares = torch.empty(segments.num_segments, dtype=torch.float64)
        _, start, stride = segments.arrays
        (flat, num_rows, out) = arrays(values.view(-1), segments.num_rows, squares)
        tally_cpu.squares(flat, num_rows, start, stride, segments.dim, out)
        return squares
    blocks = [segments.block(values, s) for s in range(segments.num_segments)]
    return _squares_of(torch.cat(blocks), segments.num_rows).cpu() if blocks else torch.zeros(0)


def _squares_of(rows: Tensor, num_rows: Tensor) -> Tensor:
    """Return [S] float64. Args: rows: [R, D] float32.  num_rows: [S] int64 on CPU, R in all."""
    size = max(_CHUNK // max(rows.shape[1], 1), 1)
    parts = [
        torch.where(p.isfinite(), p, 0).double().square().sum(1) for p in torch.split(rows, size)
    ]
    squares = torch.cat(parts) if parts else rows.new_zeros(0, dtype=torch.float64)
    segment = torch.repeat_interleave(num_rows).to(rows.device)
    return squares.new_zeros(len(num_rows)).index_add_(0, segment, squares)


def finite_range(x: Tensor) -> float:
    """Return max - min of the finite values of [n, D] float32, in float64; 0 where none is."""
    high, low = _finite_range(x.double().view(1, -1))
    return float(high - low)


def _finite_range(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (max, min) of the finite values of each row; equal where a row has none."""
    finite = x.isfinite()
    high, low = (torch.where(finite, x, end) for end in (-math.inf, math.inf))
    some = finite.any(1)
    return torch.where(some, high.amax(1), 0), torch.where(some, low.amin(1), 0)


def _largest_ratio(error: Tensor, bounds: Tensor) -> Tensor:
    """Return the largest error over its bound; no error over no bound is 0."""
    ratio = torch.where(error > 0, error / bounds.to(error.device), 0.0)
    return ratio.amax().clamp(max=sys.float_info.max)


def _histogram(abs_e: Tensor, width: Tensor, finite: Tensor | None) -> Tensor:
    """Return [HISTOGRAM_BINS] int64, counts of log2(|e| / range of the row)."""
    counted = width > 0
    ratio = abs_e / torch.where(counted, width, math.inf)[:, None]  # 0 where it does not count
    exponent = (ratio.view(torch.int64) >> 52) - 1023  # of x > 0: floor(log2 x)
    bins = exponent.clamp_(-_SMALLEST_BIN, 0).add_(_SMALLEST_BIN).flatten()
    counts = torch.bincount(bins, minlength=HISTOGRAM_BINS)
    num_counted = counted.sum() * abs_e.shape[1]
    if finite is not None:
        num_counted = finite[counted].sum()
    counts[0] -= abs_e.numel() - num_counted
    return counts


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return a.flatten().dot(b.flatten())


def _quantiles(numbers: Tensor, shares: tuple[float, ...] = QUANTILES) -> tuple[float, ...]:
    """Return quantiles of [n] float64, linear between neighbours (as numpy's default).

    torch.quantile refuses more than 2^24 numbers.
    """
    ordered = numbers.sort().values
    at = torch.tensor(shares, dtype=torch.float64) * (len(ordered) - 1)
    below = at.floor()
    low, high = ordered[below.long()], ordered[at.ceil().long()]
    share = (at - below).to(ordered.device)
    return tuple((low + (high - low) * share).tolist())


def _quotient(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0 else None


def _decibels(signal: float, noise: float) -> float | None:
    return 10 * (math.log10(signal) - math.log10(noise)) if signal > 0 and noise > 0 else None
