"""Claims that some configurations lose less than others, from paired trainings.

Knows: judged trainings, the rule of decisions.py. Does not know: papers, files.
"""

from __future__ import annotations

from collections.abc import Sequence

from examples.papers.claims import OPEN, Claim, Source
from examples.papers.decisions import Decision, all_of, lower
from examples.papers.trainings import Judged, as_text, claim_of, seeds_of


def lower_losses(
    judged: Judged,
    text: str,
    *,
    source: Source,
    setting: str,
    pairs: Sequence[tuple[str, str]],
    base: str = "",
    note: str = "",
) -> list[Claim]:
    """Return the claim that some configurations lose less than others; none without records.

    Args:
        judged: what the records say.
        text, source, setting, note: arguments of Judged.no_loss.
        pairs: names of configurations, and of those that they are compared with.
        base: what the latter are called in the table; empty: their names.
    """
    changes = {pair: judged.changes(*pair) for pair in pairs if pair[0] in judged.verdicts}
    changes = {pair: change for pair, change in changes.items() if change}
    if not changes:
        return []
    decisions = [lower(change) for change in changes.values()]
    decisions += [
        Decision(OPEN, f"trainings of {ours} and {theirs}")
        for ours, theirs in pairs
        if (ours, theirs) not in changes
    ]
    numbers = [change.n for by_metric in changes.values() for change in by_metric.values()]
    return [
        claim_of(
            all_of(decisions), text, source=source, setting=f"{setting}; {seeds_of(numbers)}",
            result="<br>".join(
                f"`{ours}` against {base or f'`{theirs}`'}: {as_text(change)}"
                for (ours, theirs), change in changes.items()
            ),
            note=note,
        )
    ]  # fmt: skip
