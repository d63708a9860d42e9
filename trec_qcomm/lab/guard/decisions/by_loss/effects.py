"""Effects of tables on the loss: which ones to move, and whether they explain what was read.

Knows: effects as numbers by table. Does not know: rungs, how they were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, inf, isfinite, isnan, log2

from trec_qcomm.lab.guard.decisions.by_loss.readings import Readings

ALIKE = 0.5  # of the largest effect, from which a table is moved together with it
EXPLAINED = 0.5  # of the excess, from which nobody else is asked


def mean_effect(effects: Sequence[float]) -> float:
    """Return the mean over probe batches; infinite where one of them is.

    NaN counts as no effect: the loss is not finite with or without this table's codec.
    """
    numbers = [0.0 if isnan(effect) else effect for effect in effects]
    return fsum(numbers) / len(numbers) if all(map(isfinite, numbers)) else max(numbers)


def missing_bits(effect: float, limit: float) -> float:
    """Return how many bits a value more bring a table's effect to the limit, at least.

    A bit halves the error, and the effect on the loss is linear in the error or better than that.
    """
    return log2(effect / limit) if 0 < effect < inf else effect


def choose(effects: Mapping[str, Sequence[float]], limit: float) -> list[str]:
    """Return the table with the largest effect, and others that are about as much to blame.

    These have at least half its effect, and by themselves are shown to be above the limit.
    Args: effects: numbers by table, one a probe batch, in percent.  limit: a percentage.
    """
    means = {table: mean_effect(values) for table, values in effects.items()}
    worst = max(means, key=lambda table: means[table])
    return [
        table
        for table, mean in means.items()
        if table == worst
        or (mean >= ALIKE * means[worst] and is_shown_above(effects[table], limit))
    ]


def is_shown_above(effects: Sequence[float], limit: float) -> bool:
    """Return whether the mean effect is shown to be above a limit, at 5 %."""
    if not all(map(isfinite, effects)):
        return mean_effect(effects) > limit
    readings = Readings(1)
    readings.add(effects)
    return readings.estimate().suggests_above(limit)


def explain(effects: Mapping[str, Sequence[float]], excess: float) -> bool:
    """Return whether the effects of some tables make up for most of what is above the limit."""
    sizes = [max(0.0, mean_effect(values)) for values in effects.values()]
    return sum(sizes) >= EXPLAINED * excess
