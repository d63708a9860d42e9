"""A recorded run: the debugger's lines of all ranks, read back and joined rank over rank.

Knows: debug records. Does not know: what is right or wrong.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trec_qcomm.lab.records import DebugRecord, read_all

Figures = Mapping[str, float]  # by the name of a field of DebugRecord
# Directions in the order of a step.
ORDER = (
    "intra_forward", "forward", "backward", "intra_backward", "data_parallel", "dense", "residual",
)  # fmt: skip
MEDIAN = 3  # place of the median in records.debug.QUANTILES


@dataclass(frozen=True)
class Place:
    """A table or parameter, and the values of it that are meant.

    Args: name, direction, site, module: fields of DebugRecord.
    """

    name: str
    direction: str
    site: str | None = None
    module: str | None = None

    @property
    def order(self) -> int:
        """Number of the direction in the order of a step."""
        return ORDER.index(self.direction)

    def __str__(self) -> str:
        return f"{self.name}, {self.direction}" + (f" ({self.site})" if self.site else "")


class DebugRun:
    """Records of one training by all its ranks; a line that was recorded again counts once.

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
    def ranks(self) -> list[int]:
        """Ranks that wrote records."""
        return sorted({record.rank for record in self.records})

    @property
    def ranks_without_records(self) -> list[int]:
        """Ranks that others sent to or received from, and of which there is no record."""
        named = {peer for record in self.records for peer in record.peers}
        return sorted(named - set(self.ranks))

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

    @cached_property
    def figures(self) -> dict[Place, dict[int, Figures]]:
        """Figures over all ranks, by place and step; places that nobody sends are left out."""
        joined = {
            place: {step: figures for step, r in steps.items() if (figures := joined_figures(r))}
            for place, steps in self.by_place.items()
        }
        return {place: steps for place, steps in joined.items() if steps}

    def __str__(self) -> str:
        """Return one line: ranks, steps, places."""
        steps = self.steps
        span = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
        names = {place.name for place in self.by_place}
        return (
            f"{self.folder}: {len(self.ranks)} ranks, {span} ({len(steps)} measured), "
            f"{len(names)} tables and parameters"
        )


def read_run(folder: str | Path) -> DebugRun:
    """Return the run whose debug records are in a folder; records of other kinds are left out.

    Raises: ValueError naming the folder or the line: nothing there, or no record.
    """
    records = (record for record in read_all([folder]) if isinstance(record, DebugRecord))
    return DebugRun(str(folder), records)


def place_of(record: DebugRecord) -> Place:
    """Return what a record is about."""
    return Place(record.name, record.direction, record.site, record.module)


def joined_figures(records: Sequence[DebugRecord]) -> Figures:
    """Return the figures of several ranks as one; those that no rank has are left out.

    Counts are added, bounds and residuals are those of the worst rank, shares and medians are means
    weighted by values or rows. The ratio of signal to noise is that of the sums, inf where all
    arrives exactly.
    """
    records = [record for record in records if record.num_values]
    figures: dict[str, float] = {}
    for name in ("num_values", "num_nan", "num_inf", "num_broken"):
        figures |= _joined(name, records, sum)
    for name in ("tolerance", "residual_over_gradient"):
        figures |= _joined(name, records, max)
    for name in ("bits", "lost_share", "zero_share"):
        figures |= _mean(name, [(getattr(r, name), r.num_values or 0) for r in records])
    figures |= _mean("peak", [(r.peak, r.num_rows or 0) for r in records])
    for name in ("range", "norm"):
        quantiles = [(getattr(r, f"{name}_quantiles"), r.num_rows or 0) for r in records]
        medians = [(q[MEDIAN] if q else None, num_rows) for q, num_rows in quantiles]
        figures |= _mean(f"{name}_median", medians)
    return figures | _powers(records)


def _joined(
    name: str, records: Iterable[DebugRecord], join: Callable[[list[float]], float]
) -> dict[str, float]:
    known = [value for r in records if (value := getattr(r, name)) is not None]
    return {name: float(join(known))} if known else {}


def _mean(name: str, values: Iterable[tuple[float | None, int]]) -> dict[str, float]:
    known = [(value, weight) for value, weight in values if value is not None and weight]
    total = sum(weight for _, weight in known)
    return {name: sum(value * weight for value, weight in known) / total} if total else {}


def _powers(records: Sequence[DebugRecord]) -> dict[str, float]:
    """Return the root mean square of all ranks' values, and their ratio of signal to noise."""
    powers = [(r, r.rms**2 * (r.num_values or 0)) for r in records if r.rms is not None]
    if not powers:
        return {}
    signal = sum(power for _, power in powers)
    noise = sum(p / 10 ** (r.snr_db / 10) for r, p in powers if r.snr_db is not None)
    rms = math.sqrt(signal / sum(r.num_values or 0 for r, _ in powers))
    if not signal:
        return {"rms": rms}
    return {"rms": rms, "snr_db": 10 * math.log10(signal / noise) if noise else math.inf}
