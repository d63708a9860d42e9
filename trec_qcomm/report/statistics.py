"""Statistics of paired changes: means, intervals, and the two gates that a codec has to pass.

Knows: numbers of each seed. Does not know: codecs, files. A gate is passed or "not shown": that an
interval holds zero shows nothing, and many configs at 95 % each are more chances to pass by luck.
Numerics: Student's t quantile is the Cornish-Fisher expansion about the normal one (Abramowitz and
Stegun 26.7.5): for the 95 and 97.5 % quantiles off by 1e-3 with 5 seeds, by 2e-5 with 10. With
fewer than 5 there is no interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, stdev

BASELINE, NULL = "fp32", "null"  # in every study: float32, and float32 with nothing but noise
PASS = "PASS"
MIN_FOR_INTERVAL = 5
MIN_SEEDS = {"training": 50, "eval-only": 10}
MAX_MEAN = 0.02  # percent, gate of training
MAX_UPPER = {"training": 0.05, "eval-only": 0.02}  # percent, one-sided 95 % limits


@dataclass(frozen=True)
class Change:
    """Paired changes of n seeds, in percent. Positive is worse.

    Args:
        mean: mean over seeds.
        low, high: 95 % interval of the mean; None where n < 5.
        upper: one-sided 95 % limit of the mean; None where n < 5.
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


def training_gate(test: Change, progressive: Change) -> str:
    """Return PASS, or "not shown" and why.

    The mean change of both losses may be .02 %, its one-sided upper limit .05 %.
    """
    reasons = _too_few(test, "training")
    for name, change in (("test", test), ("progressive", progressive)):
        if change.mean > MAX_MEAN:
            reasons.append(f"{name} mean > {MAX_MEAN}")
        reasons += _upper(name, change, MAX_UPPER["training"])
    return _verdict(reasons)


def eval_only_gate(ne: Change) -> str:
    """Return PASS, or "not shown" and why. The one-sided upper limit may be .02 %."""
    return _verdict(_too_few(ne, "eval-only") + _upper("NE", ne, MAX_UPPER["eval-only"]))


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


def _too_few(change: Change, gate: str) -> list[str]:
    few = change.n < MIN_SEEDS[gate]
    return [f"{change.n} of {MIN_SEEDS[gate]} seeds"] if few else []


def _upper(name: str, change: Change, limit: float) -> list[str]:
    if change.upper is None:
        return []  # so few seeds are a reason of their own
    return [f"{name} upper > {limit}"] if change.upper > limit else []


def _verdict(reasons: list[str]) -> str:
    return f"not shown ({', '.join(reasons)})" if reasons else PASS
