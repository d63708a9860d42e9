"""Quality of a study: what each configuration costs a model, and that over the bytes it sends.

A study is the records of paired trainings of one setup and number of ranks; one that may stop
early is a file, as its seeds have an order. So the stages of a search are studies of their own.
Quality is joined with the bytes of runs whose config means the same, whatever its name. Where the
two setups differ, the axes say both.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from trec_qcomm.lab.records import Limits, Record, Scalar, StudyRecord
from trec_qcomm.lab.report import style
from trec_qcomm.lab.report.figure import Cell, Figure, numbered, short
from trec_qcomm.lab.report.runs import (
    Run,
    baseline_of,
    by_configuration,
    by_setup,
    config_id,
    grouped,
)
from trec_qcomm.lab.report.style import Looks
from trec_qcomm.lab.study.gates import BASELINE, NULL, PASS, Verdict
from trec_qcomm.lab.study.paired import Change
from trec_qcomm.lab.study.verdicts import MODES, Lines, Mode, Rules, judge, lines_of

_LABELS = {  # of metrics that are known by name
    ("training", "logloss"): "test log loss",
    ("training", "progressive_logloss"): "progressive log loss",
    ("eval-only", "ne"): "evaluation only: NE",
}
_LINEAR = 0.1  # percent; beyond, the axis is logarithmic

Measure = tuple[Mode, str, Limits]  # a metric that counts, of trainings or of evaluations


def studies_of(records: Iterable[Record]) -> list[list[StudyRecord]]:
    """Return the records of each study."""
    every = (record for record in records if isinstance(record, StudyRecord))
    return list(grouped(every, lambda r: (r.num_ranks, r.setup_key, _stage(r))).values())


def _stage(record: StudyRecord) -> str:
    """Return the file of a study that may stop early; of all others nothing."""
    return record.origin.file if record.looks and record.origin else ""


def study_title(num_ranks: int, setup: Mapping[str, Scalar]) -> str:
    """Return a title such as "4 ranks x 128, dim 16, dense layers by adam"."""
    parts = [f"{num_ranks} rank{'s' * (num_ranks != 1)}"]
    if "batch_size" in setup:
        parts[0] += f" x {setup['batch_size']}"
    for name, text in (("embedding_dim", "dim"), ("dense_optimizer", "dense layers by")):
        parts += [f"{text} {setup[name]}"] if name in setup else []
    return ", ".join(parts)


def _title(study: Sequence[StudyRecord]) -> str:
    stage = Path(_stage(study[0])).stem
    return study_title(study[0].num_ranks, study[0].setup) + f", {stage}" * bool(stage)


def by_config(records: Sequence[StudyRecord]) -> dict[str, list[StudyRecord]]:
    """Return the records of one study by configuration.

    Names of equal configs are one, by the name of most records. Where one name stands for two
    configs, each bears the beginning of its hash.
    """

    def key(record: StudyRecord) -> str:
        # The null run has float32's config, so only its name tells it apart.
        is_alone = record.configuration in (BASELINE, NULL)
        return record.configuration if is_alone else config_id(record)

    groups = grouped(records, key)
    names = {
        key: Counter(record.configuration for record in group).most_common(1)[0][0]
        for key, group in groups.items()
    }
    ambiguous = {name for name, count in Counter(names.values()).items() if count > 1}
    return {
        f"{names[key]} ({key[:8]})" if names[key] in ambiguous else names[key]: group
        for key, group in groups.items()
    }


def intervals(records: Sequence[Record]) -> list[Figure]:
    """Return what the configurations of each study cost, beside the limits of its gates."""
    figures: list[Figure] = []
    for study in studies_of(records):
        rules = Rules.from_record(study[-1])
        if lines := lines_of(by_config(study), rules):
            key = numbered("quality", len(figures) + 1)
            figures.append(interval_figure(key, _title(study), lines, rules))
    return figures


def interval_figure(key: str, title: str, lines: Lines, rules: Rules) -> Figure:
    """Return the figure of one study. Args: title: what tells it from other studies."""
    every = ((mode, *pair) for mode in MODES for pair in rules.gated(mode).items())
    measures = [m for m in every if any(_change(verdicts, m) for verdicts in lines.values())]
    columns = ["configuration"]
    for measure in measures:
        unit = " [%]" if measure[2].is_relative else ""
        whats = ("seeds", *(what + unit for what in ("mean", "low", "high", "upper")))
        columns += [f"{_label(measure)}, {what}" for what in whats]
    rows = []
    for name, verdicts in lines.items():
        cells: list[Cell] = [name]
        for measure in measures:
            c = _change(verdicts, measure)
            cells += [c.n, c.mean, c.low, c.high, c.upper] if c else [None] * 5
        rows.append((*cells, *(_gate(name, verdicts, mode) for mode in MODES)))
    return Figure(
        key=key,
        title=f"Quality of each configuration: {title}",
        columns=(*columns, "gate of trainings", "gate of evaluation"),
        rows=rows,
        draw=lambda canvas: _draw_intervals(canvas, lines, measures),
        size=(9.2, 1.6 + 0.2 * len(lines)),
        caption="95 % intervals against float32 of the same seeds (their number beside the name). "
        "A full dot passed its gate; of the others it was not shown that they keep quality. The "
        "grey band is the noise of a training with nothing changed.",
    )


def _label(measure: Measure) -> str:
    mode, metric, limits = measure
    label = _LABELS.get((mode, metric), "evaluation only: " * (mode == "eval-only") + metric)
    return label if limits.is_relative else f"{label} (difference)"


def _change(verdicts: Mapping[Mode, Verdict], measure: Measure) -> Change | None:
    mode, metric, _ = measure
    return verdicts[mode].changes.get(metric) if mode in verdicts else None


def _gate(name: str, verdicts: Mapping[Mode, Verdict], mode: Mode) -> str | None:
    """Return what the gate says; None of the null run's trainings, or without records."""
    is_judged = mode in verdicts and (name != NULL or mode == "eval-only")
    return verdicts[mode].text if is_judged else None


