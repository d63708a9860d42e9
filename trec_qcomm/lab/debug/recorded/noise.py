"""Noise of a recorded run: the noisiest places by step, and what shadows would make of them."""

import math
from dataclasses import dataclass
from statistics import median

from trec_qcomm.lab.debug.recorded.run import DebugRun, Figures, Place, joined_figures, place_of
from trec_qcomm.lab.records import DebugRecord


@dataclass(frozen=True)
class PlaceNoise:
    """Decibels of one place by step; None where nothing was sent, inf where all is exact.

    Args:
        codec: the codec of the last step.
        nonfinite: NaN and inf by step.
        bits, lost: bits a value and share of lost values in the last step.
    """

    place: Place
    codec: str
    decibels: tuple[float | None, ...]
    nonfinite: tuple[int, ...]
    bits: float | None
    lost: float | None

    @property
    def least(self) -> float:
        """Decibels of the noisiest step; inf where all steps are exact."""
        return min((d for d in self.decibels if d is not None), default=math.inf)

    @property
    def median(self) -> float:
        """Median of the decibels; inf where most steps are exact."""
        return median([d for d in self.decibels if d is not None] or [math.inf])


def noisiest(run: DebugRun) -> list[PlaceNoise]:
    """Return all places that a codec adds noise to, or that hold NaN or inf, the noisiest first."""
    steps = run.steps
    lines = []
    for place, by_step in run.figures.items():
        every = [by_step.get(step, {}) for step in steps]
        last = next(reversed(by_step.values()))
        line = PlaceNoise(
            place=place,
            codec=run.by_place[place][max(run.by_place[place])][0].codec,
            decibels=tuple(figures.get("snr_db") for figures in every),
            nonfinite=tuple(map(_nonfinite, every)),
            bits=last.get("bits"),
            lost=last.get("lost_share"),
        )
        if line.least < math.inf or any(line.nonfinite):
            lines.append(line)
    return sorted(lines, key=lambda line: (line.median, line.least, str(line.place)))


def _nonfinite(figures: Figures) -> int:
    return int(figures.get("num_nan", 0) + figures.get("num_inf", 0))


@dataclass(frozen=True)
class Tried:
    """A codec on one place: medians over the measured steps.

    Args: bits: bits a value.  decibels: signal to noise.  is_used: whether it is the one in use.
    """

    codec: str
    bits: float
    decibels: float
    is_used: bool


def tried_of(run: DebugRun) -> dict[Place, list[Tried]]:
    """Return the codecs of each place, with fewer bits first; exact ones are left out."""
    groups: dict[tuple[Place, str, bool], dict[int, list[DebugRecord]]] = {}
    for record in run.records:
        key = (place_of(record), record.codec, not record.is_shadow)
        groups.setdefault(key, {}).setdefault(record.step, []).append(record)
    tried: dict[Place, list[Tried]] = {}
    for (place, codec, is_used), by_step in groups.items():
        figures = [joined_figures(records) for records in by_step.values()]
        pairs = [(f["bits"], f["snr_db"]) for f in figures if "bits" in f and "snr_db" in f]
        if pairs and median(noise for _, noise in pairs) < float("inf"):
            bits, noise = (median(values) for values in zip(*pairs, strict=True))
            tried.setdefault(place, []).append(Tried(codec, bits, noise, is_used))
    return {place: sorted(codecs, key=lambda c: c.bits) for place, codecs in tried.items()}
