"""Two recorded runs side by side: the first step and place where they differ by more than a limit.

Limits are for runs of one seed. A factor of 2 (1 of its logarithm) and 6 dB, which is half or twice
the error, are what one codec bit makes; training moves norms by less within the steps of an epoch.
Counts need no limit: of a good run they are 0.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from trec_qcomm.lab.debug.findings import Finding, findings
from trec_qcomm.lab.debug.recorded.run import DebugRun, Place

RECEIVED = "received"  # kind of the finding that a rank uses other values than were sent
OF_CODEC = ("tolerance", "snr_db", "lost_share", "bits")  # which an exact run has none of


class Compared(NamedTuple):
    """A figure that is compared.

    Args:
        field: name of the figure.
        words: what it is.
        by: how two values are compared: by the logarithm of their ratio to base 2, by their
            difference, or by how much B's is above A's, or below it.
        limit: difference from which on it counts.
        advice: what to do where B differs.
    """

    field: str
    words: str
    by: Literal["ratio", "difference", "rise", "drop"]
    limit: float
    advice: str

    def size(self, x: float, y: float) -> float:
        """Return how much y of B differs from x of A; a ratio of 0, which zeros show, is 0."""
        if self.by == "ratio":
            return abs(math.log2(y / x)) if x > 0 and y > 0 else 0.0
        return abs(y - x) if self.by == "difference" else (y - x if self.by == "rise" else x - y)


_SOURCE = "look for what feeds this table in that step: ids, lr, a restored checkpoint"
_COARSER = "give this table more bits or a tighter bound, or compare its codec with A's"
COMPARED = tuple(
    Compared(*row)
    for row in (  # in the order of causes: what enters a codec, how it is set, what it makes of it
        ("num_nan", "NaN", "rise", 0.0,
         "find what made it: the loss, a division, a bad batch; then nonfinite: raise"),
        ("num_inf", "inf", "rise", 0.0, "look for an overflow before it"),
        ("num_broken", "values that codec made or lost NaN or inf of", "rise", 0.0,
         "use a codec of wider range, such as bf16 in the place of fp16"),
        ("rms", "root mean square", "ratio", 1.0, _SOURCE),
        ("norm_median", "median norm of a row", "ratio", 1.0, _SOURCE),
        ("range_median", "median range of a row", "ratio", 1.0, _SOURCE),
        ("peak", "largest value over a row's rms", "ratio", 1.0,
         "rows are heavy-tailed: more bits, or float6, which rounds values by their own size"),
        ("zero_share", "share of zeros", "difference", 0.25,
         "a table that nobody looks up, or gradients that a codec or the loss zeroes"),
        ("residual_over_gradient", "residual over gradient", "ratio", 1.0,
         "the residual holds what is never sent: more bits, or a lower threshold"),
        ("tolerance", "bound or threshold", "ratio", 1.0,
         "the configs differ here: compare this table's rule with A's"),
        ("snr_db", "signal to noise in dB", "drop", 6.0, _COARSER),
        ("lost_share", "share of values lost", "rise", 0.25, _COARSER),
        ("bits", "bits a value", "ratio", 1.0,
         "the codecs differ, or the rows' values: see the other figures"),
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A figure of one place that differs in one step.

    Args:
        field: name of the figure, or RECEIVED.
        what: how it differs, in words.
        size, limit: how much it differs, and from when on that counts; as the figure is compared.
        advice: what to do about it.
    """

    step: int
    place: Place
    field: str
    what: str
    size: float
    limit: float
    advice: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What differs between two runs.

    Args:
        steps: steps that both have measured.
        first: the first difference of each place, the earliest step first, then the order in which
            a step sends, then the largest beside its limit.
        only_a, only_b: places that one run lacks.
    """

    steps: Sequence[int]
    first: Sequence[Difference]
    only_a: Sequence[Place]
    only_b: Sequence[Place]


def compare(a: DebugRun, b: DebugRun) -> Comparison:
    """Return where run B differs from run A.

    Raises: ValueError: the runs have no measured step in common.
    """
    steps = sorted(set(a.steps) & set(b.steps))
    if not steps:
        raise ValueError(
            f"{b.folder}: measured none of the steps of {a.folder} ({a.steps[0]} to "
            f"{a.steps[-1]}); runs to compare need the same `every`"
        )
    first: dict[Place, Difference] = {}  # of equal steps the first figure: the cause
    for one in (*_differences(a, b), *_received(a, b)):
        if one.place not in first or one.step < first[one.place].step:
            first[one.place] = one
    return Comparison(
        steps=steps,
        first=sorted(
            first.values(), key=lambda d: (d.step, d.place.order, -d.size / (d.limit or 1e-9))
        ),
        only_a=[place for place in a.figures if place not in b.figures],
        only_b=[place for place in b.figures if place not in a.figures],
    )


def _differences(a: DebugRun, b: DebugRun) -> Iterator[Difference]:
    for place in (place for place in b.figures if place in a.figures):
        for figure in COMPARED:
            for step, in_b in b.figures[place].items():
                in_a = a.figures[place].get(step, {})
                x, y = in_a.get(figure.field), in_b.get(figure.field)
                is_exact = in_a.get("snr_db") == math.inf  # what B's codec does then is meant
                if x is None or y is None or (is_exact and figure.field in OF_CODEC):
                    continue
                if (size := figure.size(x, y)) > figure.limit:
                    yield Difference(
                        step=step, place=place, field=figure.field, size=size, limit=figure.limit,
                        what=f"{figure.words} {x:.4g} in A, {y:.4g} in B", advice=figure.advice,
                    )  # fmt: skip


def _received(a: DebugRun, b: DebugRun) -> Iterator[Difference]:
    """Yield where a rank of B uses other values than were sent, and of A does not."""
    known = {_end(finding) for finding in findings(a.records) if finding.kind == RECEIVED}
    places = {(place.name, place.direction, place.site): place for place in b.by_place}
    for finding in findings(b.records):
        if finding.kind == RECEIVED and _end(finding) not in known:
            yield Difference(
                step=finding.step, place=places[_end(finding)[:3]], field=RECEIVED, size=math.inf,
                limit=0.0, what=finding.what, advice=finding.advice,
            )  # fmt: skip


def _end(finding: Finding) -> tuple[str, str, str | None, int]:
    return finding.name, finding.direction, finding.site, finding.rank
