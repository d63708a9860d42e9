"""The tool chain of the Criteo example: tables seen, codecs chosen, a model guarded.

Each function takes a folder of records. Knows: records. Does not know: how they were made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np

from examples.papers.decisions import FAILS, HOLDS, MIN_SEEDS, OPEN, Outcome
from examples.papers.rules.trainings import LIMITS
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, GuardRecord, StudyRecord, TrainingRecord
from trec_qcomm.lab.study import EVALUATION
from trec_qcomm.lab.study.gates import BASELINE
from trec_qcomm.lab.study.paired import Change, percent
from trec_qcomm.lab.study.verdicts import Mode, Rules, judge


def read(path: Path) -> Path | None:
    """Return a folder; nothing where the path is none."""
    return path if path.is_dir() else None


def seen_without_training(folder: Path) -> Outcome:
    """Decide whether a tool knows which tables' codecs cost loss: rank correlation, its interval.

    Truth is a training for each table; its cost is the mean change of the test's NE.
    """
    added, nes = defaultdict(list), defaultdict(dict)
    for record in records.read(folder / "attribution.jsonl"):
        if isinstance(record, BenchRecord) and record.case["trained"] == "float32":
            added[record.case["table"]].append(float(record.figures["added_loss"]))
    for record in records.read(folder / "trainings.jsonl"):
        if isinstance(record, StudyRecord) and record.training is not None:
            nes[record.configuration][record.seed] = record.training.metrics["ne"]
    exact = nes[BASELINE]
    changes = {table: [percent(nes[table][seed], exact[seed]) for seed in nes[table]]
               for table in added if table in nes}  # fmt: skip
    means = [fmean(added[table]) for table in changes], [fmean(c) for c in changes.values()]
    rho = float(np.corrcoef(*(np.argsort(np.argsort(each)) for each in means))[0, 1])
    half = 1.96 / (len(changes) - 3) ** 0.5  # Fisher's z
    low, high = (float(np.tanh(np.arctanh(rho) + side * half)) for side in (-1, 1))
    return Outcome(
        HOLDS if low > 0 else FAILS if high < 0 else OPEN,
        f"rank correlation with a training for each of {len(changes)} tables {rho:.2f} "
        f"[{low:.2f}, {high:.2f}]",
        "" if low > 0 or high < 0 else "more seeds of the trainings, whose own ranking is noisy",
        {"seeds": f"{min(map(len, changes.values()))} seeds"},
    )


def searched(folder: Path, file: str, mode: Mode) -> Outcome | None:
    """Decide by the library's gate whether a searched config keeps the accuracy."""
    there = [r for r in records.read(folder / file) if isinstance(r, StudyRecord)]
    ours, base = ([r for r in there if r.configuration == name] for name in ("searched", BASELINE))
    rules = Rules(LIMITS, {"ne": EVALUATION})
    verdict = judge(ours, base, rules, mode)
    if verdict is None:
        return None
    failed = verdict.text.startswith("FAIL")
    return Outcome(
        HOLDS if verdict.passed else FAILS if failed else OPEN,
        ", ".join(f"{name.replace('_', ' ')} {change}" for name, change in verdict.changes.items()
                  if name in rules.gated(mode)),
        "" if verdict.passed or failed else f"50 seeds: {verdict.text}",
        {"seeds": f"{verdict.num_seeds} seeds"},
    )  # fmt: skip


def guarded(folder: Path, file: str, drift: str) -> Outcome:
    """Decide whether a guard keeps the test's loss near float32's though a model drifts."""
    by_name, alarms = _lives(folder / file, drift)
    ours, base = by_name["guard"], by_name[BASELINE]
    change = Change.from_percents([percent(ours[seed].metrics["logloss"],
                                           base[seed].metrics["logloss"])
                                   for seed in sorted(ours.keys() & base.keys())])  # fmt: skip
    tables = {seed: {a.table for a in alarms[seed] if a.event == "raise" and a.step > _at(life)}
              for seed, life in ours.items()}  # fmt: skip
    moved = Counter(table for each in tables.values() for table in each)
    text = ", ".join(f"`{table}` in {n}" for table, n in moved.items()) or "nothing in any"
    limit = LIMITS["logloss"]
    assert limit is not None
    assert limit.mean is not None
    kept = change.n >= MIN_SEEDS and change.mean <= limit.mean
    kept = kept and change.upper is not None and change.upper <= limit.upper
    return Outcome(
        HOLDS if kept else OPEN,
        f"{change}; the guard moved {text} of {len(ours)} trainings",
        "" if kept else "16 seeds or more, other drifts, and rows of months",
        _fields(ours),
    )


def left_alone(folder: Path, file: str) -> Outcome:
    """Decide whether a guard has no false alarm in trainings without a drift."""
    by_name, alarms = _lives(folder / file, "none")
    num_alarms = sum(len(alarms[seed]) for seed in by_name["guard"])
    verdict = FAILS if num_alarms else HOLDS
    return Outcome(verdict, f"{num_alarms} false alarms", fields=_fields(by_name["guard"]))


def _lives(
    path: Path, drift: str
) -> tuple[dict[str, dict[int, TrainingRecord]], dict[int, list[GuardRecord]]]:
    """Return the trainings of one drift by name and seed, and the alarms of the guard by seed."""
    made = records.read(path)
    by_name: dict[str, dict[int, TrainingRecord]] = defaultdict(dict)
    for record in made:
        if isinstance(record, TrainingRecord) and record.setup["drift"] == drift:
            by_name[record.configuration][record.seed] = record
    seeds = {life.run: seed for seed, life in by_name["guard"].items()}
    alarms: dict[int, list[GuardRecord]] = defaultdict(list)
    for record in made:
        is_alarm = isinstance(record, GuardRecord) and record.event in ("trip", "raise", "warn")
        if is_alarm and record.run in seeds:
            alarms[seeds[record.run]].append(record)
    return by_name, alarms


def _at(life: TrainingRecord) -> int:
    """Return the step of a training's drift."""
    return int(life.setup["at_step"])


def _fields(lives: dict[int, TrainingRecord]) -> dict[str, str]:
    steps = next(iter(lives.values())).steps
    return {"steps": f"{steps} steps", "seeds": f"{len(lives)} seeds"}


RULES: tuple[Callable[..., Outcome | None], ...] = (
    seen_without_training, searched, guarded, left_alone,
)  # fmt: skip
