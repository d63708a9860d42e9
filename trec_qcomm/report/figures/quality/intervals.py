"""Intervals: what each configuration of a study costs, beside the limits of the gates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trec_qcomm.records import Record, StudyRecord
from trec_qcomm.report.figure import Cell, Figure, Finding, short
from trec_qcomm.report.figures.quality import studies
from trec_qcomm.report.statistics import (
    BASELINE,
    MAX_MEAN,
    MAX_UPPER,
    MIN_SEEDS,
    NULL,
    PASS,
    Change,
    eval_only_gate,
    training_gate,
)
from trec_qcomm.report.style import BAND, INK, MUTED, OURS, grid

_MEASURES = {  # by key of studies.changes
    "test": "test log loss",
    "progressive": "progressive log loss",
    "eval_only": "evaluation only: NE",
}
_LINEAR = 0.1  # percent; beyond, the axis is logarithmic
_TICKS = (-1, -0.1, 0, 0.1, 1, 10)


@dataclass(frozen=True)
class Line:
    """A configuration, one line of the figure.

    Args:
        changes: what studies.changes returns.
        training, eval_only: what the gates say; "" where there are no records for them.
    """

    name: str
    changes: Mapping[str, Change]
    training: str = ""
    eval_only: str = ""

    def passed(self, measure: str) -> bool:
        """Return whether it passed the gate that this measure is part of."""
        return (self.eval_only if measure == "eval_only" else self.training) == PASS

    @property
    def main(self) -> Change:
        """Change of the trainings' test loss; without trainings, of the evaluation."""
        return self.changes["test" if "test" in self.changes else "eval_only"]

    @property
    def num_seeds(self) -> int:
        """Number of seeds of the main change."""
        return self.main.n


def build(records: Sequence[Record]) -> list[Figure]:
    """Return a figure for each study."""
    figures: list[Figure] = []
    for setup, group in studies.by_setup(records).items():
        lines = lines_of(group)
        if lines:
            key = "quality" if not figures else f"quality-{len(figures) + 1}"
            figures.append(figure(key, str(setup), lines))
    return figures


def lines_of(records: Sequence[StudyRecord]) -> list[Line]:
    """Return the configurations of one study by name, the null run first, against float32."""
    groups, lines = studies.by_configuration(records), []
    for name in sorted(groups, key=lambda name: (name != NULL, name)):
        changes = studies.changes(groups[name], groups.get(BASELINE, []))
        if name == BASELINE or not changes:
            continue
        training = eval_only = ""
        if "test" in changes and name != NULL:
            training = training_gate(changes["test"], changes["progressive"])
        if "eval_only" in changes:
            eval_only = eval_only_gate(changes["eval_only"])
        lines.append(Line(name, changes, training, eval_only))
    return lines


def figure(key: str, title: str, lines: Sequence[Line]) -> Figure:
    """Return the figure of one study. Args: title: what tells it from other studies."""
    measures = [m for m in _MEASURES if any(m in line.changes for line in lines)]
    ends = ("mean [%]", "low [%]", "high [%]", "upper [%]")
    return Figure(
        key=key,
        title=f"Quality of each configuration: {title}",
        caption=(
            "The change against float32 training of the same seeds; right of zero is worse. Bars "
            "are 95 % intervals of the mean. Full dots passed their gate, which takes many seeds "
            "(beside the name: of trainings; of evaluations see the table). Of the others it was "
            "not shown that they keep quality, which is not to say that they lose it: for that "
            "look whether the bar is right of zero and of the grey band, the noise of a training "
            "with nothing changed."
        ),
        alt=_alt(lines),
        columns=(
            "configuration",
            *(f"{_MEASURES[m]}, {what}" for m in measures for what in ("seeds", *ends)),
            "gate of trainings", "gate of evaluation",
        ),
        rows=[_row(line, measures) for line in lines],
        draw=lambda canvas: _draw(canvas, lines, measures),
        size=(9.2, 1.6 + 0.2 * len(lines)),
        notes=[
            f"Gates: of trainings, over at least {MIN_SEEDS['training']} seeds the mean of both "
            f"losses at most {MAX_MEAN} %, and the one-sided 95 % upper limit at most "
            f"{MAX_UPPER['training']} %; of evaluation, over at least {MIN_SEEDS['eval-only']} "
            f"seeds an upper limit of at most {MAX_UPPER['eval-only']} %.",
            f"The axis is linear up to {_LINEAR} % and logarithmic beyond.",
        ],
        findings=_findings(title, lines),
    )  # fmt: skip


def _row(line: Line, measures: Sequence[str]) -> Sequence[Cell]:
    cells: list[Cell] = [line.name]
    for measure in measures:
        c = line.changes.get(measure)
        cells += [c.n, c.mean, c.low, c.high, c.upper] if c else [None] * 5
    return (*cells, line.training or None, line.eval_only or None)


def _findings(title: str, lines: Sequence[Line]) -> list[Finding]:
    tried = [line for line in lines if line.training and line.num_seeds >= MIN_SEEDS["training"]]
    if not tried:
        return []
    passed = [line.name for line in tried if line.training == PASS]
    other = [line.name for line in tried if line.training != PASS]
    text = (
        f"{title}, {MIN_SEEDS['training']} seeds or more: passed the gate of trainings: "
        f"{', '.join(passed) or 'none'}; not shown to pass: {', '.join(other) or 'none'}."
    )
    return [Finding(text)]


def _alt(lines: Sequence[Line]) -> str:
    said = [f"{line.name} {line.main.mean:+.3f} %" for line in lines]
    return f"Change of loss by configuration: {'; '.join(said)}."


def _draw(canvas: Any, lines: Sequence[Line], measures: Sequence[str]) -> None:
    panels = canvas.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    null = next((line.changes for line in lines if line.name == NULL), {})
    for axes, measure in zip(panels, measures, strict=True):
        _panel(axes, lines, measure, null.get(measure))
    panels[0].set_yticks(
        range(len(lines)), [f"{short(line.name, 34)} ({line.num_seeds})" for line in lines]
    )
    panels[0].set_ylim(len(lines), -1)
    canvas.supxlabel("change [%]; dotted: the limit of the one-sided upper limit", fontsize=9.5)


def _panel(axes: Any, lines: Sequence[Line], measure: str, null: Change | None) -> None:
    grid(axes, "x")
    axes.set_title(_MEASURES[measure])
    axes.set_xscale("symlog", linthresh=_LINEAR, linscale=2)
    axes.axvline(0, color=INK, linewidth=1)
    limit = MAX_UPPER["eval-only" if measure == "eval_only" else "training"]
    axes.axvline(limit, color=MUTED, linewidth=1, linestyle=":")
    if null is not None and null.low is not None:
        axes.axvspan(null.low, null.high, color=BAND, linewidth=0, zorder=0)
    for place, line in enumerate(lines):
        change = line.changes.get(measure)
        if change is None:
            continue
        color = MUTED if line.name == NULL else OURS
        if change.low is not None:
            axes.plot([change.low, change.high], [place, place], color=color, linewidth=1.6)
        fill = color if line.passed(measure) else "white"
        axes.plot([change.mean], [place], "o", color=color, markerfacecolor=fill, markersize=5)
    low, high = axes.get_xlim()
    axes.set_xticks(
        [t for t in _TICKS if low <= t <= high], [f"{t:g}" for t in _TICKS if low <= t <= high]
    )
    axes.set_xlim(low, high)
    axes.minorticks_off()
