"""Losses: expected cost to the model of a codec on one table, in percent.

    loss = price of the codec x share of the table x relative noise of the codec on it

- **Relative noise** is measured on the table's rows or gradients (noise.py, probes.py).
- The **share** is the weight of a table in the model's loss. For rows it is the cost of COARSE on
  one table to the trained float32 model, for each unit of relative noise. It is drawn towards the
  mean of all tables as far as seeds disagree. No effect is negative: the expectation of an effect
  with an error is taken. For gradients, half of the share is that of rows, and half is equal for
  all tables. These are guesses of the effect in a training, so a training tests them (`Rest`). It
  has a coarse codec on the tables that together should cost less than half, and none on the dearest
  tables. It is compared with the training in which all tables have this codec. This tells the
  weights of the two parts; within a part the guesses stay. So a table that the coarse codec spoils
  makes no other table dear.
- The **price** comes from trainings in which all tables have one coarse codec of a kind (direction
  and name of the codec). A finer codec of the kind is not dearer, because loss grows faster than
  noise. For rows it is as much cheaper as for the float32 model, on which each candidate was
  scored.

If a float32 model will be served with the codecs, too, the loss of rows is at least the codec's
cost to that model, with that model's shares. No price is negative: the expectation of a change with
an error is taken, given that a codec improves nothing.

Knows: measurements. Does not know: trainings, configs, budgets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from statistics import NormalDist, mean, median, variance

from trec_qcomm.config.tables import Direction
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab.search.candidates import Item
from trec_qcomm.lab.search.noise import ALL, Measured, mean_and_error

Shares = Mapping[Direction, Mapping[str, float]]  # by direction, then by table
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
    """Cost of a codec on all tables but the dearest.

    Args:
        codec: a codec that was calibrated on all tables.
        names: the tables that had it; all others were exact.
        all, rest: changes with the codec on all tables, and on these.
    """

    codec: Codec
    names: frozenset[str]
    all: Change
    rest: Change

    @property
    def part(self) -> Change:
        """Part of the loss that these tables cause, and its standard error."""
        whole, some = (max(change.expected, 1e-9) for change in (self.all, self.rest))
        errors = ((self.all.error / whole) ** 2, (self.rest.error / some) ** 2)
        part = some / whole
        return Change(min(part, 1.0), part * sqrt(sum(errors)))


def guessed(measured: Measured, coarse: Codec) -> dict[Direction, dict[str, float]]:
    """Return the tables' shares by the probes. The shares of a direction add up to 1."""
    rows = _of_rows(measured, coarse)
    equal = 1 / len(rows)
    return {
        "forward": rows,
        "backward": {table: (share + equal) / 2 for table, share in rows.items()},
    }


def losses_by_name(
    shares: Shares, measured: Measured, direction: Direction, codec: Codec
) -> dict[str, float]:
    """Return the cost of a codec on each table, without a unit: share x relative noise."""
    there = {name: measured.noise.get((name, direction, codec)) for name in shares[direction]}
    return {n: shares[direction][n] * noise.relative for n, noise in there.items() if noise}


def cheaper_half(
    shares: Shares, measured: Measured, direction: Direction, codec: Codec
) -> frozenset[str]:
    """Return the tables without the dearest ones, which have half of the expected loss or more.

    The result may be empty.
    """
    losses = losses_by_name(shares, measured, direction, codec)
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
    """Return shares that agree with the trainings of a part, as far as these are sure."""
    result = {direction: dict(by_name) for direction, by_name in shares.items()}
    for direction, rest in rests.items():
        losses = losses_by_name(shares, measured, direction, rest.codec)
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


Kind = tuple[Direction, str]  # and the codec's name
NEGLIGIBLE = 1e-3  # relative noise (30 dB), with which a kind is not calibrated


