"""Timeline of a guard: what codecs add to the loss, the rungs of tables, and bytes, by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trec_qcomm.lab.records import GuardProbeRecord, GuardRecord, Record
from trec_qcomm.lab.report import style
from trec_qcomm.lab.report.figure import Figure, short

MOST_ROWS, MOST_RUNS = 30, 12
_MOVES = (("raise", "finer codec", "^", style.WARNING), ("lower", "coarser codec", "v", "#009e73"))

Stretch = tuple[int, int, int]  # first step, last step, rung
Place = tuple[str, str]  # table and direction


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

    def stretches(self) -> dict[Place, list[Stretch]]:
        """Return by table and direction the steps during which it kept a rung, and which."""
        stretches: dict[Place, list[Stretch]] = {}
        moved_at = 0  # a rung that is new at a probe is so since the one before
        for probe in self.probes.values():
            for direction, rungs in (("forward", probe.forward), ("backward", probe.backward)):
                for table, rung in rungs.items():
                    parts = stretches.setdefault((table, direction), [])
                    if not parts:
                        parts.append((probe.step, probe.step, rung))
                    elif parts[-1][2] != rung:
                        parts.append((moved_at, probe.step, rung))
                    parts[-1] = (parts[-1][0], probe.step, rung)
            moved_at = probe.step
        return stretches


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
    runs = guard_runs(records)
    keys = ("guard", *(f"guard-{number}" for number in range(2, MOST_RUNS + 1)))
    return [_figure(key, run) for key, run in zip(keys, runs, strict=False)]


def _figure(key: str, run: GuardRun) -> Figure:
    moved = {place: parts for place, parts in run.stretches().items() if len(parts) > 1}
    shown = sorted(moved, key=lambda place: (-len(moved[place]), place))[:MOST_ROWS]
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
        draw=lambda canvas: _draw(canvas, run, {place: moved[place] for place in shown}, sent),
        size=(8.5, 3.2 + 0.24 * len(shown) + 1.2 * bool(sent)),
        caption="Change of the loss by codecs, with the mean since rungs last changed and its 95 % "
        "interval; rungs of the tables that moved most, dark for coarse; bytes that a rank sends.",
    )  # fmt: skip


def _draw(
    canvas: Any,
    run: GuardRun,
    moved: Mapping[Place, Sequence[Stretch]],
    sent: Sequence[tuple[int, float]],
) -> None:
    heights = [2.2, *([0.24 * len(moved)] if moved else []), *([1.2] if sent else [])]
    panels = canvas.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
    axes = list(panels[:, 0])
    _draw_changes(axes[0], run)
    if moved:
        _draw_rungs(axes[1], moved)
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


def _draw_rungs(axes: Any, moved: Mapping[Place, Sequence[Stretch]]) -> None:
    finest = max(rung for parts in moved.values() for _, _, rung in parts)
    colors = style.matplotlib().colormaps["cividis"]
    for y, parts in enumerate(moved.values()):
        for first, last, rung in parts:
            shade = rung / max(1, finest)
            axes.barh(y + 0.5, max(last - first, 1), 0.84, left=first, color=colors(shade))
            ink = "white" if shade < 0.5 else "black"
            axes.text(first, y + 0.55, f" {rung}", fontsize=7, va="center", color=ink)
    axes.set_ylim(len(moved), 0)
    names = [short(f"{table}, {direction}", 32) for table, direction in moved]
    axes.set_yticks([y + 0.5 for y in range(len(moved))], names)
    style.grid(axes, "x")
