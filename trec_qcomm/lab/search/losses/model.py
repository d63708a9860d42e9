"""Loss model: what an option of one table or group is expected to cost the model, in percent.

    loss = price of the option x share of the table x relative noise of the option on it

- **Relative noise** is measured on the table's rows or gradients (noise.py, dense.py).
- The **share** tells tables apart (shares.py).
- The **price** is from trainings in which all tables have one coarse codec of a kind (direction and
  name of the codec). A finer codec of the kind is not dearer: loss grows faster than noise. Of rows
  it is as much cheaper as it is for the float32 model, on which each candidate was scored.

Where a float32 model is to be served with the codecs, too, the loss of rows is at least what the
codec costs that model, with the shares that it shows. No price is negative: of a change with an
error the expectation is taken, given that a codec improves nothing.

Knows: measurements. Does not know: trainings, configs, budgets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt

from trec_qcomm.config import GradientRule
from trec_qcomm.core.codec import Codec
from trec_qcomm.lab.search.losses.noise import ALL, Measured, mean_and_error
from trec_qcomm.lab.search.losses.options import Direction, Item, Option, kind_of
from trec_qcomm.lab.search.losses.shares import Change, Shares, losses_by_name

Kind = tuple[Direction, str]  # and what kind of option
NEGLIGIBLE = 1e-3  # relative noise (30 dB), with which a kind is not calibrated


@dataclass(frozen=True)
class LossModel:
    """Expected losses of codecs.

    Args:
        measured: what the probes showed.
        shares: what tables and groups are worth to a training, by direction.
        changes: what trainings changed in which all tables (or groups) have one option in one
            direction, and all else is exact.
        served: what tables' rows are worth to the float32 model; None where nobody serves it with
            codecs.
    Derived:
        prices: expected losses of a training for a relative noise of 1 in all tables.
    """

    measured: Measured
    shares: Shares
    changes: Mapping[tuple[Direction, Option], Change]
    served: Mapping[str, float] | None = None
    prices: Mapping[tuple[Direction, Option], float] = field(init=False)
    _serving: Mapping[Option, float] = field(init=False)  # price of rows for the float32 model

    def __post_init__(self) -> None:
        object.__setattr__(self, "_serving", self._fit_serving())
        probed = {(direction, option) for _, direction, option in self.measured.noise}
        object.__setattr__(self, "prices", {case: self._price(*case) for case in probed})

    def loss(self, name: str, direction: Direction, option: Option) -> float | None:
        """Return the expected loss in percent; None where the codec refuses values of the table."""
        noise = self.measured.noise.get((name, direction, option))
        if noise is None:
            return None
        trained = self.prices[direction, option] * self.shares[direction][name] * noise.relative
        if direction != "forward" or self.served is None or not self._serving:
            return trained
        price = self._serving.get(option, max(self._serving.values()))
        return max(trained, price * self.served[name] * noise.relative)

    def _price(self, direction: Direction, option: Option) -> float:
        """Return the expected loss for a relative noise of 1 in all tables.

        A kind that was not calibrated has the highest price of its direction.
        """
        weight = self.weighted_noise(direction, option)
        trained = {c: self._trained_price(d, c) for d, c in self.changes if d == direction}
        same = {c: p for c, p in trained.items() if kind_of(c) == kind_of(option)} or trained
        weights = {c: self.weighted_noise(direction, c) for c in same}
        coarser = [price for c, price in same.items() if weights[c] >= weight]
        price = min(coarser) if coarser else max(same.values(), default=0.0)
        if direction != "forward" or not self._serving:
            return price
        served = self._serving.get(option, max(self._serving.values()))
        coarsest = max(same, key=lambda c: weights[c], default=None)
        if coarsest is not None and self._serving.get(coarsest):
            price = min(price, served * same[coarsest] / self._serving[coarsest])
        return price

    def error(self, options: Mapping[Item, Option]) -> float:
        """Return the standard error of the expected loss of options, that of the prices alone."""
        losses: dict[Kind, float] = {}
        for (name, direction), option in options.items():
            kind = direction, kind_of(option)
            losses[kind] = losses.get(kind, 0.0) + (self.loss(name, direction, option) or 0.0)
        shares = (loss * self._relative_error(kind) for kind, loss in losses.items())
        return sqrt(sum(share**2 for share in shares))

    def _relative_error(self, kind: Kind) -> float:
        """Return the error of a kind's price over the price; the largest where not calibrated."""
        errors: dict[Kind, float] = {}
        for (direction, option), change in self.changes.items():
            error = change.error / change.expected if change.expected else 0.0
            kind_of_it = direction, kind_of(option)
            errors[kind_of_it] = max(error, errors.get(kind_of_it, 0.0))
        return errors.get(kind, max(errors.values(), default=0.0))

    def _trained_price(self, direction: Direction, option: Option) -> float:
        weight = self.weighted_noise(direction, option)
        return self.changes[direction, option].expected / weight if weight else 0.0

    def weighted_noise(self, direction: Direction, option: Option) -> float:
        """Return the relative noise if all tables have an option, weighted by their shares."""
        return sum(losses_by_name(self.shares, self.measured, direction, option).values())

    def _fit_serving(self) -> dict[Option, float]:
        """Return by forward codec its price for the float32 model, as the module says."""
        effects = {
            codec: Change(*mean_and_error(values)).expected
            for (table, codec), values in self.measured.effects.items()
            if table == ALL
        }
        prices: dict[Option, float] = {}
        shares = self.shares if self.served is None else {**self.shares, "forward": self.served}
        weights = {c: sum(losses_by_name(shares, self.measured, "forward", c).values())
                   for _, d, c in self.measured.noise
                   if d == "forward" and not isinstance(c, GradientRule)}  # fmt: skip
        for codec in sorted(weights, key=lambda c: -weights[c]):
            twin = next((c for c in effects if self._is_equal(c, codec)), None)
            if twin is not None and weights[codec]:
                coarser = [price for c, price in prices.items() if kind_of(c) == codec.name]
                prices[codec] = min([effects[twin] / weights[codec], *coarser])
        return prices

    def _is_equal(self, one: Codec, other: Codec) -> bool:
        """Return whether two codecs of rows decode to equal values."""
        return not self.measured.different("forward", [one, other])[1:]
