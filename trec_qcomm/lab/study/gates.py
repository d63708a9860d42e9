"""Gates: limits that a configuration must keep, and verdicts by a study's numbers.

A gate is passed, failed or "not shown". An interval that contains zero shows nothing, and many
configs at 95 % each are more chances to pass by luck. `gate` looks once, after all seeds.
`sequential_gate` looks at planned numbers of seeds, and ends when the verdict is sure:

- PASS if each metric meets two conditions at the same look. Its mean is shown to be below its limit
  `upper` (one-sided, error 5 % over all looks together, spent late). And its mean is foreseen to be
  within the limit `mean` after all seeds, with 95 % by Student's t of the seeds to come. All
  metrics must pass at one look, so they need not share the error.
- FAIL if at least one metric's mean is shown to be above its limit `mean` (error 5 % over all looks
  and metrics, spent evenly), or above `upper` if there is no limit of the mean.
- Otherwise the study goes on. After the last look the verdict is "not shown".

So a configuration whose true change is `upper` or more passes in at most 5 % of the studies. A
configuration that keeps all limits of the mean fails in at most 5 %.

Knows: numbers of each seed. Does not know: codecs, records of runs, files.
Source: sequential.py. The forecast is the predictive power of Spiegelhalter,
Freedman and Blackburn 1986, Controlled Clinical Trials 7, 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import copysign, inf, isfinite, sqrt
from statistics import mean, stdev

from trec_qcomm.lab.records import Limits
from trec_qcomm.lab.study.paired import MIN_FOR_INTERVAL, Change
from trec_qcomm.lab.study.sequential import Spending, levels
from trec_qcomm.lab.study.student_t import t_quantile_of_tail, t_tail

BASELINE, NULL = "fp32", "null"  # in every study: float32, and float32 with nothing but noise
PASS, FAIL, OPEN = "PASS", "FAIL", "open"
TRAINING = Limits(mean=0.02, upper=0.05, seeds=50)  # percent
EVALUATION = Limits(mean=None, upper=0.02, seeds=10)
ERROR = 0.05
FIRST_LOOK, LOOK_EVERY = 10, 5


@dataclass(frozen=True)
class Verdict:
    """Verdict of a study on one configuration.

    Args:
        text: PASS, "FAIL (why)", "not shown (why)", or "open (so many seeds)" for a study that may
            stop early and has not ended.
        num_seeds: number of seeds on which it rests.
        changes: change of each metric over these seeds. If the study may stop early, the limits
            hold at all looks together, so they are wider than for a planned number of as many
            seeds.
    """

    text: str
    num_seeds: int
    changes: Mapping[str, Change]

    @property
    def passed(self) -> bool:
        """Whether all limits are shown to be kept."""
        return self.text == PASS

    @property
    def is_open(self) -> bool:
        """Whether a study that may stop early needs more seeds."""
        return self.text.startswith(OPEN)

    def __str__(self) -> str:
        return self.text


def looks_of(num_seeds: int) -> tuple[int, ...]:
    """Return the looks of a study that may stop early: every 5 seeds from 10, and at the end.

    Raises: ValueError: too few seeds for any statistics.
    """
    if num_seeds < MIN_FOR_INTERVAL:
        raise ValueError(f"seeds: to stop early takes {MIN_FOR_INTERVAL} or more, got {num_seeds}")
    return (*range(FIRST_LOOK, num_seeds, LOOK_EVERY), num_seeds)


def gate(changes: Mapping[str, Change], limits: Mapping[str, Limits]) -> str:
    """Return the verdict by all seeds together: PASS, or "not shown" and why.

    Args:
        changes: change of each metric.
        limits: limits of the metrics that count; each has a change.
    """
    reasons = []
    for name, limit in limits.items():
        change = changes[name]
        reasons += _too_few(change.n, limit)
        if not isfinite(change.mean):
            reasons.append(f"{name} is not finite")
        if limit.mean is not None and change.mean > limit.mean:
            reasons.append(f"{name} mean > {limit.mean}")
        if change.upper is not None and change.upper > limit.upper:
            reasons.append(f"{name} upper > {limit.upper}")
    return _not_shown(reasons) if reasons else PASS


def sequential_gate(
    changes: Mapping[str, Sequence[float]], limits: Mapping[str, Limits], looks: tuple[int, ...]
) -> Verdict:
    """Return the verdict of the first look that has one, or an open one.

    Args:
        changes: change of each metric, a number a seed, in the planned order.
        limits: limits of the metrics that count; each has changes, all of one length.
        looks: planned numbers of seeds, see `looks_of`.
    """
    num_seeds = min(len(values) for values in changes.values())
    reached = [look for look in looks if look <= num_seeds]
    for look in reached:
        seen = {name: values[:look] for name, values in changes.items()}
        text = _look(seen, limits, looks)
        if text != OPEN:
            return Verdict(text, look, _changes(seen, looks))
    text = f"{OPEN} ({num_seeds} of at most {looks[-1]} seeds)"
    at = max(reached, default=num_seeds)
    there = {name: values[:at] for name, values in changes.items()}
    return Verdict(text, num_seeds, _changes(there, looks))


def _look(
    seen: Mapping[str, Sequence[float]], limits: Mapping[str, Limits], looks: tuple[int, ...]
) -> str:
    """Return PASS, FAIL or OPEN of one look; of the last one "not shown" and not OPEN."""
    failed, not_passed = [], []
    for name, limit in limits.items():
        values = seen[name]
        if not all(map(isfinite, values)):
            failed.append(f"{name} is not finite")
            continue
        worst = limit.upper if limit.mean is None else limit.mean
        if _p(mean(values) - worst, values) <= _level(
            looks, len(values), ERROR / len(limits), "even"
        ):
            failed.append(f"{name} mean > {worst}")
        if limit.mean is not None and _foreseen(values, looks[-1]) > limit.mean:
            not_passed.append(f"{name} mean > {limit.mean}")
        if _p(limit.upper - mean(values), values) > _level(looks, len(values), ERROR, "late"):
            not_passed.append(f"{name} upper > {limit.upper}")
        not_passed += _too_few(looks[-1], limit)
    if failed:
        return f"{FAIL} ({', '.join(failed)})"
    if not not_passed:
        return PASS
    is_last = all(len(values) == looks[-1] for values in seen.values())
    return _not_shown(not_passed) if is_last else OPEN


def _level(looks: tuple[int, ...], look: int, error: float, spending: Spending) -> float:
    return levels(looks, error, spending)[looks.index(look)]


def _p(distance: float, values: Sequence[float]) -> float:
    """Return the chance of a mean so far above, or farther, where the true mean is not above."""
    error = stdev(values) / sqrt(len(values))
    in_errors = distance / error if error else copysign(inf, distance)  # equal values have none
    return t_tail(in_errors, len(values) - 1)


def _foreseen(values: Sequence[float], num_planned: int) -> float:
    """Return what the mean of all planned seeds will not exceed, with 95 %."""
    n = len(values)
    to_come = stdev(values) * sqrt(max(1 / n - 1 / num_planned, 0.0))
    return mean(values) + t_quantile_of_tail(ERROR, n - 1) * to_come


def _changes(seen: Mapping[str, Sequence[float]], looks: tuple[int, ...]) -> dict[str, Change]:
    """Return changes whose limits hold at all looks together (repeated confidence intervals).

    Before the first look, and so early that no limit is shown, there are means alone.
    """
    num_seeds = max(map(len, seen.values()))
    half, side = (
        _level(looks, num_seeds, share, "late") if num_seeds in looks else 0.0
        for share in (ERROR / 2, ERROR)
    )  # fmt: skip
    return {n: Change.from_percents(v, tails=(half, side)) for n, v in seen.items() if v}


def _too_few(num_seeds: int, limit: Limits) -> list[str]:
    return [f"{num_seeds} of {limit.seeds} seeds"] if num_seeds < limit.seeds else []


def _not_shown(reasons: Sequence[str]) -> str:
    return f"not shown ({', '.join(dict.fromkeys(reasons))})"
