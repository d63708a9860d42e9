"""Rate against distortion: how much worse a model is, over the bytes that its training sent.

The quality of a study (paired seeds) is joined with the bytes of runs whose config means the same,
whatever its name. Runs have a quality of their own, mostly of one seed, which shows noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trec_qcomm.report.figure import Cell, Figure, Finding, short
from trec_qcomm.report.figures.quality import studies
from trec_qcomm.report.records import Record
from trec_qcomm.report.runs import Run, Setup, base_of, by_setup, setup_labels, ways_of
from trec_qcomm.report.statistics import (
    BASELINE,
    MAX_MEAN,
    MAX_UPPER,
    MIN_SEEDS,
    NULL,
    PASS,
    Change,
    paired_changes,
    training_gate,
)
from trec_qcomm.report.style import (
    BAND,
    INK,
    MUTED,
    Looks,
    grid,
    label_points,
    plain_ticks,
)

_GATE = (
    f"The gate of trainings: over at least {MIN_SEEDS['training']} paired seeds the mean change of "
    f"test and of progressive log loss is at most {MAX_MEAN} %, and its one-sided 95 % upper limit "
    f"at most {MAX_UPPER['training']} %. Passed means not shown worse. NE and log loss of the same "
    "rows change by the same factor."
)


@dataclass(frozen=True)
class Point:
    """A way. Args: name: in its own records.  way: of the runs with its bytes, where there are.
    gate: of a study, what training_gate says of it."""

    name: str
    way: str | None
    nbytes: float | None
    change: Change
    gate: str = ""


@dataclass(frozen=True)
class Panel:
    """Args: null: of the same study, the noise of doing nothing."""

    title: str
    points: Sequence[Point]
    base: str
    null: Change | None
    is_study: bool
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Kept:
    """A way of runs that passes in every study that has it. Args: studies: their options."""

    studies: Sequence[studies.Options]

    def told(self, setup: Setup) -> str:
        """Where that was shown, beside bytes or speed of this setup."""
        options = dict(setup.options)
        here = {
            "ranks": str(setup.hosts),
            **{name: options.get(name, "?") for name in ("batch_size", "embedding_dim")},
        }
        is_other = any(own.get(n, "?") != here[n] for own in self.studies for n in here)
        where = " and ".join(dict.fromkeys(map(studies.title, self.studies)))
        return f"quality shown to be kept ({'in another setup, ' * is_other}{where})"


def build(records: Sequence[Record], runs: Sequence[Run], looks: Looks) -> list[Figure]:
    """One figure: a panel a study, and one a setup of runs that has a base."""
    source = bytes_source([r for r in records if r.kind == "study"], runs)
    panels = study_panels(records, source)
    labels = setup_labels(list(by_setup(runs)))
    for setup, own in by_setup(runs).items():
        panel = run_panel(own, labels[setup])
        if panel is not None:
            panels.append(panel)
    if not panels:
        return []
    where = labels[source[0].setup] if source else None
    drawn = [panel for panel in panels if any(p.nbytes for p in panel.points)]
    if not drawn:
        return []
    return [
        Figure(
            key="rate-distortion",
            title="Quality against bytes",
            caption=(
                "Each point is a configuration: how much its normalized entropy (NE) on the test "
                "rows is off that of float32 training, over the bytes a host sends in a step. Left "
                "is cheaper, above zero is worse. Bars are 95 % intervals over paired seeds. A "
                "panel of one seed shows which ways fail, not which are better: look at how far "
                "its points scatter below zero."
            ),
            alt=_alt(drawn),
            columns=(
                "from", "configuration", "bytes of", "sent [MB a step]", "seeds",
                "NE change [%]", "95 % low", "95 % high", "one-sided 95 % upper",
            ),
            rows=[row for panel in panels for row in _rows(panel)],
            draw=lambda canvas: _draw(canvas, drawn, looks),
            size=(9.2, 0.9 + 3.1 * len(drawn)),
            notes=[*_notes(panels, where), *([_GATE] if any(p.is_study for p in panels) else [])],
            findings=[f for panel in panels if panel.is_study for f in _findings(panel)],
        )
    ]  # fmt: skip


def bytes_source(study: Sequence[Record], runs: Sequence[Run]) -> list[Run]:
    """The runs of one setup that know their bytes: of most configs of the study; networks before
    trainings, fewer hosts before more."""
    wanted = {record["config_sha256"] for record in study}
    best: list[Run] = []
    rank = (0, False, 0)
    for setup, own in by_setup(runs).items():
        known = [run for run in own if run.sent_nbytes is not None]
        joined = len({run.fingerprint for run in known} & wanted)
        this = (joined, setup.is_network, -setup.hosts)
        if joined and (not best or this > rank):
            best, rank = known, this
    return best


def study_panels(records: Sequence[Record], source: Sequence[Run]) -> list[Panel]:
    """A panel a study. NE and log loss of the same rows change by the same factor."""
    trained = [r for r in records if r.kind == "study" and r.get("training")]
    return [_study_panel(options, own, source) for options, own in studies.by_options(trained)]


def _study_panel(
    options: studies.Options, records: Sequence[Record], source: Sequence[Run]
) -> Panel:
    by_sha = {run.fingerprint: run for run in source if run.fingerprint}
    base = ways_of(source).get(base_of(run.way for run in source) or "")
    points, by_config = [], studies.by_config(records)
    for name, own in by_config.items():
        found = studies.changes(own, by_config.get(BASELINE, []))
        if not found:
            continue
        run = by_sha.get(own[0]["config_sha256"])
        if name == BASELINE and run is None and base:
            run = base[0]  # plain TorchRec sends the same float32 rows
        sent = run.sent_nbytes if run else None
        gate = training_gate(found["test"], found["progressive"])
        points.append(Point(name, run.way if run else None, sent, found["test"], gate))
    null = next((p.change for p in points if p.name == NULL), None)
    title = f"Study: {studies.title(options)}, paired seeds"
    return Panel(title, [p for p in points if p.name != NULL], BASELINE, null, True, options)


def run_panel(runs: Sequence[Run], label: str) -> Panel | None:
    """Of runs of one setup that were scored with their codecs, against its base; None without one,
    or with nothing beside it."""
    by_way = ways_of(run for run in runs if run.ne is not None)
    base = base_of(by_way)
    if base is None or len(by_way) < 2:
        return None
    ne = {
        way: {run.seed: run.ne for run in own if run.ne is not None}
        for way, own in by_way.items()
    }  # fmt: skip
    points = [
        Point(way, way, next((r.sent_nbytes for r in by_way[way] if r.sent_nbytes), None), change)
        for way, change in paired_changes(ne, base).items()
    ]
    most = max(point.change.n for point in points)
    seeds = "one seed: noise" if most == 1 else f"up to {most} paired seeds"
    return Panel(f"{label}; {seeds}", points, base, None, False)


def _rows(panel: Panel) -> list[Sequence[Cell]]:
    found: list[Sequence[Cell]] = []
    points = [*panel.points]
    if panel.null is not None:
        points.append(Point(NULL, None, None, panel.null))
    for p in points:
        sent = None if p.nbytes is None else p.nbytes / 1e6
        change = p.change
        found.append(
            (panel.title, p.name, p.way, sent, change.n, change.mean, change.low, change.high,
             change.upper)
        )  # fmt: skip
    return found


def _notes(panels: Sequence[Panel], where: str | None) -> list[str]:
    notes = []
    for panel in panels:
        lost = [p.name for p in panel.points if p.nbytes is None]
        if panel.is_study and where is not None:
            joined = [
                p.name if p.name == p.way else f"{p.name} with {p.way}"
                for p in panel.points if p.way
            ]  # fmt: skip
            notes.append(
                f"{panel.title}: NE is the study's, bytes are those of the runs on {where}, joined "
                f"by the content of the configs ({', '.join(joined)}). These are two setups: model "
                "size and batch differ, so the bytes tell the order and the rough ratios."
            )
        if lost:
            kept = f"{len(lost)} without bytes in these records, in the table only: "
            notes.append(f"{panel.title}: {kept}{', '.join(lost)}.")
    return notes


def _findings(panel: Panel) -> list[Finding]:
    """Of a study: which ways pass the gate of trainings, with bytes where they are known."""
    found = []
    for p in panel.points:
        if p.name == panel.base or p.nbytes is None or p.change.low is None:
            continue
        name = p.name if p.name == p.way else f"{p.way} (in the study {p.name})"
        text = (
            f"NE of {name} is {p.change.mean:+.3f} % off float32 [{p.change.low:+.3f}, "
            f"{p.change.high:+.3f}], {p.change.n} paired seeds; gate of trainings: {p.gate}."
        )
        is_worse = p.change.low > MAX_UPPER["training"]
        if p.gate == PASS:
            found.append(Finding(text, "holds"))
        else:
            found.append(Finding(text, "does not hold" if is_worse else "not shown"))
    return sorted(found, key=lambda finding: finding.mark != "holds")


def kept(records: Sequence[Record], runs: Sequence[Run]) -> dict[str, Kept]:
    """The ways of runs that pass the gate of trainings in every study that has them."""
    source = bytes_source([r for r in records if r.kind == "study"], runs)
    found: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
    for panel in study_panels(records, source):
        for point in panel.points:
            if point.way and point.name != panel.base:
                found.setdefault(point.way, []).append((point.gate, panel.options))
    return {
        way: Kept([options for _, options in own])
        for way, own in found.items() if all(gate == PASS for gate, _ in own)
    }  # fmt: skip


def _alt(panels: Sequence[Panel]) -> str:
    said = []
    for panel in panels:
        points = sorted((p for p in panel.points if p.nbytes), key=lambda p: p.nbytes or 0)
        said += [
            f"{p.way} {p.nbytes / 1e6:.2f} MB {p.change.mean:+.3f} %" for p in points if p.nbytes
        ]
    return f"Scatter of NE change against bytes sent: {'; '.join(said)}."


def _draw(canvas: Any, panels: Sequence[Panel], looks: Looks) -> None:
    every = canvas.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, panel in zip(every, panels, strict=True):
        _panel(axes, panel, looks)
    every[-1].set_xlabel("sent by a host in a step [MB]")
    canvas.draw_without_rendering()
    for axes, panel in zip(every, panels, strict=True):
        points = [
            (p.nbytes / 1e6, p.change.mean, short(p.way, 28), looks[p.way].color)
            for p in panel.points if p.nbytes and p.way
        ]  # fmt: skip
        label_points(axes, points)


def _panel(axes: Any, panel: Panel, looks: Looks) -> None:
    points = sorted((p for p in panel.points if p.nbytes), key=lambda p: p.nbytes or 0)
    axes.set_title(short(panel.title, 95))
    grid(axes)
    axes.axhline(0, color=INK, linewidth=1)
    if panel.null is not None and panel.null.low is not None:
        name = "noise: 95 % interval of a training with nothing changed"
        axes.axhspan(panel.null.low, panel.null.high, color=BAND, linewidth=0, zorder=0, label=name)
        axes.legend(loc="upper right")
    if panel.is_study:
        nbytes = [p.nbytes / 1e6 for p in points if p.nbytes]
        axes.plot(nbytes, [p.change.mean for p in points], color=MUTED, linewidth=1, zorder=1)
    for p in points:
        look, at = looks[p.way or ""], (p.nbytes or 0) / 1e6
        if p.change.low is not None and p.change.high is not None:
            axes.plot([at, at], [p.change.low, p.change.high], color=look.color, linewidth=1.6)
        axes.plot([at], [p.change.mean], look.marker, color=look.color, markersize=7)
    axes.set_xscale("log")
    axes.set_ylabel(f"NE change against {panel.base} [%]")
    axes.margins(x=0.12, y=0.15)
    plain_ticks(axes.xaxis)
