"""Paired trainings: whether configurations lose no more, or less, than others of the same seeds.

Knows: records of quality.study, the rule of decisions.py. Does not know: papers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from examples.papers.decisions import OPEN, Changes, Decision, Outcome, all_of, lower, no_loss
from trec_qcomm import quality
from trec_qcomm.lab import records
from trec_qcomm.lab.records import LimitsByMetric, StudyRecord
from trec_qcomm.lab.study.gates import BASELINE
from trec_qcomm.lab.study.verdicts import Rules, judge

LIMITS: LimitsByMetric = {"logloss": quality.TRAINING, "progressive_logloss": quality.TRAINING}
SHORT = {"logloss": "test", "progressive_logloss": "progressive"}


def compare(
    path: Path,
    pairs: Sequence[tuple[str, str]],
    counted: Sequence[bool],
    is_lower: bool,
    called: str | None = None,
) -> Outcome | None:
    """Return what a file of records says of pairs of configurations; None where it has none.

    Args:
        pairs: names of configurations, and of those that they are compared with.
        counted: which of the pairs the verdict counts; it is that of the worst.
        is_lower: whether losses have to be lower, or just not above.
        called: name of the latter configurations in the result, see Claim.
    """
    changes = [(pair, count, changes_of(path, *pair))
               for pair, count in zip(pairs, counted, strict=True)]  # fmt: skip
    there = [(pair, change) for pair, _, change in changes if change]
    if not there:
        return None
    decide = lower if is_lower else no_loss
    decisions = [decide(change) for _, count, change in changes if count and change]
    decisions += [Decision(OPEN, f"trainings of {_named(pair)}")
                  for pair, _, change in changes if not change]  # fmt: skip
    numbers = [change.n for _, by_metric in there for change in by_metric.values()]
    decision = all_of(decisions)
    lines = [
        f"`{name}`{_against(other, called)}{_seeds_of(changes, numbers)}: {as_text(changes)}"
        for (name, other), changes in there
    ]
    return Outcome(
        decision.verdict, "<br>".join(lines), decision.to_tell, {"seeds": seeds_of(numbers)}
    )


def changes_of(path: Path, name: str, against: str = BASELINE) -> Changes:
    """Return the paired changes of a configuration against another one, in percent.

    They are empty where the two have no seed in common.
    """
    there = trainings_of(path)
    ours, base = (
        [r for r in there if r.configuration == configuration] for configuration in (name, against)
    )
    verdict = judge(ours, base, Rules(LIMITS, {}), "training")
    return {} if verdict is None else verdict.changes


def seeds_of(numbers: Sequence[int]) -> str:
    """Return the smallest and the largest number of seeds as text, or the only one."""
    text = " to ".join(str(n) for n in dict.fromkeys((min(numbers), max(numbers))))
    return f"{text} seed{'s' * (max(numbers) > 1)}"


def as_text(changes: Changes) -> str:
    """Return changes with their 95 % intervals, in percent, for a table."""
    return ", ".join(
        f"{SHORT[name]} {change.mean:+.3f}"
        + (f" [{change.low:+.3f}, {change.high:+.3f}]" if change.low is not None else "")
        for name, change in changes.items()
    )


def trainings_of(path: Path) -> Sequence[StudyRecord]:
    """Return the records of a study, read once as long as the file does not change."""
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=32)
def _read(path: Path, changed: int) -> list[StudyRecord]:
    """Return the records of a file. Args: changed: when it was last changed."""
    return [record for record in records.read(path) if isinstance(record, StudyRecord)]


def _named(pair: tuple[str, str]) -> str:
    return pair[0] if pair[1] == BASELINE else " and ".join(pair)


def _seeds_of(changes: Changes, numbers: Sequence[int]) -> str:
    """Return how many seeds a line has, where lines differ in that."""
    return "" if len(set(numbers)) == 1 else f" ({max(c.n for c in changes.values())} seeds)"


def _against(theirs: str, called: str | None) -> str:
    if theirs == BASELINE or called == "":
        return ""
    return f" against {called or f'`{theirs}`'}"
