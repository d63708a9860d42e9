"""The rule by which a claim about losses holds, does not hold, or cannot be told.

Knows: paired changes, limits. Does not know: papers, trainings, files.
README.md states the rule for its readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, isfinite

from trec_qcomm.lab.records import Limits
from trec_qcomm.lab.study import TRAINING
from trec_qcomm.lab.study.paired import TAILS, Change
from trec_qcomm.lab.study.student_t import t_quantile_of_tail

HOLDS, FAILS, OPEN = "holds", "does not hold here", "cannot be told"
MIN_SEEDS = 16
Changes = Mapping[str, Change]
_NORMAL = {"one side": 1.645, "two sides": 1.960}  # quantiles, for numbers of seeds to come


@dataclass(frozen=True)
class Decision:
    """A verdict, and what it would take to tell more.

    Args:
        verdict: HOLDS, FAILS or OPEN.
        to_tell: what it would take; empty where nothing is left.
    """

    verdict: str
    to_tell: str = ""


@dataclass(frozen=True)
class Outcome:
    """What the records of a study say of a claim.

    Args:
        verdict: HOLDS, FAILS or OPEN.
        result: figures with their intervals.
        to_tell: what it would take to tell more; empty where nothing is left.
        fields: words of the claim's setting that the records know.
    """

    verdict: str
    result: str
    to_tell: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


def no_loss(changes: Changes, limits: Limits = TRAINING) -> Decision:
    """Decide whether a configuration costs nothing.

    It holds where every metric's mean change and one-sided 95 % limit are within the limits, over
    16 seeds or more. It does not hold where some metric's mean is above the limit of the mean and
    its 95 % interval above 0, or where a change is not finite. Else it cannot be told.

    Args: changes: paired change of each metric, in percent.  limits: limits of each of them.
    """
    if any(not isfinite(change.mean) or _is_worse(change, limits) for change in changes.values()):
        return Decision(FAILS)
    fewest = min(change.n for change in changes.values())
    if fewest >= MIN_SEEDS and all(_is_kept(change, limits) for change in changes.values()):
        more = limits.seeds - fewest
        return Decision(HOLDS, f"{more} seeds more, for the library's gate" if more > 0 else "")
    seeds = max(MIN_SEEDS, *(_seeds_to_tell(change, limits) for change in changes.values()))
    return Decision(OPEN, f"about {seeds} seeds, if mean and spread stay")


def lower(changes: Changes) -> Decision:
    """Decide whether losses are lower than those that they are compared with.

    It holds where every metric's 95 % interval is below 0; it does not where some metric's is above
    0; else it cannot be told.

    Args: changes: paired change of each metric, in percent.
    """
    if any(change.low is not None and change.low > 0 for change in changes.values()):
        return Decision(FAILS)
    if all(change.high is not None and change.high < 0 for change in changes.values()):
        return Decision(HOLDS)
    return Decision(OPEN, "more seeds, or other rows: some interval holds 0")


def all_of(decisions: Sequence[Decision]) -> Decision:
    """Decide about a claim that several configurations have to keep: the worst of them counts."""
    for verdict in (FAILS, OPEN):
        there = [decision for decision in decisions if decision.verdict == verdict]
        if there:
            return Decision(
                verdict, "; ".join(dict.fromkeys(d.to_tell for d in there if d.to_tell))
            )
    more = dict.fromkeys(decision.to_tell for decision in decisions if decision.to_tell)
    return Decision(HOLDS, "; ".join(more))


def _is_kept(change: Change, limits: Limits) -> bool:
    within_mean = limits.mean is None or change.mean <= limits.mean
    return within_mean and change.upper is not None and change.upper <= limits.upper


def _is_worse(change: Change, limits: Limits) -> bool:
    limit = limits.upper if limits.mean is None else limits.mean
    return change.mean > limit and change.low is not None and change.low > 0


def _seeds_to_tell(change: Change, limits: Limits) -> int:
    """Return after how many seeds a metric is decided, if its mean and spread stay."""
    if change.low is None or change.high is None or _is_kept(change, limits):
        return MIN_SEEDS
    error = (change.high - change.low) / 2 / t_quantile_of_tail(TAILS[0], change.n - 1)
    spread = error * change.n**0.5
    if limits.mean is not None and change.mean > limits.mean:
        return ceil((_NORMAL["two sides"] * spread / change.mean) ** 2)
    return ceil((_NORMAL["one side"] * spread / (limits.upper - change.mean)) ** 2)
