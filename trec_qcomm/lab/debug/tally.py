"""Tally: sums over the values of one table before and after a codec, and the figures of a record.

All sums are taken in float64, over values that are finite before and after the codec.
records.debug.DebugRecord has the definitions.

Knows: rows. Does not know: codecs, frames, files.
Shapes: n rows of D values.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

Figures = dict[str, Any]  # fields of a DebugRecord
_CHUNK = 2**18  # values that are looked at together, so that the float64 copies stay in caches
SUMS = (
    "rows", "values", "nan", "inf", "broken", "unusable", "abs_x", "xx", "e", "ee", "zeros", "lost",
)  # fmt: skip


class Tally:
    """Sums over the added rows; `figures` turns them into figures."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []  # [len(SUMS)] float64 each
        self._peaks: list[Tensor] = []  # [n] float64 each, NaN of rows that are all 0

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add rows. Args: x, y: [n, D] float32, the rows before the codec and after it."""
        size = max(_CHUNK // x.shape[1], 1)
        for begin in range(0, len(x), size):
            part = slice(begin, begin + size)
            self._add(x[part].double(), y[part].double())

    def _add(self, before: Tensor, after: Tensor) -> None:
        zero = before.new_zeros(())
        counts = {"nan": zero, "inf": zero, "broken": zero, "unusable": zero}
        x, e, finite = before, after - before, None
        if not bool(e.sum().isfinite()):  # sums of finite float32 are, in float64
            finite = before.isfinite() & after.isfinite()
            same = finite | (before == after) | (before.isnan() & after.isnan())
            counts = {
                "nan": before.isnan().sum(), "inf": before.isinf().sum(), "broken": (~same).sum(),
                "unusable": (~finite).sum(),
            }  # fmt: skip
            x, e = torch.where(finite, x, 0), torch.where(finite, e, 0)
        abs_x, abs_e = x.abs(), e.abs()
        squares = torch.linalg.vecdot(x, x)
        zeros = (x == 0).sum() - counts["unusable"]
        sums = counts | {
            "rows": before.new_tensor(float(len(before))),
            "values": before.new_tensor(float(before.numel())),
            "abs_x": abs_x.sum(), "xx": squares.sum(), "e": e.sum(),
            "ee": torch.linalg.vecdot(e, e).sum(), "zeros": zeros,
            "lost": (abs_e >= abs_x).sum() - zeros - counts["unusable"],
        }  # fmt: skip
        self._sums.append(torch.stack([sums[name].double() for name in SUMS]))
        peak = abs_x.amax(1) * math.sqrt(x.shape[1]) / squares.sqrt()  # NaN where all are 0
        self._peaks.append(peak)

    @property
    def is_empty(self) -> bool:
        """Whether no row was added."""
        return not self._sums

    def sums(self) -> dict[str, float]:
        """Return SUMS by name: of values, squares x^2 and e^2, and so on."""
        return dict(zip(SUMS, torch.stack(self._sums).sum(0).tolist(), strict=True))

    def figures(self) -> Figures:
        """Return the figures of all rows."""
        s = self.sums()
        return self.figures_of_x() | {
            "num_broken": int(s["broken"]),
            "snr_db": _decibels(s["xx"], s["ee"]),
            "bias": _quotient(s["e"], s["abs_x"]),
            "lost_share": _quotient(s["lost"], s["values"] - s["unusable"] - s["zeros"]),
        }

    def figures_of_x(self) -> Figures:
        """Return the figures that do not depend on the codec."""
        s = self.sums()
        num_finite, peaks = s["values"] - s["unusable"], torch.cat(self._peaks)
        known = peaks[~peaks.isnan()]
        return {
            "num_rows": int(s["rows"]),
            "num_values": int(s["values"]),
            "num_nan": int(s["nan"]),
            "num_inf": int(s["inf"]),
            "rms": math.sqrt(s["xx"] / num_finite) if num_finite else None,
            "peak": float(np.median(known.cpu().numpy())) if len(known) else None,
        }


def _quotient(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0 else None


def _decibels(signal: float, noise: float) -> float | None:
    return 10 * (math.log10(signal) - math.log10(noise)) if signal > 0 and noise > 0 else None
