"""Allocation: one option for each item, the cheapest together whose losses stay within a budget.

Items are independent: costs and losses add up (a multiple-choice knapsack). Losses are rounded up
to STEPS parts of the budget, so what is chosen keeps it, and what is missed is at most what a
budget smaller by one part for each item would miss. Time and memory are items x options x STEPS.

Knows: numbers and names. Does not know: tables, codecs, what a cost or a loss is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

STEPS = 10_000


@dataclass(frozen=True)
class Option:
    """One of the options of an item.

    Args: cost, loss: finite numbers; the loss is not negative.
    """

    name: str
    cost: float
    loss: float

    def __post_init__(self) -> None:
        if not (isfinite(self.cost) and isfinite(self.loss) and self.loss >= 0):
            raise ValueError(f"{self.name}: cost {self.cost}, loss {self.loss}: expected numbers")


Options = Mapping[str, Sequence[Option]]  # by item
Chosen = dict[str, Option]  # by item


def allocate(options: Options, budget: float) -> Chosen:
    """Return the options of least cost, one for each item, whose losses add up to the budget.

    Args: options: one or more for each item.  budget: greatest sum of losses.
    Raises: ValueError: an item without options, or the budget is below the least sum of losses.
    """
    for item, of_item in options.items():
        if not of_item:
            raise ValueError(f"{item}: expected one option or more")
    least = sum(min(option.loss for option in of_item) for of_item in options.values())
    if not least <= budget < inf:
        raise ValueError(f"budget {budget:g}: the options of least loss add up to {least:g}")
    best = np.zeros(STEPS + 1)  # by parts of the budget: least cost
    picks = []
    for of_item in options.values():
        costs = np.stack([_shifted(best, option, budget) for option in of_item])
        picks.append(costs.argmin(axis=0))
        best = costs.min(axis=0)
    if not isfinite(float(best[-1])):  # only by rounding up
        return {item: min(o, key=lambda option: option.loss) for item, o in options.items()}
    chosen, left = {}, STEPS
    for (item, of_item), pick in reversed(list(zip(options.items(), picks, strict=True))):
        chosen[item] = of_item[int(pick[left])]
        left -= _parts(chosen[item].loss, budget)
    return {item: chosen[item] for item in options}


def price(chosen: Option, finer: Option) -> float:
    """Return the loss that a chosen option takes for each unit of cost it saves against a finer.

    It is infinite where the finer one costs no more.
    """
    saved, lost = finer.cost - chosen.cost, chosen.loss - finer.loss
    return lost / saved if saved > 0 else inf


def next_finer(options: Sequence[Option], chosen: Option) -> Option | None:
    """Return the option that takes back most loss for each unit of cost; None where none does."""
    finer = [option for option in options if option.loss < chosen.loss]
    return max(finer, key=lambda option: price(chosen, option), default=None)


def _parts(loss: float, budget: float) -> int:
    """Return a loss in parts of the budget, rounded up; more than all parts where it exceeds it."""
    if loss > budget:
        return STEPS + 1
    exact = loss / budget * STEPS if budget else 0.0
    return min(-int(-exact // 1), STEPS)


def _shifted(best: NDArray[np.float64], option: Option, budget: float) -> NDArray[np.float64]:
    """Return the least costs if an item takes an option, by parts of the budget."""
    parts = _parts(option.loss, budget)
    costs = np.full_like(best, inf)
    if parts <= STEPS:
        costs[parts:] = best[: STEPS + 1 - parts] + option.cost
    return costs
