"""Readings: judge the changes of the loss, probe after probe, while all rungs stay as they are.

A reading has one number for each probe batch: by how many percent codecs change its loss. The mean
over n successive readings of B batches has two errors:

- Each probe sees other weights, so noise is drawn anew. One part of the noise is shared by all
  batches, and each batch has another part. Differences of successive readings show both. Their
  means over batches show the sum of both parts. Their spread over batches shows the second part,
  which is counted twice, on the safe side. The difference between the n readings and those before
  is left out, so that a jump does not hide itself. If noise has a memory, successive readings are
  too much alike. The spread of means of 1, 2, 4 and 8 readings shows that. The largest variance
  holds; if it is clearly the largest, it has only as many degrees of freedom as there are means.
- The batches are a sample, drawn once. This error is the spread over batches of their means over
  the n readings.

A change is shown to be above the limit if the mean exceeds the limit by the sum of two margins. The
first margin is Student's t with Welch's degrees of freedom times the first error, at a level for as
many probes as a training has. The second is Student's t with B - 1 degrees times the second error,
at the level of the one draw of the batches.

Monitoring has no end, so the first level is constant. At each probe windows of several lengths are
tested, with FALSE_TRIPS in all. By Bonferroni, noise lets a change that is just at the limit trip
in at most that share of the probes: with a chance of 1 % in 1000 probes. Only the latest LONGEST
readings count, so old readings mask nothing.

Effects of single tables say which ones to move.

Knows: numbers. Does not know: rungs, how numbers were measured.
Source: Page 1954 (tests over the latest readings, with a run length); von Neumann 1941 (successive
differences); Welch 1947. tests/lab/guard/test_readings.py simulates it.
Numerics: plain Python, so all ranks get the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum, inf, isfinite, isnan, log2, sqrt
from statistics import fmean

from trec_qcomm.lab.study.student_t import t_quantile_of_tail

FALSE_TRIPS = 1e-5  # chance that noise trips at one probe while the change is just at the limit
FALSE_DRAW = 0.0025  # chance of batches that mislead; they are drawn once
LONGEST = 64  # readings that are kept
MIN_DIFFERENCES = 3  # of successive readings, before the noise between probes is known at all
_GROWTH = 1.5  # of the lengths of windows
_MEMORIES = (1, 2, 4, 8)  # lengths of means whose spread shows a memory of the noise
_CLEAR = 2.0  # times the variance of differences, from which noise has a memory
_FEWEST_MEANS = 4  # before their spread says anything
_SUSPICION = 0.05  # one-sided level where an episode is on already, and of `upper`
_INTERVAL = 0.025  # tail on either side

ALIKE = 0.5  # of the largest effect, from which a table is moved together with it

Reading = tuple[float, ...]


@dataclass(frozen=True)
class Variance:
    """An estimated variance. Args: degrees: number of degrees of freedom; 0 where it is unknown."""

    value: float = 0.0
    degrees: float = 0.0

    def __add__(self, other: Variance) -> Variance:
        """Return the variance of a sum, with Welch's degrees of freedom."""
        if not self.degrees or not other.degrees:
            return self if self.degrees else other
        weight = self.value**2 / self.degrees + other.value**2 / other.degrees
        value = self.value + other.value
        return Variance(value, value**2 / weight if weight else self.degrees + other.degrees)

    def margin(self, tail: float) -> float:
        """Return what the error exceeds with a chance of `tail`; infinite if it is unknown."""
        if not self.degrees:
            return inf
        return t_quantile_of_tail(tail, int(max(1.0, self.degrees))) * sqrt(self.value)


@dataclass(frozen=True)
class Estimate:
    """Mean of a window of readings. Args: noise, draw: variances of its two errors, see above."""

    mean: float
    noise: Variance
    draw: Variance

    def suggests_above(self, limit: float) -> bool:
        """Return whether the mean is above a limit at a level of 5 %, one-sided."""
        distance = self.mean - limit
        return distance > 0 and distance >= (self.noise + self.draw).margin(_SUSPICION)

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """95 % interval of the mean; None twice if no error is known."""
        half = (self.noise + self.draw).margin(_INTERVAL)
        return (None, None) if half == inf else (self.mean - half, self.mean + half)

    @property
    def upper(self) -> float:
        """One-sided 95 % limit of the mean; infinite if no error is known."""
        return self.mean + (self.noise + self.draw).margin(_SUSPICION)


