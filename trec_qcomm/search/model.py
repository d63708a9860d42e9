"""Loss model: what a codec of one table and direction is expected to cost the model, in percent.

    loss = scale of the kind of codec x share of the table x relative noise of the codec on it

- **Relative noise** is measured on the table's rows or gradients (noise.py).
- The **share** tells tables apart: what COARSE on one table costs the trained float32 model, for
  each unit of relative noise, drawn towards the mean of all tables as far as seeds disagree. For
  gradients half of it is the same for all tables, as nothing measures them one by one.
- The **scale** is from trainings in which all tables have the coarsest codec of a kind (direction
  and name of the codec), so it holds what noise does to a whole training.

Rows have to serve as well: of them the loss is at least what their codec costs a model that was
trained in float32. A scale is never negative: of a change with an error the expectation is taken,
given that a codec improves nothing.

Knows: measurements. Does not know: trainings, configs, budgets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """

    measured: Measured
    coarse: Codec
    changes: Mapping[tuple[Direction, Codec], Change]
    shares: Mapping[Direction, Mapping[str, float]] = field(init=False)
    scales: Mapping[Kind, Change] = field(init=False)
    _serving: Mapping[Codec, float] = field(init=False)

    def __post_init__(self) -> None:
        shares = _shares(self.measured, self.coarse)
        equal = 1 / len(shares)
        by_direction: dict[Direction, Mapping[str, float]] = {
            "forward": shares,
            "backward": {table: (share + equal) / 2 for table, share in shares.items()},
        }
        object.__setattr__(self, "shares", by_direction)
        object.__setattr__(self, "scales", self._fit_scales())
        object.__setattr__(self, "_serving", self._fit_serving())

    def loss(self, table: str, direction: Direction, codec: Codec) -> float | None:
        """Return the expected loss in percent; None where the codec refuses values of the table."""
        noise = self.measured.noise.get((table, direction, codec))
        if noise is None:
            return None
        scale = self._scale(direction, codec).expected
        if direction == "forward":
            scale = max(scale, self._serving.get(codec, 0.0))
        return scale * self.shares[direction][table] * noise.relative

    def error(self, choice: Choice) -> float:
        """Return the standard error of the expected loss of a choice that is due to the scales."""
        weights: dict[Kind, float] = {}
        for table, pair in choice.items():
            for direction in DIRECTIONS:
                codec = pair[direction]
                noise = self.measured.noise[table, direction, codec].relative
                share = self.shares[direction][table]
                kind = direction, codec.name
                weights[kind] = weights.get(kind, 0.0) + share * noise
        errors = (w * self._scale_of(kind).error for kind, w in weights.items())
        return sqrt(sum(error**2 for error in errors))

    def weighted_noise(self, direction: Direction, codec: Codec) -> float:
        """Return the relative noise if all tables have a codec, weighted by their shares."""
        shares, noise = self.shares[direction], self.measured.noise
        there = ((share, noise.get((t, direction, codec))) for t, share in shares.items())
        return sum(share * each.relative for share, each in there if each is not None)

    def _fit_scales(self) -> dict[Kind, Change]:
        by_kind: dict[Kind, list[Change]] = {}
        for (direction, codec), change in self.changes.items():
            weight = self.weighted_noise(direction, codec)
            scaled = Change(change.mean / weight, change.error / weight)
            by_kind.setdefault((direction, codec.name), []).append(scaled)
        return {kind: _combined(changes) for kind, changes in by_kind.items()}

    def _fit_serving(self) -> dict[Codec, float]:
        """Return by forward codec the expected loss of the float32 model over its noise."""
        effects = {codec: Change(*_mean_and_error(values))
                   for (table, codec), values in self.measured.effects.items() if table == ALL
                   }  # fmt: skip
        scales = {}
        for _, direction, codec in self.measured.noise:
            weight = self.weighted_noise("forward", codec)
            twin = next((c for c in effects if self._is_equal(c, codec)), None)
            if direction == "forward" and twin is not None and weight:
                scales[codec] = effects[twin].expected / weight
        return scales

    def _is_equal(self, one: Codec, other: Codec) -> bool:
        """Return whether two codecs of rows decode to equal values."""
        return not self.measured.different("forward", [one, other])[1:]

    def _scale(self, direction: Direction, codec: Codec) -> Change:
        return self._scale_of((direction, codec.name))

    def _scale_of(self, kind: Kind) -> Change:
        """Return the scale of a kind; of one that was not calibrated the worst of its direction."""
        if kind in self.scales:
            return self.scales[kind]
        same = [scale for (side, _), scale in self.scales.items() if side == kind[0]]
        return max(same, key=lambda scale: scale.expected, default=Change(0.0, 0.0))


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


def _combined(changes: Iterable[Change]) -> Change:
    """Return the mean of changes, each weighted by its precision."""
    changes = list(changes)
    weights = [1 / max(change.error, 1e-12) ** 2 for change in changes]
    center = sum(w * c.mean for w, c in zip(weights, changes, strict=True)) / sum(weights)
    return Change(center, 1 / sqrt(sum(weights)))