def _draw_intervals(canvas: Any, lines: Lines, measures: Sequence[Measure]) -> None:
    panels = canvas.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for axes, measure in zip(panels, measures, strict=True):
        style.grid(axes, "x")
        axes.set_title(_label(measure))
        axes.axvline(0, color=style.INK, linewidth=1)
        axes.axvline(measure[2].upper, color=style.MUTED, linewidth=1, linestyle=":")
        for place, (name, verdicts) in enumerate(lines.items()):
            change = _change(verdicts, measure)
            if change is None or not isfinite(change.mean):
                continue
            color = style.MUTED if name == NULL else style.OURS
            if change.low is not None:
                axes.plot([change.low, change.high], [place, place], color=color, linewidth=1.6)
                if name == NULL:
                    axes.axvspan(change.low, change.high, color=style.BAND, linewidth=0, zorder=0)
            fill = color if name != NULL and verdicts[measure[0]].text == PASS else "white"
            axes.plot([change.mean], [place], "o", color=color, markerfacecolor=fill, markersize=5)
        style.signed_log(axes, "x", _LINEAR)
    names = [f"{short(n, 34)} ({next(iter(v.values())).num_seeds})" for n, v in lines.items()]
    panels[0].set_yticks(range(len(lines)), names)
    panels[0].set_ylim(len(lines), -1)
    canvas.supxlabel("change [%]; dotted: the limit of the one-sided upper limit", fontsize=9.5)


@dataclass(frozen=True)
class Point:
    """A configuration with its quality, and its bytes where they are known.

    Args:
        name: name in the study.
        configuration: name of the runs with its bytes; None where there are none.
        nbytes: bytes that a host sends in a step.
        change: change of the log loss, in percent.
    """

    name: str
    configuration: str | None
    nbytes: float | None
    change: Change


@dataclass(frozen=True)
class Panel:
    """Points of one study. Args: at: what labels say of the setups of bytes and of quality."""

    title: str
    points: Sequence[Point]
    at: tuple[str, str]


