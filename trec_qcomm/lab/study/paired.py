"""Paired changes: mean of one number a seed, with its interval and its one-sided upper limit.

Knows: numbers of each seed. Does not know: seeds that came later, codecs, records, files.
With fewer than 5 seeds there is no interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from statistics import mean, stdev

from trec_qcomm.lab.study.student_t import t_quantile_of_tail

MIN_FOR_INTERVAL = 5
TAILS = (0.025, 0.05)  # beyond either end of the interval, and beyond the upper limit


@dataclass(frozen=True)
class Change:
    """Paired changes of n seeds, mostly in percent. Positive is worse.

    Args:
        mean: mean over seeds; NaN where a seed's change is NaN or infinite.
        low, high: 95 % interval of the mean; None where n < 5 or the mean is NaN.
        upper: one-sided 95 % limit of the mean; None where n < 5 or the mean is NaN.
    """

    n: int
    mean: float
    low: float | None = None
    high: float | None = None
    upper: float | None = None

    @classmethod
    def from_percents(cls, percents: Sequence[float], tails: tuple[float, float] = TAILS) -> Change:
        """Return the change for one number a seed. Raises ValueError without numbers.

        Args: tails: chance that the mean is beyond either end of the interval, and chance that it
            is beyond the upper limit; 0 gives no limits.
        """
        n = len(percents)
        if not n:
            raise ValueError("percents: expected one number a seed, got none")
        if not all(map(isfinite, percents)):
            return cls(n, nan)
        center = mean(percents)
        if n < MIN_FOR_INTERVAL or not all(tails):
            return cls(n, center)
        error = stdev(percents) / sqrt(n)
        half, side = (t_quantile_of_tail(tail, n - 1) * error for tail in tails)
        return cls(n, center, center - half, center + half, center + side)

    def __str__(self) -> str:
        if self.low is None or self.high is None or self.upper is None:
            return f"{self.mean:+.3f}"
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}], upper {self.upper:+.3f}"


def percent(value: float, baseline: float) -> float:
    """Return the relative change in percent."""
    return 100 * (value / baseline - 1)
