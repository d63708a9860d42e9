"""Loss model: what a codec of one table and direction is expected to cost the model, in percent.

    loss = price of the codec x share of the table x relative noise of the codec on it

- **Relative noise** is measured on the table's rows or gradients (noise.py).
- The **share** tells tables apart: what COARSE on one table costs the trained float32 model, for
  each unit of relative noise, drawn towards the mean of all tables as far as seeds disagree. For
  gradients half of it is the same for all tables, as nothing measures them one by one.
- The **price** is from trainings in which all tables have one coarse codec of a kind (direction and
  name of the codec). A finer codec of the kind is not dearer: loss grows faster than noise. Of rows
  it is as much cheaper as it is for the float32 model, on which each candidate was scored.

Rows have to serve as well: of them the loss is at least what the codec costs the float32 model. No
price is negative: of a change with an error the expectation is taken, given that a codec improves
nothing.

Knows: measurements. Does not know: trainings, configs, budgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import NormalDist, mean, stdev, variance

from trec_qcomm.core.codec import Codec
from trec_qcomm.search.candidates import DIRECTIONS, Direction
from trec_qcomm.search.choices import Choice
from trec_qcomm.search.noise import ALL, Measured

Kind = tuple[Direction, str]  # and the name of the codec
LEAST_SHARE = 0.1  # of the mean: no table is free
NEGLIGIBLE = 1e-3  # relative noise (30 dB), with which a kind is not calibrated


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
class LossModel:
    """Expected losses of codecs.

    Args:
        measured: what the probes showed.
        coarse: codec that the shares were measured with.
        changes: what trainings changed in which all tables have one codec in one direction, and
            the others none.
    Derived:
        shares: what tables are worth, by direction; they add up to 1.
        prices: expected losses for a relative noise of 1 in all tables.
    """

    measured: Measured
    coarse: Codec
    changes: Mapping[tuple[Direction, Codec], Change]
    shares: Mapping[Direction, Mapping[str, float]] = field(init=False)
    prices: Mapping[tuple[Direction, Codec], float] = field(init=False)
    _serving: Mapping[Codec, float] = field(init=False)  # price of rows for the float32 model

    def __post_init__(self) -> None:
        shares = _shares(self.measured, self.coarse)
        equal = 1 / len(shares)
        by_direction: dict[Direction, Mapping[str, float]] = {
            "forward": shares,
            "backward": {table: (share + equal) / 2 for table, share in shares.items()},
        }
        object.__setattr__(self, "shares", by_direction)
        object.__setattr__(self, "_serving", self._fit_serving())
        probed = {(direction, codec) for _, direction, codec in self.measured.noise}
        object.__setattr__(self, "prices", {case: self._price(*case) for case in probed})

    def loss(self, table: str, direction: Direction, codec: Codec) -> float | None:
        """Return the expected loss in percent; None where the codec refuses values of the table."""
        noise = self.measured.noise.get((table, direction, codec))
        if noise is None:
            return None
        return self.prices[direction, codec] * self.shares[direction][table] * noise.relative

    def _price(self, direction: Direction, codec: Codec) -> float:
        """Return the expected loss for a relative noise of 1 in all tables.

        A kind that was not calibrated has the highest price of its direction.
        """
        weight = self.weighted_noise(direction, codec)
        trained = {c: self._trained_price(d, c) for d, c in self.changes if d == direction}
        same = {c: price for c, price in trained.items() if c.name == codec.name} or trained
        weights = {c: self.weighted_noise(direction, c) for c in same}
        coarser = [price for c, price in same.items() if weights[c] >= weight]
        price = min(coarser) if coarser else max(same.values(), default=0.0)
        if direction == "backward" or not self._serving:
            return price
        served = self._serving.get(codec, max(self._serving.values()))
        coarsest = max(same, key=lambda c: weights[c], default=None)
        if coarsest is not None and self._serving.get(coarsest):
            price = min(price, served * same[coarsest] / self._serving[coarsest])
        return max(price, served)

    def error(self, choice: Choice) -> float:
        """Return the standard error of the expected loss of a choice, that of the prices alone."""
        losses: dict[Kind, float] = {}
        for table, pair in choice.items():
            for direction in DIRECTIONS:
                kind = direction, pair[direction].name
                loss = self.loss(table, direction, pair[direction]) or 0.0
                losses[kind] = losses.get(kind, 0.0) + loss
        shares = (loss * self._relative_error(kind) for kind, loss in losses.items())
        return sqrt(sum(share**2 for share in shares))

    def _relative_error(self, kind: Kind) -> float:
        """Return the error of a kind's price over the price; the largest where not calibrated."""
        errors: dict[Kind, float] = {}
        for (direction, codec), change in self.changes.items():
            error = change.error / change.expected if change.expected else 0.0
            known = errors.get((direction, codec.name), 0.0)
            errors[direction, codec.name] = max(error, known)
        return errors.get(kind, max(errors.values(), default=0.0))

    def _trained_price(self, direction: Direction, codec: Codec) -> float:
        weight = self.weighted_noise(direction, codec)
        return self.changes[direction, codec].expected / weight if weight else 0.0

    def weighted_noise(self, direction: Direction, codec: Codec) -> float:
        """Return the relative noise if all tables have a codec, weighted by their shares."""
        shares, noise = self.shares[direction], self.measured.noise
        there = ((share, noise.get((t, direction, codec))) for t, share in shares.items())
        return sum(share * each.relative for share, each in there if each is not None)

    def _fit_serving(self) -> dict[Codec, float]:
        """Return by forward codec its price for the float32 model, as the module says."""
        effects = {
            codec: Change(*_mean_and_error(values)).expected
            for (table, codec), values in self.measured.effects.items()
            if table == ALL
        }
        prices: dict[Codec, float] = {}
        weights = {c: self.weighted_noise("forward", c)
                   for _, d, c in self.measured.noise if d == "forward"}  # fmt: skip
        for codec in sorted(weights, key=lambda c: -weights[c]):
            twin = next((c for c in effects if self._is_equal(c, codec)), None)
            if twin is not None and weights[codec]:
                coarser = [price for c, price in prices.items() if c.name == codec.name]
                prices[codec] = min([effects[twin] / weights[codec], *coarser])
        return prices

    def _is_equal(self, one: Codec, other: Codec) -> bool:
        """Return whether two codecs of rows decode to equal values."""
        return not self.measured.different("forward", [one, other])[1:]


def _shares(measured: Measured, coarse: Codec) -> dict[str, float]:
    """Return what tables are worth, which adds up to 1."""
    tables, worth, errors = measured.tables, {}, {}
    for table in tables:
        effects = measured.effects.get((table, coarse))
        noise = measured.noise.get((table, "forward", coarse))
        if effects and noise is not None and noise.relative:
            center, error = _mean_and_error(effects)
            worth[table], errors[table] = center / noise.relative, error / noise.relative
    if len(worth) < 2 or mean(worth.values()) <= 0:
        return {table: 1 / len(tables) for table in tables}
    center = mean(worth.values())
    chance = mean(error**2 for error in errors.values())
    between = max(variance(worth.values()) - chance, 0.0)
    shrunk = {}
    for table in tables:
        value, error = worth.get(table, center), errors.get(table, 0.0)
        kept = between / (between + error**2) if between else 0.0
        shrunk[table] = max(center + kept * (value - center), LEAST_SHARE * center)
    total = sum(shrunk.values())
    return {table: value / total for table, value in shrunk.items()}


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error, which of one value is as large as the value."""
    center = mean(values)
    return center, stdev(values) / sqrt(len(values)) if len(values) > 1 else abs(center)
