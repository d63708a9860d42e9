"""Readings: what the changes of the loss show, probe after probe, while all rungs stay as they are.

A reading is one number a probe batch: by how many percent codecs change its loss. The mean over the
latest n readings is off for two reasons, and its variance is the sum of both estimates:

- the batches are a sample. The spread of the batches' means over these n readings, over B.
- each probe meets other weights, which all batches share. Half the mean squared difference of
  successive readings, over n. The difference between this window and what was before is left out,
  so a jump does not hide itself.

Both hold the noise of single values, which is counted twice: on the safe side. The mean over the
limit, in units of that error, is Student's t with Welch's degrees of freedom.

Monitoring has no end, so the test is a constant one: at each probe windows of several lengths are
tested, with FALSE_TRIPS in all. By Bonferroni, a change that is just at the limit trips in at most
that share of the probes, and 1000 probes trip with a chance of at most 1 %. Only the latest LONGEST
readings count: what was long ago masks nothing.

Knows: numbers. Does not know: tables, rungs.
Source: Page 1954 (tests over the latest readings, whose error is one per run length); Welch 1947;
von Neumann 1941 (successive differences); docs/GUARD.md has simulated characteristics.
Numerics: plain Python, so all ranks get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf, sqrt

from trec_qcomm.control.trials.student_t import t_quantile_of_tail, t_tail

FALSE_TRIPS = 1e-5  # chance of a trip at one probe while the change is just at the limit
LONGEST = 64  # readings that are kept
MIN_DIFFERENCES = 3  # of successive readings, before the noise between probes is known at all
_GROWTH = 1.5  # of the lengths of windows
_SUSPICION = 0.05  # one-sided level where an episode is on already
_INTERVAL = 0.025  # tail on either side

Reading = tuple[float, ...]


@dataclass(frozen=True)
class Estimate:
    """Mean of a window of readings, with its error.

    Args: degrees: number of degrees of freedom; 0 where no error is known.
    """

    mean: float
    error: float
    degrees: int

    def p_above(self, limit: float) -> float:
        """Return the chance of such a mean if the true one is the limit."""
        if not self.degrees:
            return 1.0
        if self.error == 0:
            return 0.0 if self.mean > limit else 1.0
        return t_tail((self.mean - limit) / self.error, self.degrees)

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The 95 % interval of the mean; None twice without an error."""
        if not self.degrees:
            return None, None
        half = t_quantile_of_tail(_INTERVAL, self.degrees) * self.error
        return self.mean - half, self.mean + half

    @property
    def upper(self) -> float:
        """One-sided 95 % limit of the mean; infinite without an error."""
        if not self.degrees:
            return inf
        return self.mean + t_quantile_of_tail(_SUSPICION, self.degrees) * self.error


class Readings:
    """The latest readings with equal rungs and equal batches."""

    def __init__(self, raise_after: int) -> None:
        """Begin without any. Args: raise_after: length of the shortest window."""
        self._lengths = _lengths(raise_after)
        self._raise_after = raise_after
        self.values: list[Reading] = []

    def __len__(self) -> int:
        return len(self.values)

    def restart(self) -> None:
        """Forget all, since rungs have changed."""
        self.values = []

    def add(self, changes: Sequence[float]) -> None:
        """Add a reading of finite numbers. One of another number of batches begins anew."""
        if self.values and len(self.values[-1]) != len(changes):
            self.restart()
        longest = max(LONGEST, self._lengths[-1])
        self.values = [*self.values[1 - longest :], tuple(changes)]

    def are_above(self, limit: float) -> bool:
        """Return whether the latest `raise_after` readings are all above a limit."""
        latest = self.values[-self._raise_after :]
        return len(latest) == self._raise_after and all(_mean(r) > limit for r in latest)

    def show_above(self, limit: float, *, is_suspected: bool = False) -> bool:
        """Return whether the mean is shown to be above the limit.

        Args: is_suspected: whether it was shown before with other rungs, so that one window of the
            latest readings at 5 % will do.
        """
        if not self.are_above(limit):
            return False
        if is_suspected:
            return self.estimate(self._raise_after).p_above(limit) <= _SUSPICION
        if len(self.values) <= MIN_DIFFERENCES:
            return False
        level = FALSE_TRIPS / len(self._lengths)
        lengths = [n for n in self._lengths if n <= len(self.values)]
        return any(self.estimate(n).p_above(limit) <= level for n in lengths)

    def estimate(self, length: int | None = None) -> Estimate:
        """Return the mean of the latest readings. Args: length: how many; None: all."""
        n = len(self.values) if length is None else min(length, len(self.values))
        window = self.values[len(self.values) - n :]
        by_batch = [fsum(batch) / n for batch in zip(*window, strict=True)]
        parts = [_of_batches(by_batch), self._of_probes(n)]
        known = [(variance, degrees) for variance, degrees in parts if degrees > 0]
        variance = fsum(v for v, _ in known)
        weight = fsum(v * v / degrees for v, degrees in known)
        degrees = variance * variance / weight if weight > 0 else fsum(d for _, d in known)
        return Estimate(_mean(by_batch), sqrt(variance), int(max(1.0, degrees)) if known else 0)

    def _of_probes(self, n: int) -> tuple[float, float]:
        """Return the variance of the mean of n readings for noise between probes, and degrees."""
        means = [_mean(reading) for reading in self.values]
        start = len(means) - n
        squares = [(means[i] - means[i - 1]) ** 2 for i in range(1, len(means)) if i != start]
        if not squares:
            return 0.0, 0.0
        # Differences that share a reading are not independent: two thirds of them count.
        return fsum(squares) / (2 * len(squares) * n), max(1.0, 2 * len(squares) / 3)


def _of_batches(means: Sequence[float]) -> tuple[float, float]:
    """Return the variance of the mean of a sample of batches, and degrees of freedom."""
    size = len(means)
    if size < 2:
        return 0.0, 0.0
    center = _mean(means)
    return fsum((m - center) ** 2 for m in means) / (size - 1) / size, size - 1


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def _lengths(shortest: int) -> tuple[int, ...]:
    lengths, length = [shortest], float(shortest)
    while (length := length * _GROWTH) <= LONGEST:
        if round(length) > lengths[-1]:
            lengths.append(round(length))
    return tuple(lengths)
