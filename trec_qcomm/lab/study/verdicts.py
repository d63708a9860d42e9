"""Verdicts: judge each configuration of a study by its records and stated limits.

Records of the Criteo example that are older than their field `limits` are judged by the example's
gate.

Knows: the records of one study, gates. Does not know: how the trainings were run, figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import isfinite
from typing import Literal

from trec_qcomm.lab.records import Limits, LimitsByMetric, Metrics, StudyRecord
from trec_qcomm.lab.study.gates import (
    BASELINE,
    EVALUATION,
    NULL,
    TRAINING,
    Verdict,
    gate,
    sequential_gate,
)
from trec_qcomm.lab.study.paired import Change, percent

Mode = Literal["training", "eval-only"]
MODES: tuple[Mode, ...] = ("training", "eval-only")
Lines = Mapping[str, Mapping[Mode, Verdict]]  # by configuration, those without records are absent

_CRITEO_TRAINING: LimitsByMetric = {"logloss": TRAINING, "progressive_logloss": TRAINING}
_CRITEO_EVALUATION: LimitsByMetric = {"ne": EVALUATION}


@dataclass(frozen=True)
class Rules:
    """Rules that were stated before a study ran, and by which it is judged.

    Args:
        training: limits of the metrics of trainings; None shows a metric that does not count.
        evaluation: limits of float32's model with the codecs switched on, in the same form.
        looks: numbers of seeds after which the study may stop; empty if it runs all.
    """

    training: LimitsByMetric
    evaluation: LimitsByMetric
    looks: tuple[int, ...] = ()

    @classmethod
    def from_record(cls, record: StudyRecord) -> Rules:
        """Return the rules of the study that a record belongs to."""
        if not record.limits and not record.evaluation_limits:
            return cls(_CRITEO_TRAINING, _CRITEO_EVALUATION, record.looks)
        return cls(record.limits, record.evaluation_limits, record.looks)

    def rules_for(self, name: str) -> Rules:
        """Return the rules for a configuration. The null run is no candidate and never stops."""
        return replace(self, looks=()) if name == NULL else self

    def limits(self, mode: Mode) -> LimitsByMetric:
        """Return the limits of trainings, or of evaluations."""
        return self.training if mode == "training" else self.evaluation

    def gated(self, mode: Mode) -> dict[str, Limits]:
        """Return the limits of the metrics that count."""
        return {name: limit for name, limit in self.limits(mode).items() if limit is not None}


def judge(
    ours: Sequence[StudyRecord],
    base: Sequence[StudyRecord],
    rules: Rules,
    mode: Mode,
    seeds: Sequence[int] | None = None,
) -> Verdict | None:
    """Return the verdict on a configuration; None if there is nothing to judge.

    Args:
        ours: records of the configuration.
        base: records of the baseline.
        rules: rules of the study.
        mode: "training" or "eval-only".
        seeds: planned seeds in the order of the looks; default: the baseline's seeds, sorted.
    Raises: ValueError: a metric is missing, or the baseline's metric cannot be compared with.
    """
    limits = rules.gated(mode)
    pairs = _pairs(ours, base, mode)
    if not limits or not pairs:
        return None
    order = sorted(_trained(base)) if seeds is None else seeds
    if rules.looks:
        order = list(takewhile(pairs.__contains__, order))[: rules.looks[-1]]
    changes = {
        name: [_change(name, seed, *pairs[seed], limit) for seed in order if seed in pairs]
        for name, limit in limits.items()
    }
    if not all(changes.values()):
        return None
    if rules.looks:
        return sequential_gate(changes, limits, rules.looks)
    summed = {name: Change.from_percents(values) for name, values in changes.items()}
    return Verdict(gate(summed, limits), max(change.n for change in summed.values()), summed)


def judge_all(
    groups: Mapping[str, Sequence[StudyRecord]],
    rules: Rules,
    mode: Mode,
    seeds: Sequence[int] | None = None,
) -> dict[str, Verdict]:
    """Return the verdict on each configuration that has one, by name; null run included.

    Args: groups: records of one study by configuration, the baseline's among them.
    """
    base = groups.get(BASELINE, ())
    judged = {
        name: judge(group, base, rules.rules_for(name), mode, seeds)
        for name, group in groups.items() if name != BASELINE
    }  # fmt: skip
    return {name: verdict for name, verdict in judged.items() if verdict is not None}


def lines_of(
    groups: Mapping[str, Sequence[StudyRecord]], rules: Rules, seeds: Sequence[int] | None = None
) -> Lines:
    """Return the verdicts of both modes by configuration, the null run first, by judge_all."""
    by_mode = {mode: judge_all(groups, rules, mode, seeds) for mode in MODES}
    names = sorted(set().union(*by_mode.values()), key=lambda name: (name != NULL, name))
    return {name: {m: by[name] for m, by in by_mode.items() if name in by} for name in names}


def shown_changes(
    ours: Sequence[StudyRecord], base: Sequence[StudyRecord], rules: Rules
) -> dict[str, Change]:
    """Return changes that do not count: those of metrics without limits, and with codecs off."""
    changes = {}
    for name, limit in rules.training.items():
        pairs = _pairs(ours, base, "training", exact=limit is not None)
        if pairs and all(name in metrics for pair in pairs.values() for metrics in pair):
            values = [_change(name, seed, *pair, limit) for seed, pair in pairs.items()]
            title = name if limit is None else f"{name}, codecs off"
            changes[title] = Change.from_percents(values)
    return changes


def check_baseline(name: str, seed: int, value: float, limit: Limits | None) -> None:
    """Raise ValueError if a metric of the baseline cannot be compared with."""
    is_relative = limit is None or limit.is_relative
    if not isfinite(value) or (is_relative and value <= 0):
        need = "a positive number, or is_relative=False" if is_relative else "a finite number"
        raise ValueError(f"metric {name}: seed {seed} of {BASELINE} is {value}, expected {need}")


def _trained(records: Sequence[StudyRecord], *, exact: bool = False) -> dict[int, Metrics]:
    """Return the metrics of trainings by seed. Args: exact: those with the codecs off."""
    return {
        r.seed: r.training.metrics_exact if exact else r.training.all_metrics
        for r in records if r.training
    }  # fmt: skip


def _pairs(
    ours: Sequence[StudyRecord], base: Sequence[StudyRecord], mode: Mode, *, exact: bool = False
) -> dict[int, tuple[Metrics, Metrics]]:
    """Return the metrics of the configuration and of the baseline, of seeds that have both."""
    mine, theirs = (_trained(records, exact=exact) for records in (ours, base))
    if mode == "training":
        return {seed: (mine[seed], theirs[seed]) for seed in sorted(mine) if seed in theirs}
    return {
        record.seed: (record.evaluation.metrics, record.evaluation.metrics_exact)
        for record in ours
        if record.evaluation and record.seed in theirs
    }


def _change(name: str, seed: int, ours: Metrics, base: Metrics, limit: Limits | None) -> float:
    """Return how much worse than the baseline a metric is; without limits, how much larger."""
    for metrics, what in ((ours, "the configuration"), (base, BASELINE)):
        if name not in metrics:
            raise ValueError(
                f"metric {name}: missing in seed {seed} of {what}, which has {', '.join(metrics)}"
            )
    value, baseline = ours[name], base[name]
    check_baseline(name, seed, baseline, limit)
    is_relative = limit is None or limit.is_relative
    change = percent(value, baseline) if is_relative else value - baseline
    return -change if limit is not None and limit.higher_is_better else change
