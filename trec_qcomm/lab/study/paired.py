"""Paired changes: the mean of one number a seed, with its interval and its one-sided upper limit.

Knows: numbers of each seed. Does not know: seeds that came later, codecs, records, files.
Numerics: Student's t quantile is the Cornish-Fisher expansion about the normal one (Abramowitz and
Stegun 26.7.5): for the 95 and 97.5 % quantiles off by 1e-3 with 5 seeds, by 2e-5 with 10. With
fewer than 5 there is no interval. student_t.py has the quantiles far out in the tail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import NormalDist, mean, stdev

MIN_FOR_INTERVAL = 5


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
    def from_percents(cls, percents: Sequence[float]) -> Change:
        """Return the change of one number a seed. Raises ValueError: there are none."""
        n = len(percents)
        if not n:
            raise ValueError("percents: expected one number a seed, got none")
        if not all(map(isfinite, percents)):
            return cls(n, nan)
        center = mean(percents)
        if n < MIN_FOR_INTERVAL:
            return cls(n, center)
        error = stdev(percents) / n**0.5
        half, side = (t_quantile(p, n - 1) * error for p in (0.975, 0.95))
        return cls(n, center, center - half, center + half, center + side)

    def __str__(self) -> str:
        if self.low is None or self.high is None or self.upper is None:
            return f"{self.mean:+.3f}"
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}], upper {self.upper:+.3f}"


def paired_changes(values: Mapping[str, Mapping[int, float]], base: str) -> dict[str, Change]:
    """Return the change of each name against the base, over the seeds that both have.

    Names that have no seed in common with the base are left out.
    Args: values: one number by name, then by seed, so a run that is there twice counts once.
    """
    base_values, changes = values.get(base, {}), {}
    for name, by_seed in values.items():
        seeds = [seed for seed in sorted(by_seed) if seed in base_values]
        if seeds:
            percents = [percent(by_seed[seed], base_values[seed]) for seed in seeds]
            changes[name] = Change.from_percents(percents)
    return changes


def percent(value: float, baseline: float) -> float:
    """Return the relative change in percent."""
    return 100 * (value / baseline - 1)


def t_quantile(p: float, degrees: int) -> float:
    """Return Student's t quantile, as the module says.

    Raises: ValueError: fewer than 4 degrees of freedom.
    """
    if degrees < MIN_FOR_INTERVAL - 1:
        raise ValueError(f"degrees {degrees}: the expansion is poor below {MIN_FOR_INTERVAL - 1}")
    z, v = NormalDist().inv_cdf(p), degrees
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )
