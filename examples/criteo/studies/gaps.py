"""Gaps to float32 along long trainings: their table, and their picture.

The gap at a step is the mean loss of the EVERY steps before it, or of the test rows, over that of
float32 from the same seed. Its slope is that of a line through the gaps behind WARM steps, or
behind the first pass over other rows.

Knows: records of length.py and of sequences/accuracy.py. Does not know: trainings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trec_qcomm.lab.records import StudyRecord
from trec_qcomm.lab.report.figure import Figure
from trec_qcomm.lab.report.style import MUTED, Looks, grid
from trec_qcomm.lab.study.gates import BASELINE, NULL
from trec_qcomm.lab.study.paired import Change, percent

EVERY = 500  # steps whose losses make one point
WARM = 1000  # steps before the first gap that counts for the slope
LIMIT = 0.02  # percent, of the mean at the end


@dataclass(frozen=True)
class Gaps:
    """Gaps of one config to float32, in percent of the loss; positive is worse.

    Args:
        steps: [S] the steps.
        by_seed: [seeds, S] of each paired training.
        trained: [seeds] of the trained model, on the rows that come after the training.
    """

    steps: np.ndarray
    by_seed: np.ndarray
    trained: np.ndarray

    def at(self, step: int) -> Change:
        """Return the gap at a step, the mean of the two points up to it, over seeds."""
        near = self.by_seed[:, self.steps <= step][:, -2:]
        return Change.from_percents(near.mean(1).tolist())

    @property
    def slope(self) -> Change:
        """Percent in 10,000 steps, of a line through each seed's gaps."""
        counted = self.steps > (WARM if self.steps[0] == EVERY else self.steps[0])
        lines = np.polyfit(self.steps[counted] / 10_000, self.by_seed[:, counted].T, 1)
        return Change.from_percents(lines[0].tolist())


def gaps_of(records: Iterable[StudyRecord]) -> dict[str, Gaps]:
    """Return the gaps of each config that has trainings, the null run among them."""
    by_name: dict[str, dict[int, Mapping[str, float]]] = {}
    for record in records:
        if record.training is not None:
            metrics = by_name.setdefault(record.configuration, {})
            metrics[record.seed] = record.training.metrics
    exact, made = by_name.pop(BASELINE, {}), {}
    for config, runs in by_name.items():
        seeds = sorted(runs.keys() & exact.keys())
        if seeds:
            steps = _steps_of(exact[seeds[0]])
            names = [f"loss_at_{step}" for step in steps]
            names.append("logloss" if "logloss" in exact[seeds[0]] else "loss")
            gaps = np.array(
                [[percent(runs[seed][name], exact[seed][name]) for name in names] for seed in seeds]
            )
            made[config] = Gaps(np.array(steps), gaps[:, :-1], gaps[:, -1])
    return made


def _steps_of(metrics: Mapping[str, float]) -> list[int]:
    names = (name for name in metrics if name.startswith("loss_at_"))
    return sorted(int(name.removeprefix("loss_at_")) for name in names)


def table(records: Sequence[StudyRecord]) -> str:
    """Return markdown: float32's loss and AUC on the way, then each config's gaps and slope."""
    exact = [r.training.metrics for r in records if r.configuration == BASELINE and r.training]
    steps = _steps_of(exact[0])
    usual = (1000, 2000, 5000, 10_000) if steps[0] == EVERY else steps[1:-1:2]
    shown = [step for step in usual if step < steps[-1]] + steps[-1:]
    lines = [f"| {BASELINE} | " + " | ".join(f"{step} steps" for step in shown) + " |"]
    lines.append("|---" * (len(shown) + 1) + "|")
    for kind in ("loss", "auc"):
        if f"{kind}_at_{shown[0]}" in exact[0]:
            means = [np.mean([m[f"{kind}_at_{step}"] for m in exact]) for step in shown]
            lines.append(f"| {kind} | " + " | ".join(f"{mean:.4f}" for mean in means) + " |")
    columns = [f"at {step}, %" for step in shown]
    columns += ["trained model on later rows, %", "slope, % in 10,000 steps"]
    lines += ["", f"| gap of | seeds | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for name, gaps in sorted(gaps_of(records).items(), key=lambda item: item[0] != NULL):
        trained = Change.from_percents(gaps.trained.tolist())
        cells = [*(gaps.at(step) for step in shown), trained, gaps.slope]
        lines.append(f"| {name} | {len(gaps.by_seed)} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def picture(records: Sequence[StudyRecord]) -> Figure:
    """Return the gap of each config against the step, with the interval of the mean as a band."""
    gaps = gaps_of(records)

    def draw(canvas: Any) -> None:
        axes, looks = canvas.subplots(), Looks(sorted(gaps))
        for name, of_config in gaps.items():
            color = looks[name].color
            changes = [Change.from_percents(of_seeds.tolist()) for of_seeds in of_config.by_seed.T]
            axes.plot(of_config.steps, [c.mean for c in changes], label=name, color=color)
            if all(c.low is not None for c in changes):
                band = [c.low for c in changes], [c.high for c in changes]
                axes.fill_between(of_config.steps, *band, color=color, alpha=0.15, linewidth=0)
        axes.axhline(LIMIT, color=MUTED, linestyle=":", label="limit of the mean")
        axes.set(xlabel="training step", ylabel="loss above float32's, %")
        axes.legend(ncols=3)
        grid(axes)

    rows = [(name, *of_config.by_seed.mean(0)) for name, of_config in gaps.items()]
    columns = ["config", *(str(step) for step in next(iter(gaps.values())).steps)]
    return Figure(
        key="length", title="Gap to float32 against the step", columns=columns, rows=rows,
        draw=draw, size=(7.0, 3.4),
    )  # fmt: skip