class Readings:
    """Latest readings with equal rungs and equal batches."""

    def __init__(self, raise_after: int) -> None:
        """Begin without any. Args: raise_after: length of the shortest window."""
        self._lengths = _lengths(raise_after)
        self._raise_after = raise_after
        self._readings: list[Reading] = []
        self._means: list[float] = []
        self._steps: list[tuple[float, float]] = []  # from the reading before; the first is none

    def __len__(self) -> int:
        return len(self._readings)

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Readings that are kept, the oldest first."""
        return tuple(self._readings)

    def restart(self, readings: Iterable[Sequence[float]] = ()) -> None:
        """Forget all readings, because rungs have changed. Args: readings: the new first ones."""
        self._readings, self._means, self._steps = [], [], []
        for reading in readings:
            self.add(reading)

    def add(self, changes: Sequence[float]) -> None:
        """Add a reading of finite numbers. Another number of batches begins anew."""
        if self._readings and len(self._readings[-1]) != len(changes):
            self.restart()
        reading = tuple(changes)
        self._steps.append(_step(self._readings[-1], reading) if self._readings else (0.0, 0.0))
        self._readings.append(reading)
        self._means.append(fmean(reading))
        for kept in (self._steps, self._readings, self._means):
            del kept[: -max(LONGEST, self._lengths[-1])]

    def show_above(self, limit: float, *, is_suspected: bool = False) -> bool:
        """Return whether the mean is shown to be above the limit, and the latest readings all are.

        Args: is_suspected: whether this was shown before with other rungs, so that one window of
            the latest readings at 5 % is enough.
        """
        latest = self._means[-self._raise_after :]
        if len(latest) < self._raise_after or min(latest) <= limit:
            return False
        if is_suspected:
            return self.estimate(self._raise_after).suggests_above(limit)
        if len(self) <= MIN_DIFFERENCES:
            return False
        level = FALSE_TRIPS / len(self._lengths)
        lengths = [n for n in self._lengths if n <= len(self)]
        return any(self._shows_above(limit, n, level) for n in lengths)

    def _shows_above(self, limit: float, n: int, level: float) -> bool:
        """Return whether the mean of n readings is above the limit by both margins."""
        mean, draw = self._sample(n)
        distance = mean - limit - (draw.margin(FALSE_DRAW) if draw.degrees else 0.0)
        return distance > 0 and distance >= self._noise(n).margin(level)

    def estimate(self, length: int | None = None) -> Estimate:
        """Return the mean of the latest readings. Args: length: how many; None: all."""
        n = len(self) if length is None else min(length, len(self))
        mean, draw = self._sample(n)
        return Estimate(mean, self._noise(n), draw)

    def _sample(self, n: int) -> tuple[float, Variance]:
        """Return the mean of the latest n readings, and its variance for the draw of batches."""
        by_batch = [fsum(batch) / n for batch in zip(*self._readings[len(self) - n :], strict=True)]
        if len(by_batch) < 2:
            return by_batch[0], Variance()
        spread = _square_spread(by_batch) / len(by_batch)
        return fmean(by_batch), Variance(spread, len(by_batch) - 1)

    def _noise(self, n: int) -> Variance:
        """Return the variance of the mean of the latest n readings for noise between probes."""
        steps = self._steps[1:]
        straddling = len(self) - n - 1
        if straddling >= 0:
            steps = steps[:straddling] + steps[straddling + 1 :]
        if not steps:
            return Variance()
        num_batches = len(self._readings[-1])
        # Differences that share a reading are not independent: two thirds of them count.
        count = max(1.0, 2 * len(steps) / 3)
        shared = Variance(fsum(square for square, _ in steps) / (2 * len(steps) * n), count)
        single = fsum(spread for _, spread in steps) / (2 * len(steps) * n * num_batches)
        shared = self._with_memory(shared, n)
        return shared + Variance(single, count * (num_batches - 1))

    def _with_memory(self, shared: Variance, n: int) -> Variance:
        """Return a larger variance of noise that batches share, where that noise has a memory."""
        parts = self._means[: len(self) - n], self._means[len(self) - n :]
        largest = shared
        for k in (k for k in _MEMORIES if k <= n):
            spread = _spread_of_means(parts, k)
            value = k * spread.value / n
            if value > largest.value:
                has_memory = value > _CLEAR * shared.value  # or it is chance
                largest = Variance(value, spread.degrees if has_memory else shared.degrees)
        return largest


def _step(before: Reading, after: Reading) -> tuple[float, float]:
    """Return what one reading differs from the one before: the mean squared, and the spread."""
    differences = [b - a for a, b in zip(before, after, strict=True)]
    return fmean(differences) ** 2, _square_spread(differences)


def _spread_of_means(parts: Iterable[Sequence[float]], n: int) -> Variance:
    """Return the variance of means of n successive values about each part's mean.

    Parts of fewer than _FEWEST_MEANS times n values are left out; it is 0 where all are.
    """
    squares, count, degrees = [0.0], 0, 0.0
    for values in parts:
        if len(values) >= _FEWEST_MEANS * n:
            sums = [0.0, *accumulate(values)]
            means = [(b - a) / n for a, b in zip(sums, sums[n:], strict=False)]
            squares.append(_square_spread(means) * len(means))
            count += len(means)
            degrees += len(values) / n - 1  # means that overlap are not independent
    return Variance(fsum(squares) / max(1, count), degrees)


def _square_spread(values: Sequence[float]) -> float:
    """Return the variance of a sample; 0 of one value."""
    if len(values) < 2:
        return 0.0
    center = fmean(values)
    return fsum((value - center) ** 2 for value in values) / (len(values) - 1)


def _lengths(shortest: int) -> tuple[int, ...]:
    lengths, length = [shortest], float(shortest)
    while (length := length * _GROWTH) <= LONGEST:
        if round(length) > lengths[-1]:
            lengths.append(round(length))
    return tuple(lengths)


def mean_effect(effects: Sequence[float]) -> float:
    """Return the mean over probe batches; infinite if one of them is.

    NaN counts as no effect, because the loss is not finite with or without this table's codec.
    """
    numbers = [0.0 if isnan(effect) else effect for effect in effects]
    return fsum(numbers) / len(numbers) if all(map(isfinite, numbers)) else max(numbers)


def missing_bits(effect: float, limit: float) -> float:
    """Return how many more bits a value bring a table's effect to the limit, at least.

    One bit halves the error, and the effect on the loss falls at least linearly with the error.
    """
    return log2(effect / limit) if 0 < effect < inf else effect


def choose(effects: Mapping[str, Sequence[float]], limit: float) -> list[str]:
    """Return the table with the largest effect, and tables that are about as much to blame.

    These tables have at least half its effect, and each is shown to be above the limit by itself.

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
