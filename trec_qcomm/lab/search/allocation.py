"""Allocation: choose one option for each item, at least cost, with losses within a budget.

Items are independent: costs and losses add up (a multiple-choice knapsack). Losses are rounded up
to STEPS parts of the budget. So the choice keeps the budget, and it is at least as good as the best
choice for a budget smaller by one part an item. Time and memory are items x options x STEPS.

Knows: numbers. Does not know: tables, codecs, what a cost or a loss is.
"""

from collections.abc import Mapping
from math import inf, isfinite
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

STEPS = 10_000
Item = TypeVar("Item")
Option = TypeVar("Option")


class Priced(NamedTuple):
    """Cost and loss of an option; the loss is not negative."""

    cost: float
    loss: float


def allocate(options: Mapping[Item, Mapping[Option, Priced]], budget: float) -> dict[Item, Option]:
    """Return the options of least cost, one for each item, whose losses add up to the budget.

    Args: options: one or more for each item.  budget: greatest sum of losses.
    Raises: ValueError: the budget is below the least sum of losses.
    """
    safest = {item: min(priced, key=lambda o: priced[o].loss) for item, priced in options.items()}
    least = sum(options[item][option].loss for item, option in safest.items())
    if not least <= budget < inf:
        raise ValueError(f"budget {budget:g}: the options of least loss add up to {least:g}")
    best = np.zeros(STEPS + 1)  # by parts of the budget: least cost
    picks = []
    for priced in options.values():
        costs = np.stack([_shifted(best, option, budget) for option in priced.values()])
        picks.append(costs.argmin(axis=0))
        best = costs.min(axis=0)
    if not isfinite(float(best[-1])):  # only by rounding up
        return safest
    chosen, left = {}, STEPS
    for (item, priced), pick in reversed(list(zip(options.items(), picks, strict=True))):
        chosen[item] = list(priced)[int(pick[left])]
        left -= _parts(priced[chosen[item]].loss, budget)
    return {item: chosen[item] for item in options}


def price(chosen: Priced, finer: Priced) -> float:
    """Return the loss of a chosen option for each unit of cost that it saves against a finer one.

    It is infinite if the finer option costs no more.
    """
    saved, lost = finer.cost - chosen.cost, chosen.loss - finer.loss
    return lost / saved if saved > 0 else inf


def next_finer(options: Mapping[Option, Priced], chosen: Option) -> Option | None:
    """Return the option that takes back most loss for each unit of cost; None if none does."""
    now = options[chosen]
    finer = [option for option, priced in options.items() if priced.loss < now.loss]
    return max(finer, key=lambda option: price(now, options[option]), default=None)


def _parts(loss: float, budget: float) -> int:
    """Return a loss in parts of the budget, rounded up; more than all parts where it exceeds it."""
    if loss > budget:
        return STEPS + 1
    exact = loss / budget * STEPS if budget else 0.0
    return min(-int(-exact // 1), STEPS)


def _shifted(best: NDArray[np.float64], option: Priced, budget: float) -> NDArray[np.float64]:
    """Return the least costs if an item takes an option, by parts of the budget."""
    parts = _parts(option.loss, budget)
    costs = np.full_like(best, inf)
    if parts <= STEPS:
        costs[parts:] = best[: STEPS + 1 - parts] + option.cost
    return costs
