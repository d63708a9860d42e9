"""What a comparison says, for a terminal."""

import math
from collections.abc import Sequence

from trec_qcomm.core.aligned import aligned
from trec_qcomm.lab.debug.recorded.chance import FEW_STEPS
from trec_qcomm.lab.debug.recorded.compare import Comparison, Difference, common_steps
from trec_qcomm.lab.debug.recorded.run import DebugRun, Place
from trec_qcomm.lab.debug.recorded.show import with_advice

_HEAD = ("step", "where", "what", "size", "chance")


def compare_text(
    a: DebugRun, b: DebugRun, null: DebugRun | None, comparison: Comparison, *, top: int
) -> str:
    """Return the runs, the first difference of each place, and last the first of all.

    Args: a, b, null: the runs.  comparison: what differs.  top: number of places to show.
    """
    runs = [f"A     {a}", f"B     {b}", *([f"null  {null}"] if null is not None else [])]
    parts = [*runs, "", *_notes(a, b, null, comparison)]
    first = comparison.first
    if first:
        table = aligned([_HEAD, *map(_cells, first[:top])], right=(0, 3, 4))
        parts += [with_advice(table, [difference.advice for difference in first[:top]])]
        if len(first) > top:
            parts += [f"{len(first) - top} more places differ later or less; --top {len(first)}"]
        parts += [""]
    return "\n".join([*parts, _last(comparison)])


def _cells(difference: Difference) -> tuple[str, ...]:
    size = "" if difference.size == math.inf else f"{difference.size:.3g}"
    limit = f"{difference.limit:.3g}" if difference.limit else "none"
    where = (str(difference.step), str(difference.place))
    return (*where, difference.what, size, limit)


def _notes(
    a: DebugRun, b: DebugRun, null: DebugRun | None, comparison: Comparison
) -> list[str]:  # fmt: skip
    notes = [
        f"{len(comparison.steps)} steps in common. Ratios are compared by their logarithm to base "
        "2: 1 is twice or half."
    ]
    if null is None:
        notes += [
            "No null run: fixed limits hold, a factor of 2 or 6 dB. --null C, A once more with "
            "another seed, tells what is chance."
        ]
    elif (num_steps := len(common_steps(a, null))) < FEW_STEPS:
        notes += [
            f"The null run has {num_steps} steps in common with A, which are few; {FEW_STEPS} do."
        ]
    for run in (a, b):
        if ranks := run.ranks_without_records:
            notes += [
                f"{run.folder}: no records of ranks {_listed(ranks)}: what they received is not "
                "checked."
            ]
    missing = (
        ("A lacks", comparison.only_b), ("B lacks", comparison.only_a),
        ("The null run lacks", comparison.without_null),
    )  # fmt: skip
    notes += [f"{what}, so fixed or no limits hold: {_listed(p)}." for what, p in missing if p]
    return [*notes, ""]


def _listed(items: Sequence[Place] | Sequence[int], most: int = 5) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(map(str, items[:most])) + more


def _last(comparison: Comparison) -> str:
    if not comparison.first:
        return "No difference beyond chance."
    first = comparison.first[0]
    return (
        f"First difference: step {first.step}, {first.place}: {first.what}.\n"
        f"What to do: {first.advice}."
    )
