"""A recorded run: the debugger's lines of all ranks, read back, joined, and ordered by noise.

Knows: debug records. Does not know: what is right or wrong.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

from trec_qcomm.lab.records import DebugRecord, read_all

# Directions in the order of a step.
ORDER = (
    "intra_forward", "forward", "backward", "intra_backward", "data_parallel", "dense", "residual",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Table or parameter, and which of its values are measured.

    Args: name, direction, site, module: fields of DebugRecord.
    """

    name: str
    direction: str
    site: str | None = None
    module: str | None = None

    @property
    def order(self) -> int:
        """Index of the direction in the order of a step."""
        return ORDER.index(self.direction)

    def __str__(self) -> str:
        return f"{self.name}, {self.direction}" + (f" ({self.site})" if self.site else "")


def place_of(record: DebugRecord) -> Place:
    """Return the place of a record."""
    return Place(record.name, record.direction, record.site, record.module)


class DebugRun:
    """Records of one training by all its ranks; a line that was recorded twice counts once.

    Args: folder: name of the folder, for messages.  records: records in the order of the lines.
    """

    def __init__(self, folder: str, records: Iterable[DebugRecord]) -> None:
        self.folder = folder
        unique: dict[tuple[object, ...], DebugRecord] = {}
        for record in records:
            place = place_of(record)
            unique[record.rank, record.step, place, record.codec, record.is_shadow] = record
        if not unique:
            raise ValueError(f"{folder}: no debug record in it; `debug:` in a config makes them")
        self.records = tuple(unique.values())

    @property
    def num_ranks(self) -> int:
        """Number of ranks that wrote records."""
        return len({record.rank for record in self.records})

    @property
    def steps(self) -> list[int]:
        """Steps that were measured."""
        return sorted({record.step for record in self.records})

    @cached_property
    def by_place(self) -> dict[Place, dict[int, list[DebugRecord]]]:
        """Records of what was sent, by place and step; one a rank. Shadows are left out."""
        places: dict[Place, dict[int, list[DebugRecord]]] = {}
        for record in self.records:
            if not record.is_shadow:
                places.setdefault(place_of(record), {}).setdefault(record.step, []).append(record)
        return {place: dict(sorted(steps.items())) for place, steps in places.items()}

    def __str__(self) -> str:
        """Return one line: ranks, steps, places."""
        steps = self.steps
        span = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
        names = {place.name for place in self.by_place}
        return (
            f"{self.folder}: {self.num_ranks} ranks, {span} ({len(steps)} measured), "
            f"{len(names)} tables and parameters"
        )


def read_run(folder: str | Path) -> DebugRun:
    """Return the run whose debug records are in a folder; records of other kinds are left out.

    Raises: ValueError: no records in the folder, or a line that is no record; the error names it.
    """
    records = (record for record in read_all([folder]) if isinstance(record, DebugRecord))
    return DebugRun(str(folder), records)


@dataclass(frozen=True)
class JoinedFigures:
    """Figures of all ranks as if they were one; None where no rank has the figure.

    Args:
        decibels: signal to noise of all values together; inf where all arrive exactly.
        num_nonfinite: number of NaN and inf.
        bits, lost: bits a value, and share of lost values.
    """

    decibels: float | None
    num_nonfinite: int
    bits: float | None
    lost: float | None


def joined(records: Iterable[DebugRecord]) -> JoinedFigures | None:
    """Return the figures of several ranks as one; None where no rank sends a value."""
    sent = [record for record in records if record.num_values]
    if not sent:
        return None
    return JoinedFigures(
        decibels=_decibels(sent),
        num_nonfinite=sum((record.num_nan or 0) + (record.num_inf or 0) for record in sent),
        bits=_mean([(record.bits, record.num_values or 0) for record in sent]),
        lost=_mean([(record.lost_share, record.num_values or 0) for record in sent]),
    )


def _decibels(records: Sequence[DebugRecord]) -> float | None:
    powers = [(r, r.rms**2 * (r.num_values or 0)) for r in records if r.rms is not None]
    signal = sum(power for _, power in powers)
    if not signal:
        return None
    noise = sum(p / 10 ** (r.snr_db / 10) for r, p in powers if r.snr_db is not None)
    return 10 * math.log10(signal / noise) if noise else math.inf


def _mean(values: Iterable[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


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
    lines = []
    for place, records in run.by_place.items():
        figures = {step: both for step, same in records.items() if (both := joined(same))}
        if not figures:  # nobody sends it
            continue
        every, last = [figures.get(step) for step in run.steps], figures[max(figures)]
        line = PlaceNoise(
            place=place,
            codec=records[max(records)][0].codec,
            decibels=tuple(one.decibels if one else None for one in every),
            nonfinite=tuple(one.num_nonfinite if one else 0 for one in every),
            bits=last.bits,
            lost=last.lost,
        )
        if line.least < math.inf or any(line.nonfinite):
            lines.append(line)
    return sorted(lines, key=lambda line: (line.median, line.least, str(line.place)))


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
        every = [both for same in by_step.values() if (both := joined(same))]
        pairs = [
            (f.bits, f.decibels) for f in every if f.bits is not None and f.decibels is not None
        ]
        if pairs and median(noise for _, noise in pairs) < math.inf:
            bits, noise = (median(values) for values in zip(*pairs, strict=True))
            tried.setdefault(place, []).append(Tried(codec, bits, noise, is_used))
    return {place: sorted(codecs, key=lambda c: c.bits) for place, codecs in tried.items()}
