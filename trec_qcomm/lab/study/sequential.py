"""Strictness of each look at a running trial, so that all looks together err seldom enough.

A test after 10, 15, 20 seeds at 5 % each, which stops when it suits, is wrong in far more than 5 %
of the trials. So the error is spent over the looks. When a share x of the trial is done, at most
`spent(x)` of the error is spent; `spent(1)` is the whole error.

- "late" spends as the bounds of O'Brien and Fleming do: next to nothing early, so an early end has
  to be very clear, and the last look is almost as strict as a trial without looks.
- "even" spends in proportion, so a trial ends early more often, and its last look is stricter.

The levels are exact for means of normal numbers with a known variance. With an unknown variance a
level is applied to the p-value of Student's t, the usual approximation (Jennison and Turnbull,
section 4.4). tests/lab/study/test_sequential.py simulates its error.

Knows: numbers. Does not know: seeds, models, records.
Source: Lan and DeMets 1983, Biometrika 70, 659 ("late", and spending as such); Kim and DeMets 1987,
Biometrika 74, 149 ("even"); Armitage, McPherson and Rowe 1969, JRSS A 132, 235 (the recursion);
Jennison and Turnbull 2000, Group Sequential Methods, chapters 7 and 9.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from math import sqrt
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

Spending = Literal["late", "even"]

_NEVER = 1e-12  # a level below this is none: the integrals are not more accurate
_NUM_POINTS = 1201  # of an integral
_REACH = 8.5  # standard deviations from zero at which it begins


def spent(share: float, error: float, spending: Spending) -> float:
    """Return the error that may be spent when a share of the trial is done."""
    if spending == "even":
        return error * share
    normal = NormalDist()
    return 2 * normal.cdf(normal.inv_cdf(error / 2) / sqrt(share))


@functools.lru_cache
def levels(looks: tuple[int, ...], error: float, spending: Spending = "late") -> tuple[float, ...]:
    """Return the level of each look: a p-value of at most this level rejects.

    The sum of the observations is a Brownian motion x(share) under the hypothesis. `density` is the
    density, on `points`, of the trials that no look has ended yet.

    Args:
        looks: numbers of observations at the looks, increasing; the last one ends the trial.
        error: chance of a wrong rejection at any of the looks, one-sided.
        spending: "late" or "even", see above.
    Raises: ValueError: no looks, or looks that do not increase.
    """
    if not looks or looks[0] < 1:
        raise ValueError(f"looks {looks}: expected one or more positive numbers")
    if any(a >= b for a, b in pairwise(looks)):
        raise ValueError(f"looks {looks}: expected increasing numbers")
    points, density, weights = (torch.tensor([x]).double() for x in (0.0, 1.0, 1.0))
    at_looks: list[float] = []
    share = already = 0.0
    for look in looks:
        next_share = look / looks[-1]
        step = sqrt(next_share - share)
        to_spend = spent(next_share, error, spending) - already
        bound = _bound(points, density * weights, step, to_spend, sqrt(next_share))
        level = NormalDist().cdf(-bound / sqrt(next_share))
        at_looks.append(level)
        already += to_spend if level else 0.0
        points, density, weights = _next(points, density * weights, step, bound, sqrt(next_share))
        share = next_share
    return tuple(at_looks)


def _bound(points: Tensor, mass: Tensor, step: float, to_spend: float, scale: float) -> float:
    """Return the bound that a trial exceeds at this look, for the first time, with `to_spend`."""
    if to_spend < _NEVER:
        return float("inf")
    low, high = -_REACH * scale, _REACH * scale
    for _ in range(80):
        middle = (low + high) / 2
        crossed = float(mass @ torch.special.ndtr((points - middle) / step))
        low, high = (middle, high) if crossed > to_spend else (low, middle)
    return high


def _next(
    points: Tensor, mass: Tensor, step: float, bound: float, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return points, density and weights (Simpson's) of the trials that this look did not end."""
    low, high = -_REACH * scale, min(bound, _REACH * scale)
    there = torch.linspace(low, high, _NUM_POINTS, dtype=torch.float64)
    distance = (there[:, None] - points[None, :]) / step
    density = (torch.exp(-0.5 * distance**2) / (step * sqrt(2 * torch.pi))) @ mass
    weights = torch.full((_NUM_POINTS,), 2.0).double()
    weights[1::2], weights[0], weights[-1] = 4.0, 1.0, 1.0
    return there, density, weights * (high - low) / (_NUM_POINTS - 1) / 3