@dataclass(frozen=True)
class LossModel:
    """Expected losses of codecs.

    Args:
        measured: results of the probes.
        shares: shares of the tables in a training's loss, by direction.
        changes: changes in trainings in which all tables have one codec in one direction, and all
            else is exact.
        served: shares of the tables' rows in the float32 model's loss; None if it is not served
            with codecs.
    Derived:
        prices: expected losses of a training for a relative noise of 1 in all tables.
    """

    measured: Measured
    shares: Shares
    changes: Mapping[tuple[Direction, Codec], Change]
    served: Mapping[str, float] | None = None
    prices: Mapping[tuple[Direction, Codec], float] = field(init=False)
    _serving: Mapping[Codec, float] = field(init=False)  # price of rows for the float32 model

    def __post_init__(self) -> None:
        object.__setattr__(self, "_serving", self._fit_serving())
        probed = {(direction, codec) for _, direction, codec in self.measured.noise}
        object.__setattr__(self, "prices", {case: self._price(*case) for case in probed})

    def loss(self, table: str, direction: Direction, codec: Codec) -> float | None:
        """Return the expected loss in percent; None if the codec refuses values of the table."""
        noise = self.measured.noise.get((table, direction, codec))
        if noise is None:
            return None
        trained = self.prices[direction, codec] * self.shares[direction][table] * noise.relative
        if direction != "forward" or self.served is None or not self._serving:
            return trained
        price = self._serving.get(codec, max(self._serving.values()))
        return max(trained, price * self.served[table] * noise.relative)

    def _price(self, direction: Direction, codec: Codec) -> float:
        """Return the expected loss for a relative noise of 1 in all tables.

        A kind that was not calibrated has the highest price of its direction.
        """
        weight = self.weighted_noise(direction, codec)
        trained = {c: self._trained_price(d, c) for d, c in self.changes if d == direction}
        same = {c: p for c, p in trained.items() if c.name == codec.name} or trained
        weights = {c: self.weighted_noise(direction, c) for c in same}
        coarser = [price for c, price in same.items() if weights[c] >= weight]
        price = min(coarser) if coarser else max(same.values(), default=0.0)
        if direction != "forward" or not self._serving:
            return price
        served = self._serving.get(codec, max(self._serving.values()))
        coarsest = max(same, key=lambda c: weights[c], default=None)
        if coarsest is not None and self._serving.get(coarsest):
            price = min(price, served * same[coarsest] / self._serving[coarsest])
        return price

    def error(self, codecs: Mapping[Item, Codec]) -> float:
        """Return the standard error of the expected loss of codecs, from the prices alone."""
        losses: dict[Kind, float] = {}
        for (table, direction), codec in codecs.items():
            kind = direction, codec.name
            losses[kind] = losses.get(kind, 0.0) + (self.loss(table, direction, codec) or 0.0)
        shares = (loss * self._relative_error(kind) for kind, loss in losses.items())
        return sqrt(sum(share**2 for share in shares))

    def _relative_error(self, kind: Kind) -> float:
        """Return the error of a kind's price over the price; the largest where not calibrated."""
        errors: dict[Kind, float] = {}
        for (direction, codec), change in self.changes.items():
            error = change.error / change.expected if change.expected else 0.0
            errors[direction, codec.name] = max(error, errors.get((direction, codec.name), 0.0))
        return errors.get(kind, max(errors.values(), default=0.0))

    def _trained_price(self, direction: Direction, codec: Codec) -> float:
        weight = self.weighted_noise(direction, codec)
        return self.changes[direction, codec].expected / weight if weight else 0.0

    def weighted_noise(self, direction: Direction, codec: Codec) -> float:
        """Return the relative noise if all tables have a codec, weighted by their shares."""
        return sum(losses_by_name(self.shares, self.measured, direction, codec).values())

    def _fit_serving(self) -> dict[Codec, float]:
        """Return by forward codec its price for the float32 model, as the module says."""
        effects = {
            codec: Change(*mean_and_error(values)).expected
            for (table, codec), values in self.measured.effects.items()
            if table == ALL
        }
        prices: dict[Codec, float] = {}
        shares = self.shares if self.served is None else {**self.shares, "forward": self.served}
        weights = {
            codec: sum(losses_by_name(shares, self.measured, "forward", codec).values())
            for _, direction, codec in self.measured.noise
            if direction == "forward"
        }
        for codec in sorted(weights, key=lambda c: -weights[c]):
            twin = next((c for c in effects if self._is_equal(c, codec)), None)
            if twin is not None and weights[codec]:
                coarser = [price for c, price in prices.items() if c.name == codec.name]
                prices[codec] = min([effects[twin] / weights[codec], *coarser])
        return prices

    def _is_equal(self, one: Codec, other: Codec) -> bool:
        """Return whether two codecs of rows decode to equal values."""
        return not self.measured.different("forward", [one, other])[1:]
