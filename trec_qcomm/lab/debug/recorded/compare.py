"""Two recorded runs side by side: the first step and place where they differ more than chance does.

A null run C is the run A once more with another seed: what differs between A and C is chance. A
difference between A and B counts from the limit on that `Chance` makes of these. Without a null
run, and for places that it lacks, the limits of `COMPARED` hold.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trec_qcomm.lab.debug.findings import Finding, findings
from trec_qcomm.lab.debug.recorded.chance import Chance
from trec_qcomm.lab.debug.recorded.figures import COMPARED, counted, sizes_of
from trec_qcomm.lab.debug.recorded.run import DebugRun, Place

RECEIVED = "received"  # kind of the finding that a rank uses other values than were sent


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A figure of one place that differs in one step.

    Args:
        field: name of the figure, or RECEIVED.
        what: how it differs, in words.
        size, limit: how much it differs, and how much would be chance; as the figure is compared.
        advice: what to do about it.
    """

    step: int
    place: Place
    field: str
    what: str
    size: float
    limit: float
    advice: str

    @property
    def excess(self) -> float:
        """Size over limit; inf where nothing is chance."""
        return self.size / self.limit if self.limit else math.inf


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What differs between two runs.

    Args:
        steps: steps that both have measured.
        first: the first difference of each place, the earliest step first, then the order in which
            a step sends, then the largest excess.
        only_a, only_b: places that one run lacks.
        without_null: places that the null run lacks; empty without a null run.
    """

    steps: Sequence[int]
    first: Sequence[Difference]
    only_a: Sequence[Place]
    only_b: Sequence[Place]
    without_null: Sequence[Place]


def compare(a: DebugRun, b: DebugRun, null: DebugRun | None = None) -> Comparison:
    """Return where run B differs from run A by more than the null run does.

    Raises: ValueError: the runs have no measured step in common.
    """
    steps = common_steps(a, b)
    if null is not None:
        common_steps(a, null)
    chance = Chance(a, null)
    both = [place for place in b.figures if place in a.figures]
    wrong = _received(a, b)
    first = []
    for place in both:
        differences = [*_differences(place, a, b, chance), *wrong.get(place, [])]
        if differences:
            first.append(min(differences, key=lambda d: d.step))  # of equals the first: the cause
    first += [min(d, key=lambda d: d.step) for place, d in wrong.items() if place not in both]
    return Comparison(
        steps=steps,
        first=sorted(first, key=lambda d: (d.step, d.place.order, -d.excess)),
        only_a=[place for place in a.figures if place not in b.figures],
        only_b=[place for place in b.figures if place not in a.figures],
        without_null=[] if null is None else [p for p in both if p not in null.figures],
    )


def common_steps(a: DebugRun, b: DebugRun) -> list[int]:
    """Return the steps that both runs measured. Raises ValueError: there are none."""
    steps = sorted(set(a.steps) & set(b.steps))
    if not steps:
        raise ValueError(
            f"{b.folder}: measured none of the steps of {a.folder} ({a.steps[0]} to "
            f"{a.steps[-1]}); runs to compare need the same `every`"
        )
    return steps


def _differences(place: Place, a: DebugRun, b: DebugRun, chance: Chance) -> Iterator[Difference]:
    for figure in COMPARED:
        limit = chance.limit(figure, place)
        for step, in_a, in_b, difference in sizes_of(figure, place, a, b):
            size = counted(figure, difference)
            if size > limit:
                what = f"{figure.words} {in_a:.4g} in A, {in_b:.4g} in B"
                yield Difference(
                    step=step, place=place, field=figure.field, what=what, size=size, limit=limit,
                    advice=figure.advice,
                )  # fmt: skip


def _received(a: DebugRun, b: DebugRun) -> dict[Place, list[Difference]]:
    """Return where a rank of B uses other values than were sent, and of A does not."""
    known, wrong = _received_by(a), _received_by(b)
    differences: dict[Place, list[Difference]] = {}
    for place in b.by_place:
        for rank in b.ranks:
            key = (place.name, place.direction, place.site, rank)
            if key in wrong and key not in known:
                difference = Difference(
                    step=wrong[key].step, place=place, field=RECEIVED, what=wrong[key].what,
                    size=math.inf, limit=0.0, advice=wrong[key].advice,
                )  # fmt: skip
                differences.setdefault(place, []).append(difference)
    return differences


def _received_by(run: DebugRun) -> dict[tuple[object, ...], Finding]:
    return {
        (finding.name, finding.direction, finding.site, finding.rank): finding
        for finding in findings(run.records)
        if finding.kind == RECEIVED
    }
