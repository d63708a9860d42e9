"""Rate against distortion: how much worse a model is, over the bytes that its training sent.

The quality of a study (paired seeds) is joined with the bytes of runs whose config means the same,
whatever its name. Where the two setups differ, axes, caption and notes say both. Runs have a
quality of their own, mostly of one seed, which shows noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trec_qcomm.lab.records import Record
from trec_qcomm.lab.report.figure import Cell, Figure, Finding, short
from trec_qcomm.lab.report.figures.quality.joined import (
    JoinedStudy,
    Point,
    bytes_source,
    joined_studies,
    pareto_front,
)
from trec_qcomm.lab.report.runs import (
    Run,
    Setup,
    baseline_of,
    by_configuration,
    by_setup,
    setup_labels,
)
from trec_qcomm.lab.report.style import (
    BAND,
    INK,
    MUTED,
    Looks,
    grid,
    label_points,
    plain_ticks,
)
from trec_qcomm.lab.study.gates import BASELINE, NULL, PASS, TRAINING
from trec_qcomm.lab.study.paired import Change, paired_changes

_GATE = (
    f"The gate of trainings: over at least {TRAINING.seeds} paired seeds the mean change of "
    f"test and of progressive log loss is at most {TRAINING.mean} %, and its one-sided 95 % upper "
    f"limit at most {TRAINING.upper} %. Passed means not shown worse. NE and log loss of the same "
    "rows change by the same factor."
)
_AXIS_KEYS = (("embedding_dim", "dim {}"), ("batch_size", "{} samples a rank"))


@dataclass(frozen=True)
class Panel:
    """One plot of points.

    Args:
        title: what tells it from other panels.
        points: configurations with their quality.
        baseline: name of the configuration that changes are against.
        null: change of the study's null run, the noise; None where there is none.
        is_study: the quality is of a study.
        quality_at, bytes_at: what axis labels say of the setups of quality and of bytes.
        notes: what a reader has to know of this panel.
    """

    title: str
    points: Sequence[Point]
    baseline: str
    null: Change | None
    is_study: bool
    quality_at: str = ""
    bytes_at: str = ""
    notes: Sequence[str] = ()


def build(records: Sequence[Record], runs: Sequence[Run], looks: Looks) -> list[Figure]:
    """Return one figure with a panel for each study, and for each setup of runs with a baseline."""
    source = bytes_source(records, runs)
    labels = setup_labels(list(by_setup(runs)))
    studies = [study for study in joined_studies(records, source) if study.metric == "logloss"]
    panels = [study_panel(study, source, labels) for study in studies]
    for setup, group in by_setup(runs).items():
        panel = run_panel(group, labels[setup])
        panels += [panel] if panel is not None else []
    drawn = [
        panel for panel in panels
        if any(point.nbytes for point in panel.points if point.name != panel.baseline)
    ]  # fmt: skip
    if not drawn:
        return []
    return [
        Figure(
            key="rate-distortion",
            title="Quality against bytes",
            caption=(
                "Each point is a configuration: how much its normalized entropy (NE) on the test "
                "rows is off that of float32 training, over the bytes a host sends in a step. Left "
                "is cheaper, above zero is worse. The axes say in which setup quality and bytes "
                "were measured. Bars are 95 % intervals over paired seeds; the dashed line joins "
                "the configurations that no other beats in both bytes and mean quality. A panel of "
                "one seed shows which configurations fail, not which are better: look at how far "
                "its points scatter below zero."
            ),
            alt=_alt(drawn),
            columns=(
                "from", "configuration", "bytes of", "sent [MB a step]", "seeds",
                "NE change [%]", "95 % low", "95 % high", "one-sided 95 % upper",
            ),
            rows=[row for panel in panels for row in _rows(panel)],
            draw=lambda canvas: _draw(canvas, drawn, looks),
            size=(9.2, 0.9 + 3.3 * len(drawn)),
            notes=[
                *(note for panel in panels for note in panel.notes),
                *([_GATE] if any(panel.is_study for panel in panels) else []),
            ],
            findings=[f for panel in panels if panel.is_study for f in _findings(panel)],
        )
    ]  # fmt: skip


def study_panel(
    study: JoinedStudy, source: Sequence[Run], labels: dict[Setup, str]
) -> Panel:  # fmt: skip
    """Return the panel of a study. Args: source, labels: runs with bytes, names of their setups."""
    title = f"Study: {study.setup}, paired seeds"
    notes, quality_at, bytes_at = [], "", ""
    if source:
        setup = source[0].setup
        quality_at, bytes_at = _at(study.setup), _at(setup)
        pairs = [
            p.name if p.name == p.configuration else f"{p.name} with {p.configuration}"
            for p in study.points if p.configuration
        ]  # fmt: skip
        is_equal = quality_at == bytes_at and study.setup.num_ranks == setup.num_ranks
        two = "" if is_equal else (
            " These are two setups: model size and batch differ, so the bytes tell the order and "
            "the rough ratios."
        )  # fmt: skip
        notes.append(
            f"{title}: NE is the study's, bytes are those of the runs on {labels[setup]}, joined "
            f"by the content of the configs ({', '.join(pairs)}).{two}"
        )
    notes += _without_bytes(title, study.points)
    return Panel(
        title, study.points, BASELINE, study.null, True, quality_at, bytes_at, notes
    )  # fmt: skip


def run_panel(runs: Sequence[Run], label: str) -> Panel | None:
    """Return the panel of runs of one setup against its baseline.

    None without a baseline, or with nothing beside it, among the runs scored with their codecs on.
    """
    groups = by_configuration(run for run in runs if run.ne is not None)
    baseline = baseline_of(groups)
    if baseline is None or len(groups) < 2:
        return None
    ne = {
        configuration: {run.seed: run.ne for run in group if run.ne is not None}
        for configuration, group in groups.items()
    }
    sent = {
        name: next((run.sent_nbytes for run in group if run.sent_nbytes), None)
        for name, group in groups.items()
    }
    points = [
        Point(name, name, sent[name], change)
        for name, change in paired_changes(ne, baseline).items()
    ]
    most = max(point.change.n for point in points)
    seeds = "one seed: noise" if most == 1 else f"up to {most} paired seeds"
    title, at = f"{label}; {seeds}", _at(runs[0].setup)
    return Panel(title, points, baseline, None, False, at, at, _without_bytes(title, points))


def _at(setup: Any) -> str:
    """Return what an axis label says of a setup. Args: setup: a Setup or a StudySetup."""
    values = [(text, setup.get(name)) for name, text in _AXIS_KEYS]
    return ", ".join(text.format(value) for text, value in values if value is not None)


def _without_bytes(title: str, points: Sequence[Point]) -> list[str]:
    names = [point.name for point in points if point.nbytes is None]
    said = f"{len(names)} without bytes in these records, in the table only: {', '.join(names)}."
    return [f"{title}: {said}"] if names else []


def _rows(panel: Panel) -> list[Sequence[Cell]]:
    rows: list[Sequence[Cell]] = []
    points = [*panel.points]
    if panel.null is not None:
        points.append(Point(NULL, None, None, panel.null))
    for point in points:
        sent = None if point.nbytes is None else point.nbytes / 1e6
        change = point.change
        rows.append(
            (panel.title, point.name, point.configuration, sent, change.n, change.mean, change.low,
             change.high, change.upper)
        )  # fmt: skip
    return rows


def _findings(panel: Panel) -> list[Finding]:
    """Return which configurations of a study pass the gate, where their bytes are known."""
    findings = []
    for point in panel.points:
        if point.name == panel.baseline or point.nbytes is None or point.change.low is None:
            continue
        name = point.name
        if name != point.configuration:
            name = f"{point.configuration} (in the study {point.name})"
        text = (
            f"NE of {name} is {point.change.mean:+.3f} % off float32 [{point.change.low:+.3f}, "
            f"{point.change.high:+.3f}], {point.change.n} paired seeds; gate of trainings: "
            f"{point.gate}."
        )
        is_worse = point.change.low > TRAINING.upper
        if point.gate == PASS:
            findings.append(Finding(text, "holds"))
        else:
            findings.append(Finding(text, "does not hold" if is_worse else "not shown"))
    return sorted(findings, key=lambda finding: finding.mark != "holds")


def _alt(panels: Sequence[Panel]) -> str:
    said = []
    for panel in panels:
        points = sorted((p for p in panel.points if p.nbytes), key=lambda p: p.nbytes or 0)
        said += [
            f"{p.configuration} {(p.nbytes or 0) / 1e6:.2f} MB {p.change.mean:+.3f} %"
            for p in points
        ]
    return f"Scatter of NE change against bytes sent: {'; '.join(said)}."


def _draw(canvas: Any, panels: Sequence[Panel], looks: Looks) -> None:
    all_axes = canvas.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, panel in zip(all_axes, panels, strict=True):
        _panel(axes, panel, looks)
    canvas.draw_without_rendering()
    for axes, panel in zip(all_axes, panels, strict=True):
        labels = [
            (p.nbytes / 1e6, p.change.mean, short(p.configuration, 28),
             looks[p.configuration].color)
            for p in panel.points if p.nbytes and p.configuration
        ]  # fmt: skip
        label_points(axes, labels)


def _panel(axes: Any, panel: Panel, looks: Looks) -> None:
    axes.set_title(short(panel.title, 95))
    grid(axes)
    axes.axhline(0, color=INK, linewidth=1)
    if panel.null is not None and panel.null.low is not None:
        name = "noise: 95 % interval of a training with nothing changed"
        axes.axhspan(panel.null.low, panel.null.high, color=BAND, linewidth=0, zorder=0, label=name)
        axes.legend(loc="upper right")
    places = {p.name: (p.nbytes / 1e6, p.change.mean) for p in panel.points if p.nbytes}
    if panel.is_study:
        front = pareto_front(list(places.values()))
        axes.plot(*zip(*front, strict=True), color=MUTED, linewidth=1, linestyle="--", zorder=1)
    for point in panel.points:
        if not point.nbytes:
            continue
        look, (x, y) = looks[point.configuration or ""], places[point.name]
        if point.change.low is not None and point.change.high is not None:
            axes.plot(
                [x, x], [point.change.low, point.change.high], color=look.color, linewidth=1.6
            )
        axes.plot([x], [y], look.marker, color=look.color, markersize=7)
    axes.set_xscale("log")
    axes.set_xlabel(_with("sent by a host in a step [MB]", panel.bytes_at))
    axes.set_ylabel(_with(f"NE change against {panel.baseline} [%]", panel.quality_at, "\n"))
    axes.margins(x=0.12, y=0.15)
    plain_ticks(axes.xaxis)


def _with(label: str, setup: str, between: str = ", ") -> str:
    return f"{label}{between}{setup}" if setup else label
