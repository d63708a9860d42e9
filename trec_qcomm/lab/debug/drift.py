"""Drift: how far a table's values have moved from a running mean of the steps before.

The running means are of logarithms and begin anew in a resumed run: they are no part of its state.
"""

import math
from collections.abc import Hashable

from trec_qcomm.lab.debug.tally import Figures

_LEAST_WEIGHT = 0.1  # of the newest number; the first ones are averaged evenly
_MEDIAN = 3  # its place in records.debug.QUANTILES


class RunningMeans:
    """Running means of rms, median range and median norm of each table, to tell their drift."""

    def __init__(self) -> None:
        self._means: dict[Hashable, tuple[int, float]] = {}  # numbers so far, and their mean

    def drifts(self, key: Hashable, figures: Figures) -> Figures:
        """Return rms_drift, range_drift and norm_drift, and add the figures to the means.

        A number that is 0 has no logarithm: it has no drift and does not count.

        Args: key: what the figures are of.  figures: figures of one step.
        """
        numbers = {
            "rms_drift": figures["rms"] or 0.0,
            "range_drift": figures["range_quantiles"][_MEDIAN],
            "norm_drift": figures["norm_quantiles"][_MEDIAN],
        }
        return {name: self._drift((key, name), number) for name, number in numbers.items()}

    def _drift(self, key: Hashable, number: float) -> float | None:
        if number <= 0:
            return None
        count, mean = self._means.get(key, (0, 0.0))
        drift = math.log2(number) - mean
        self._means[key] = count + 1, mean + drift * max(1 / (count + 1), _LEAST_WEIGHT)
        return drift if count else None
