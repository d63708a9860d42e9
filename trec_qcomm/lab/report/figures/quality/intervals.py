"""Intervals: what each configuration of a study costs, beside the limits of the gates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from trec_qcomm.lab.records import Limits, Record, StudyRecord
from trec_qcomm.lab.report.figure import Cell, Figure, Finding, short
from trec_qcomm.lab.report.figures.quality import studies
from trec_qcomm.lab.report.style import BAND, INK, MUTED, OURS, grid
from trec_qcomm.lab.study.gates import BASELINE, NULL, PASS, Verdict
from trec_qcomm.lab.study.paired import Change
from trec_qcomm.lab.study.verdicts import MODES, Mode, Rules, judge

_LABELS = {  # of metrics that are known by name
    ("training", "logloss"): "test log loss",
    ("training", "progressive_logloss"): "progressive log loss",
    ("eval-only", "ne"): "evaluation only: NE",
}
_LINEAR = 0.1  # percent; beyond, the axis is logarithmic
_TICKS = (-1, -0.1, 0, 0.1, 1, 10)


@dataclass(frozen=True)
class Measure:
    """A metric that counts, of trainings or of evaluations, with its limits."""

    mode: Mode
    metric: str
    limits: Limits

    @property
    def label(self) -> str:
        """What a reader calls it."""
        where = "" if self.mode == "training" else "evaluation only: "
        label = _LABELS.get((self.mode, self.metric), where + self.metric)
        return label if self.limits.is_relative else f"{label} (difference)"

    @property
    def gate(self) -> str:
        """Limits in words."""
        mean = "" if self.limits.mean is None else f"mean at most {self.limits.mean}, "
        return f"{self.label} {mean}upper limit at most {self.limits.upper}"


@dataclass(frozen=True)
class Line:
    """A configuration, one line of the figure.

    Args:
        verdicts: verdict by mode; those without records are absent.
        is_null: the null run, which is not judged.
    """

    name: str
    verdicts: Mapping[Mode, Verdict]
    is_null: bool = False

    def change(self, measure: Measure) -> Change | None:
        """Return the change of a metric; None where there are no records."""
        verdict = self.verdicts.get(measure.mode)
        return None if verdict is None else verdict.changes.get(measure.metric)

    def text(self, mode: Mode) -> str | None:
        """Return what the gate says; None of the null run, or where there are no records."""
        verdict = self.verdicts.get(mode)
        return None if verdict is None or (self.is_null and mode == "training") else verdict.text

    def passed(self, measure: Measure) -> bool:
        """Return whether it passed the gate that this metric is part of."""
        return not self.is_null and self.text(measure.mode) == PASS

    @property
    def main(self) -> Verdict:
        """Verdict of the trainings; without trainings, of the evaluation."""
        return self.verdicts["training" if "training" in self.verdicts else "eval-only"]


def build(records: Sequence[Record]) -> list[Figure]:
    """Return a figure for each study."""
    figures: list[Figure] = []
    for setup, group in studies.by_setup(records).items():
        rules = Rules.from_record(group[-1])
        lines = lines_of(group, rules)
        if lines:
            key = "quality" if not figures else f"quality-{len(figures) + 1}"
            figures.append(figure(key, str(setup), lines, rules))
    return figures


def lines_of(
    records: Sequence[StudyRecord], rules: Rules, seeds: Sequence[int] | None = None
) -> list[Line]:
    """Return the configurations of one study by name, the null run first, against float32.

    Args:
        records: records of the study.
        rules: limits and looks.
        seeds: planned seeds; default those of float32.
    """
    groups, lines = studies.by_configuration(records), []
    base = groups.get(BASELINE, [])
    for name in sorted(groups, key=lambda name: (name != NULL, name)):
        group, by = groups[name], rules.rules_for(name)
        pairs = ((mode, judge(group, base, by, mode, seeds)) for mode in MODES)
        verdicts = {mode: verdict for mode, verdict in pairs if verdict is not None}
        if name != BASELINE and verdicts:
            lines.append(Line(name, verdicts, is_null=name == NULL))
    return lines


def figure(key: str, title: str, lines: Sequence[Line], rules: Rules) -> Figure:
    """Return the figure of one study. Args: title: what tells it from other studies."""
    every = (Measure(mode, *pair) for mode in MODES for pair in rules.gated(mode).items())
    measures = [measure for measure in every if any(line.change(measure) for line in lines)]
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
            *(f"{measure.label}, {what}" for measure in measures for what in _columns(measure)),
            "gate of trainings", "gate of evaluation",
        ),
        rows=[_row(line, measures) for line in lines],
        draw=lambda canvas: _draw(canvas, lines, measures),
        size=(9.2, 1.6 + 0.2 * len(lines)),
        notes=[*_notes(measures, rules), f"The axis is linear up to {_LINEAR} % and logarithmic "
               "beyond."],
        findings=_findings(title, lines, rules),
    )  # fmt: skip


def _columns(measure: Measure) -> Sequence[str]:
    unit = " [%]" if measure.limits.is_relative else ""
    return ("seeds", *(f"{what}{unit}" for what in ("mean", "low", "high", "upper")))


def _row(line: Line, measures: Sequence[Measure]) -> Sequence[Cell]:
    cells: list[Cell] = [line.name]
    for measure in measures:
        c = line.change(measure)
        cells += [c.n, c.mean, c.low, c.high, c.upper] if c else [None] * 5
    return (*cells, line.text("training"), line.text("eval-only"))


def _notes(measures: Sequence[Measure], rules: Rules) -> list[str]:
    """Return what the gates are, and by which rule the study stops."""
    limits = "; ".join(f"{measure.gate}" for measure in measures)
    least = {measure.mode: measure.limits.seeds for measure in measures}
    seeds = " and ".join(
        f"{n} of {'trainings' if mode == 'training' else 'evaluation'}" for mode, n in least.items()
    )
    notes = [f"Gates, in % unless said otherwise, over at least so many seeds ({seeds}): {limits}. "
             "Upper limits are one-sided with 95 %."]  # fmt: skip
    if rules.looks:
        notes.append(
            f"The study may stop after {', '.join(map(str, rules.looks))} seeds. Intervals and "
            "limits hold at all these looks together."
        )
    return notes


def _findings(title: str, lines: Sequence[Line], rules: Rules) -> list[Finding]:
    least = max((limit.seeds for limit in rules.gated("training").values()), default=0)
    tried = [
        (line, verdict) for line in lines
        if not line.is_null and (verdict := line.verdicts.get("training"))
        and (not verdict.is_open if rules.looks else verdict.num_seeds >= least)
    ]  # fmt: skip
    if not tried:
        return []
    passed = [line.name for line, verdict in tried if verdict.passed]
    other = [line.name for line, verdict in tried if not verdict.passed]
    seeds = f"at most {rules.looks[-1]} seeds" if rules.looks else f"{least} seeds or more"
    text = (
        f"{title}, {seeds}: passed the gate of trainings: "
        f"{', '.join(passed) or 'none'}; not shown to pass: {', '.join(other) or 'none'}."
    )
    return [Finding(text)]


def _alt(lines: Sequence[Line]) -> str:
    said = []
    for line in lines:
        first = next(iter(line.main.changes.values()))
        said.append(f"{line.name} {first.mean:+.3f} %")
    return f"Change of loss by configuration: {'; '.join(said)}."


def _draw(canvas: Any, lines: Sequence[Line], measures: Sequence[Measure]) -> None:
    panels = canvas.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    null = next((line for line in lines if line.is_null), None)
    for axes, measure in zip(panels, measures, strict=True):
        _panel(axes, lines, measure, None if null is None else null.change(measure))
    panels[0].set_yticks(
        range(len(lines)),
        [f"{short(line.name, 34)} ({line.main.num_seeds})" for line in lines],
    )
    panels[0].set_ylim(len(lines), -1)
    canvas.supxlabel("change [%]; dotted: the limit of the one-sided upper limit", fontsize=9.5)


def _panel(axes: Any, lines: Sequence[Line], measure: Measure, null: Change | None) -> None:
    grid(axes, "x")
    axes.set_title(measure.label)
    axes.set_xscale("symlog", linthresh=_LINEAR, linscale=2)
    axes.axvline(0, color=INK, linewidth=1)
    axes.axvline(measure.limits.upper, color=MUTED, linewidth=1, linestyle=":")
    if null is not None and null.low is not None:
        axes.axvspan(null.low, null.high, color=BAND, linewidth=0, zorder=0)
    for place, line in enumerate(lines):
        change = line.change(measure)
        if change is None or not isfinite(change.mean):
            continue
        color = MUTED if line.is_null else OURS
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