def rate_distortion(records: Sequence[Record], runs: Sequence[Run], looks: Looks) -> Figure | None:
    """Return one figure with a panel for each study whose configurations have known bytes."""
    source = _bytes_source(records, runs)
    shown = list(filter(None, (_study_panel(study, source) for study in studies_of(records))))
    drawn = [p for p in shown if any(x.nbytes for x in p.points if x.name != BASELINE)]
    if not drawn:
        return None
    rows = [
        (panel.title, p.name, p.configuration, None if p.nbytes is None else p.nbytes / 1e6,
         p.change.n, p.change.mean, p.change.low, p.change.high, p.change.upper)
        for panel in shown for p in panel.points
    ]  # fmt: skip
    return Figure(
        key="rate-distortion",
        title="Quality against bytes",
        columns=(
            "from", "configuration", "bytes of", "sent [MB a step]", "seeds", "NE change [%]",
            "95 % low", "95 % high", "one-sided 95 % upper",
        ),
        rows=rows,
        draw=lambda canvas: _draw_panels(canvas, drawn, looks),
        size=(9.2, 0.6 + 3.0 * len(drawn)),
        caption="Change of the normalized entropy (NE) on the test rows, bars are 95 % intervals "
        "over paired seeds.",
    )  # fmt: skip


def _bytes_source(records: Sequence[Record], runs: Sequence[Run]) -> list[Run]:
    """Return the runs of the one setup whose bytes are joined with studies.

    It is the setup that has most configs of the studies; networks come before trainings, fewer
    hosts before more.
    """
    wanted = {config_id(record) for record in records if isinstance(record, StudyRecord)}
    setups = by_setup(run for run in runs if run.sent_nbytes is not None)

    def rank(group: Sequence[Run]) -> tuple[int, bool, int]:
        num_joined = len({config_id(run.record) for run in group} & wanted)
        return num_joined, group[0].setup.is_network, -group[0].setup.num_ranks

    best = max(setups.values(), key=rank, default=[])
    return best if best and rank(best)[0] else []


def _study_panel(study: Sequence[StudyRecord], source: Sequence[Run]) -> Panel | None:
    """Return the panel of a study's trainings; None where log loss does not count."""
    trained = [record for record in study if record.training]
    rules = Rules.from_record(trained[-1]) if trained else None
    if rules is None or "logloss" not in rules.gated("training"):
        return None
    by_id = {config_id(run.record): run for run in source}
    baseline = baseline_of(run.configuration for run in source)
    groups, points = by_config(trained), []
    for name, group in sorted(groups.items(), key=lambda item: item[0] == NULL):
        if verdict := judge(group, groups.get(BASELINE, []), rules, "training"):
            run = by_id.get(config_id(group[0])) if name != NULL else None
            if name == BASELINE and run is None and baseline:  # plain TorchRec sends the same rows
                run = by_configuration(source)[baseline][0]
            nbytes, configuration = (run.sent_nbytes, run.configuration) if run else (None, None)
            points.append(Point(name, configuration, nbytes, verdict.changes["logloss"]))
    at = _at(source[0].record.setup if source else {}), _at(study[0].setup)
    return Panel(f"Study: {_title(study)}, paired seeds", points, at)


def _at(setup: Mapping[str, Scalar]) -> str:
    """Return what an axis label says of a setup."""
    texts = (("embedding_dim", "dim {}"), ("batch_size", "{} samples a rank"))
    return ", ".join(text.format(setup[name]) for name, text in texts if name in setup)


def _draw_panels(canvas: Any, panels: Sequence[Panel], looks: Looks) -> None:
    every = canvas.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, panel in zip(every, panels, strict=True):
        axes.set_title(short(panel.title, 95))
        style.grid(axes)
        axes.axhline(0, color=style.INK, linewidth=1)
        for point in panel.points:
            low, high = point.change.low, point.change.high
            if point.name == NULL and low is not None:
                name = "noise: 95 % of\na training with\nnothing changed"
                axes.axhspan(low, high, color=style.BAND, linewidth=0, zorder=0, label=name)
            if point.nbytes and point.configuration:
                look, x = looks[point.configuration], point.nbytes / 1e6
                if low is not None:
                    axes.plot([x, x], [low, high], color=look.color, linewidth=1.6)
                axes.plot(
                    [x], [point.change.mean], look.marker, color=look.color, markersize=7,
                    label=short(point.configuration, 26),
                )  # fmt: skip
        axes.set_xscale("log")
        style.plain_ticks(axes.xaxis)
        axes.set_xlabel(", ".join(filter(None, ("sent by a host in a step [MB]", panel.at[0]))))
        change = f"NE change against {BASELINE} [%]"
        axes.set_ylabel("\n".join(filter(None, (change, panel.at[1]))))
        axes.margins(x=0.12, y=0.15)
        style.legend_beside(axes)
