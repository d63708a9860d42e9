"""Timeline of a guard: what codecs add to the loss, moves of rungs, and bytes, by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trec_qcomm.lab.records import GuardProbeRecord, GuardRecord, Record
from trec_qcomm.lab.report import style
from trec_qcomm.lab.report.figure import Figure, numbered

MOST_RUNS = 12
_MOVES = (("raise", "finer codec", "^", style.WARNING), ("lower", "coarser codec", "v", "#009e73"))


@dataclass
class GuardRun:
    """Probes and events of one training, in order; where a training was resumed, the last ones."""

    name: str
    probes: dict[int, GuardProbeRecord] = field(default_factory=dict)
    events: list[GuardRecord] = field(default_factory=list)

    def add(self, record: GuardRecord | GuardProbeRecord) -> None:
        """Add a record. A probe that is there already was read again, as all that follow it."""
        if isinstance(record, GuardRecord):
            self.events.append(record)
            return
        if record.probe in self.probes:
            self.probes = {n: p for n, p in self.probes.items() if n < record.probe}
            self.events = [event for event in self.events if event.probe < record.probe]
        self.probes[record.probe] = record


def guard_runs(records: Sequence[Record]) -> list[GuardRun]:
    """Return the trainings that a guard has watched; those without a probe are left out."""
    runs: dict[tuple[str, str | None, int, str], GuardRun] = {}
    for record in records:
        if isinstance(record, GuardRecord | GuardProbeRecord):
            file = "" if record.origin is None else record.origin.file
            name = f"{record.configuration}, {record.run or Path(file).stem}"
            run = runs.setdefault((name, record.run, record.seed, file), GuardRun(name))
            run.add(record)
    return [run for run in runs.values() if run.probes]


def timelines(records: Sequence[Record]) -> list[Figure]:
    """Return one figure for each training, up to MOST_RUNS."""
    runs = guard_runs(records)[:MOST_RUNS]
    return [_figure(numbered("guard", number), run) for number, run in enumerate(runs, start=1)]


def _figure(key: str, run: GuardRun) -> Figure:
    sent = [(p.step, p.wire_nbytes / 1e6) for p in run.probes.values() if p.wire_nbytes]
    return Figure(
        key=key,
        title=f"What the guard read and did: {run.name}",
        columns=(
            "step", "probe", "event", "reason", "table", "direction", "from", "to", "change in %",
        ),
        rows=[
            (e.step, e.probe, e.event, e.reason, e.table, e.direction, e.codec_before,
             e.codec_after, e.change)
            for e in run.events
        ],
        draw=lambda canvas: _draw(canvas, run, sent),
        size=(8.5, 3.2 + 1.2 * bool(sent)),
        caption="Change of the loss by codecs, with the mean since rungs last changed and its 95 % "
        "interval; bytes that a rank sends.",
    )  # fmt: skip


def _draw(canvas: Any, run: GuardRun, sent: Sequence[tuple[int, float]]) -> None:
    heights = [2.2, 1.2] if sent else [2.2]
    panels = canvas.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
    axes = list(panels[:, 0])
    _draw_changes(axes[0], run)
    if sent:
        axes[-1].plot(*zip(*sent, strict=True), color=style.OURS, drawstyle="steps-mid")
        axes[-1].set_ylim(bottom=0)
        axes[-1].set_ylabel("MB a step")
        style.grid(axes[-1])
    axes[-1].set_xlabel("step")


def _draw_changes(axes: Any, run: GuardRun) -> None:
    probes = list(run.probes.values())
    limit = probes[-1].limit_ne
    dots = {"color": style.MUTED, "markersize": 4, "label": "a probe"}
    axes.plot([p.step for p in probes], [p.change for p in probes], ".", **dots)
    means = [p for p in probes if p.mean is not None]
    axes.plot([p.step for p in means], [p.mean for p in means], color=style.OURS, label="mean")
    band = [(p.step, p.low, p.high) for p in means if p.low is not None and p.high is not None]
    if band:
        axes.fill_between(*zip(*band, strict=True), color=style.OURS, alpha=0.15, linewidth=0)
    axes.axhline(limit, color=style.INK, linewidth=1, linestyle="--", label="limit")
    for kind, label, marker, color in _MOVES:
        at = [event.step for event in run.events if event.event == kind]
        axes.plot(at, [limit] * len(at), marker, color=color, label=label)
    style.signed_log(axes, "y", limit)
    axes.set_ylabel("change of loss [%]")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5)
    style.grid(axes)
