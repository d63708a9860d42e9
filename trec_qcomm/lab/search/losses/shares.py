"""Shares: what tables, and groups of dense parameters, are worth to the model.

- Of **rows**: what COARSE on one table costs the trained float32 model, for each unit of relative
  noise, drawn towards the mean of all tables as far as seeds disagree. No effect is negative: of
  one with an error the expectation is taken.
- Of **gradients of rows** half of that, and half the same for all tables.
- Of **dense gradients** the number of values: optimizers such as Adam let all steps be as long.

These are guesses of what a training feels, so a training tests them (`Rest`): a coarse codec on the
tables that together should cost less than half, and nothing on the dearest ones. What it costs,
beside the training in which all tables have this codec, says what the two parts are worth; within
a part the guesses stay. So a table that is spoilt by the coarse codec makes no other one dear.

Knows: measurements. Does not know: trainings, configs, prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, mean, median, variance

from trec_qcomm.core.codec import Codec
from trec_qcomm.lab.search.losses.noise import Measured, mean_and_error
from trec_qcomm.lab.search.losses.options import Direction, Option

Shares = Mapping[Direction, Mapping[str, float]]  # by direction, then by table or group
GUESSED = 0.25  # standard error of a guessed part of the loss, which is between 0 and 1
LEAST = 1e-3  # of the loss: no part is free


@dataclass(frozen=True)
class Change:
    """Change of a metric in percent, and its standard error."""

    mean: float
    error: float

    @property
    def expected(self) -> float:
        """Expectation of the true change, given that it is not negative."""
        if self.error <= 0:
            return max(self.mean, 0.0)
        normal, z = NormalDist(), self.mean / self.error
        if z < -6:
            return self.error / -z  # the limit of what follows
        return self.mean + self.error * normal.pdf(z) / normal.cdf(z)


@dataclass(frozen=True)
class Rest:
    """What an option costs where the dearest tables (or groups) go without.

    Args:
        option: an option that was calibrated on all.
        names: the tables or groups that had it; the others were exact.
        all, rest: changes with all of them, and with these.
    """

    option: Option
    names: frozenset[str]
    all: Change
    rest: Change

    @property
    def part(self) -> Change:
        """Part of the loss that these cause, and its standard error."""
        whole, some = (max(change.expected, 1e-9) for change in (self.all, self.rest))
        errors = ((self.all.error / whole) ** 2, (self.rest.error / some) ** 2)
        part = some / whole
        return Change(min(part, 1.0), part * sqrt(sum(errors)))


def guessed(measured: Measured, coarse: Codec) -> dict[Direction, dict[str, float]]:
    """Return what tables and groups are worth as the probes say. Each direction adds up to 1."""
    rows = _of_rows(measured, coarse)
    equal = 1 / len(rows)
    shares: dict[Direction, dict[str, float]] = {
        "forward": rows,
        "backward": {table: (share + equal) / 2 for table, share in rows.items()},
    }
    groups = measured.names("dense")
    exact = (measured.noise[group, "dense", measured.exact((group, "dense"))] for group in groups)
    sizes = {group: noise.rows * noise.dim for group, noise in zip(groups, exact, strict=True)}
    if groups:
        shares["dense"] = {group: size / sum(sizes.values()) for group, size in sizes.items()}
    return shares


def losses_by_name(
    shares: Shares, measured: Measured, direction: Direction, option: Option
) -> dict[str, float]:
    """Return what an option costs on each table or group, in no unit: share x relative noise."""
    there = {name: measured.noise.get((name, direction, option)) for name in shares[direction]}
    return {n: shares[direction][n] * noise.relative for n, noise in there.items() if noise}


def cheaper_half(
    shares: Shares, measured: Measured, direction: Direction, option: Option
) -> frozenset[str]:
    """Return the tables or groups that are left when the dearest ones, with half of the expected
    loss or more, are taken away; it may be none."""
    losses = losses_by_name(shares, measured, direction, option)
    names, left = sorted(losses, key=lambda name: (losses[name], name)), sum(losses.values())
    rest: list[str] = []
    taken = 0.0
    for name in names:
        taken += losses[name]
        if taken > left / 2 or name == names[-1]:
            break
        rest.append(name)
    return frozenset(rest)


def corrected(
    shares: Shares, measured: Measured, rests: Mapping[Direction, Rest]
) -> dict[Direction, dict[str, float]]:
    """Return shares that agree with what trainings of a part showed, as far as they are sure."""
    result = {direction: dict(by_name) for direction, by_name in shares.items()}
    for direction, rest in rests.items():
        losses = losses_by_name(shares, measured, direction, rest.option)
        guess = sum(losses[name] for name in rest.names) / sum(losses.values())
        seen = rest.part
        weights = 1 / max(seen.error, 1e-3) ** 2, 1 / GUESSED**2
        part = (weights[0] * seen.mean + weights[1] * guess) / sum(weights)
        part = min(max(part, LEAST), 1 - LEAST)
        for name in result[direction]:
            is_rest = name in rest.names
            result[direction][name] *= part / guess if is_rest else (1 - part) / (1 - guess)
    return result


def _of_rows(measured: Measured, coarse: Codec) -> dict[str, float]:
    """Return what tables are worth, which adds up to 1."""
    worth: dict[str, Change] = {}
    for table in measured.tables:
        effects = measured.effects.get((table, coarse))
        noise = measured.noise.get((table, "forward", coarse))
        if effects and noise is not None and noise.relative:
            center, error = (x / noise.relative for x in mean_and_error(effects))
            worth[table] = Change(center, error)
    if len(worth) < 2 or mean(change.mean for change in worth.values()) <= 0:
        return {table: 1 / len(measured.tables) for table in measured.tables}
    shares = _drawn_together(worth)
    typical = mean(shares.values())
    total = sum(shares.get(table, typical) for table in measured.tables)
    return {table: shares.get(table, typical) / total for table in measured.tables}


def _drawn_together(worth: Mapping[str, Change]) -> dict[str, float]:
    """Return expectations of effects, given how far they are apart. None is below zero."""
    typical = median(change.error**2 for change in worth.values())
    errors = {name: (change.error**2 + typical) / 2 for name, change in worth.items()}  # squared
    center = mean(change.mean for change in worth.values())
    between = max(variance(c.mean for c in worth.values()) - mean(errors.values()), 0.0)
    kept = {name: between / (between + e) if between else 0.0 for name, e in errors.items()}
    drawn = {
        name: Change(center + kept[name] * (change.mean - center), sqrt(kept[name] * errors[name]))
        for name, change in worth.items()
    }
    return {name: max(change.expected, LEAST * center) for name, change in drawn.items()}
