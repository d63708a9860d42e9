"""Chance: how much two runs differ that differ in nothing but the seed."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from trec_qcomm.lab.debug.recorded.figures import COMPARED, Compared, sizes_of
from trec_qcomm.lab.debug.recorded.run import DebugRun, Place

# Some 20,000 numbers are compared (70 places, 13 figures, 20 steps). Of as many normal ones none is
# beyond 5 standard deviations, but tails are heavier, and what one seed changes it changes in many
# places: of three healthy trainings of the Criteo example with three seeds, 6 deviations and twice
# the largest named 7 places, by at most 1.1 times the limit. 8 and 3 times are beyond that.
# Where few steps make a place look calm by luck, the median place of its direction says what is
# usual; where tails are heavy, the largest difference does.
NULL_SIGMAS = 8.0
NULL_FACTOR = 3.0
FEW_STEPS = 10  # of a null run; below, standard deviations are off by more than a quarter


class Chance:
    """Limits of what differs by chance: between run A and a null run.

    Args:
        a: the run.
        null: a run of the same config with another seed; None: the limits of `COMPARED` hold.
    """

    def __init__(self, a: DebugRun, null: DebugRun | None) -> None:
        self._sizes: dict[str, dict[Place, list[float]]] = {figure.field: {} for figure in COMPARED}
        if null is not None:
            self._measure(a, null)
        self._usual = {field: _usual(sizes) for field, sizes in self._sizes.items()}

    def _measure(self, a: DebugRun, null: DebugRun) -> None:
        for place in a.figures:
            for figure in COMPARED if place in null.figures else ():
                if sizes := [abs(size) for *_, size in sizes_of(figure, place, a, null)]:
                    self._sizes[figure.field][place] = sizes

    def limit(self, figure: Compared, place: Place) -> float:
        """Return the difference of a figure from which on it counts."""
        sizes = self._sizes[figure.field].get(place)
        if sizes is None:
            return figure.limit
        usual = max(_deviation(sizes), self._usual[figure.field][place.direction])
        return max(figure.floor, NULL_SIGMAS * usual, NULL_FACTOR * max(sizes))


def _usual(sizes_by_place: Mapping[Place, Sequence[float]]) -> dict[str, float]:
    """Return the median place's deviation, by direction."""
    deviations: dict[str, list[float]] = {}
    for place, sizes in sizes_by_place.items():
        deviations.setdefault(place.direction, []).append(_deviation(sizes))
    return {direction: median(values) for direction, values in deviations.items()}


def _deviation(sizes: Sequence[float]) -> float:
    return math.sqrt(fmean(size * size for size in sizes))
