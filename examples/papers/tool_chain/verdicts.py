"""Claims of the tool chain, decided by the records of its commands.

Knows: folders of records. Does not know: how they were made.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import mean

from attribution import rank_correlation, read_effects, read_truth
from life.lives import Lives
from life.table import reactions_to

from examples.papers.claims import FAILS, HOLDS, OPEN, Claim
from examples.papers.trainings import LIMITS
from trec_qcomm.lab import records
from trec_qcomm.lab.records import StudyRecord
from trec_qcomm.lab.study import EVALUATION
from trec_qcomm.lab.study.gates import BASELINE, Verdict
from trec_qcomm.lab.study.paired import Change, percent
from trec_qcomm.lab.study.verdicts import Mode, Rules, judge

RULES = Rules(LIMITS, {"ne": EVALUATION})
SETTING = "DLRM, dim 16, 4 ranks x 128, Adam and row-wise Adagrad"


def see(folder: Path) -> list[Claim]:
    """Decide whether the debugger knows which tables' codecs cost loss."""
    paths = folder / "attribution.jsonl", folder / "trainings.jsonl"
    if not all(path.exists() for path in paths):
        return []
    effects, truth = read_effects(paths[0]), read_truth(paths[1])
    real = {table: mean(changes) for table, changes in truth.items()}
    rho, low, high = rank_correlation(effects["float32"], real)
    seeds = min(map(len, truth.values()))
    return [
        Claim(
            text="A tool shows which tables' low precision costs accuracy, from trained models "
            "alone",
            source="ours",
            setting=f"{SETTING}, bound .3 on one table after the other, {seeds} seeds",
            result=f"rank correlation with a training for each of {len(real)} tables {rho:.2f} "
            f"[{low:.2f}, {high:.2f}]",
            verdict=HOLDS if low > 0 else FAILS if high < 0 else OPEN,
            to_tell=""
            if low > 0 or high < 0
            else "more seeds of the trainings, whose own ranking is noisy",
        )
    ]


def choose(folder: Path) -> list[Claim]:
    """Decide whether the searched config keeps the accuracy."""
    claims = []
    mode: Mode
    for name, mode, what in (
        ("gate.jsonl", "training", "trained with"),
        ("served.jsonl", "eval-only", "switched on for models of float32"),
    ):
        verdict = _verdict(folder / name, mode)
        if verdict is None:
            continue
        failed = verdict.text.startswith("FAIL")
        claims.append(
            Claim(
                text="A search adapts a model to low precision without loss of accuracy",
                source="abstract",
                setting=f"{SETTING}, searched plan {what}, {verdict.num_seeds} seeds, change in %",
                result=", ".join(
                    f"{m.replace('_', ' ')} {c}"
                    for m, c in verdict.changes.items()
                    if m in RULES.gated(mode)
                ),
                verdict=HOLDS if verdict.passed else FAILS if failed else OPEN,
                to_tell="" if verdict.passed or failed else f"50 seeds: {verdict.text}",
            )
        )
    return claims


def _verdict(path: Path, mode: Mode) -> Verdict | None:
    if not path.exists():
        return None
    there = [record for record in records.read(path) if isinstance(record, StudyRecord)]
    base = [record for record in there if record.configuration == BASELINE]
    ours = [record for record in there if record.configuration == "searched"]
    return judge(ours, base, RULES, mode)


def guard(folder: Path) -> list[Claim]:
    """Decide whether a guard keeps the accuracy over the life of a model."""
    names = [n for n in ("lifespan.jsonl", "seeds.jsonl", "null.jsonl") if (folder / n).exists()]
    claims = []
    for name in names:
        lives = Lives()
        lives.add(records.read(folder / name))
        if (folder / "guard.jsonl").exists():
            lives.add(records.read(folder / "guard.jsonl"))
        claims += [claim for drift in lives.drifts for claim in _of_drift(lives, drift)]
    return claims


def _of_drift(lives: Lives, drift: str) -> list[Claim]:
    """Decide one drift: `none`, or one of those that have several seeds."""
    reactions = reactions_to(lives, drift)
    if not reactions:
        return []
    guarded = lives.of_drift(drift, "guard")
    steps = next(iter(guarded.values())).steps
    setting = (
        f"2 ranks x 128, small dense layers, {steps} steps, drift `{drift}`, {len(reactions)} seeds"
    )
    if drift == "none":
        trips = sum(r.false_trips for r in reactions.values())
        return [
            Claim(
                text="A guard leaves a model alone that does not drift",
                source="ours",
                setting=setting,
                result=f"{trips} false alarms",
                verdict=HOLDS if not trips else FAILS,
            )
        ]
    if not drift.startswith(("shift", "shrink", "spike")):
        return []
    exact = lives.of_drift(drift, BASELINE)
    percents = [
        percent(guarded[seed].metrics["logloss"], exact[seed].metrics["logloss"])
        for seed in sorted(guarded.keys() & exact.keys())
    ]
    if not percents:
        return []
    change = Change.from_percents(percents)
    moved = Counter(table for reaction in reactions.values() for table in reaction.tables)
    text = ", ".join(f"`{table}` in {n}" for table, n in moved.items()) or "nothing in any"
    limit = LIMITS["logloss"]
    assert limit is not None
    kept = (
        change.upper is not None
        and change.upper <= limit.upper
        and (limit.mean is None or change.mean <= limit.mean)
    )
    return [
        Claim(
            text="A tool chain keeps the accuracy over the lifespan of a model",
            source="abstract",
            setting=f"{setting}; test logloss with a guard against float32, change in %",
            result=f"{change}; the guard moved {text} of {len(reactions)} trainings",
            verdict=HOLDS if kept and len(percents) >= 16 else OPEN,
            to_tell=""
            if kept and len(percents) >= 16
            else "16 seeds or more, other drifts, and rows of months",
        )
    ]
