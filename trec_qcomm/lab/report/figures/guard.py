"""Timeline of a guard: what codecs add to the loss, the rungs of tables, and bytes, by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trec_qcomm.lab.records import GuardProbeRecord, GuardRecord, Record
from trec_qcomm.lab.report.figure import Figure, Finding, short, verdict
from trec_qcomm.lab.report.style import INK, MUTED, OURS, grid, heat_color, luminance

MOST_ROWS, MOST_RUNS = 30, 12
_WARNING = "#d55e00"
_MARKS = {"raise": ("^", _WARNING), "lower": ("v", "#009e73")}

Key = tuple[str, ...]
Stretch = tuple[int, int, int]  # first step, last step, rung


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

    def stretches(self) -> dict[tuple[str, str], list[Stretch]]:
        """Return by table and direction the steps during which it kept a rung, and which."""
        stretches: dict[tuple[str, str], list[Stretch]] = {}
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


def runs_of_guards(records: Sequence[Record]) -> list[GuardRun]:
    """Return the trainings that a guard has watched; those without a probe are left out."""
    runs: dict[Key, GuardRun] = {}
    for record in records:
        if isinstance(record, GuardRecord | GuardProbeRecord):
            file = "" if record.origin is None else record.origin.file
            key = file, record.configuration, record.run or "", str(record.seed)
            place = Path(file).stem if record.run is None else record.run
            run = runs.setdefault(key, GuardRun(f"{record.configuration}, {place}"))
            run.add(record)
    return [run for run in runs.values() if run.probes]


def build(records: Sequence[Record]) -> list[Figure]:
    """Return one figure for each training."""
    runs = runs_of_guards(records)
    figures = [_figure(run, number, len(runs)) for number, run in enumerate(runs[:MOST_RUNS], 1)]
    return figures


def _figure(run: GuardRun, number: int, count: int) -> Figure:
    stretches = run.stretches()
    moved = {place: parts for place, parts in stretches.items() if len(parts) > 1}
    shown = sorted(moved, key=lambda place: (-len(moved[place]), place))[:MOST_ROWS]
    return Figure(
        key=f"guard-{number}" if number > 1 else "guard",
        title="What the guard read and did" + (f": {run.name}" if count > 1 else ""),
        caption=(
            "Above: by how much codecs change the loss of the probe batches, in percent: a dot a "
            "probe, a line for the mean since rungs last changed with its 95 % interval, and the "
            "limit. A triangle that points up is a table that got a finer codec, down a coarser "
            "one. Below: the rung of each table that changed one, dark for coarse and light for "
            "fine, and if known the bytes that a rank sends in a step."
        ),
        alt=_alt(run, len(moved)),
        columns=(
            "step", "probe", "event", "reason", "table", "direction", "from", "to", "change in %",
        ),
        rows=[
            (
                event.step, event.probe, event.event, event.reason, event.table, event.direction,
                event.codec_before, event.codec_after, event.change,
            )
            for event in run.events
        ],
        draw=lambda canvas: _draw(canvas, run, {place: moved[place] for place in shown}),
        size=(8.5, 3.2 + 0.24 * len(shown) + 1.2 * _has_bytes(run)),
        notes=_notes(run, stretches, moved, count),
        findings=_findings(run),
    )  # fmt: skip


def _has_bytes(run: GuardRun) -> bool:
    return any(probe.wire_nbytes is not None for probe in run.probes.values())


def _alt(run: GuardRun, num_moved: int) -> str:
    moves = sum(event.event in _MARKS for event in run.events)
    return f"Timeline of {len(run.probes)} probes: {moves} moves of {num_moved} rows or gradients."


def _notes(run: GuardRun, stretches: Any, moved: Any, count: int) -> list[str]:
    notes = [f"{len(stretches) - len(moved)} of {len(stretches)} kept their rung."]
    if len(moved) > MOST_ROWS:
        notes.append(f"Drawn are the {MOST_ROWS} that moved most; the table has all.")
    if count > MOST_RUNS:
        notes.append(f"Drawn are the first {MOST_RUNS} of {count} trainings.")
    return notes


def _findings(run: GuardRun) -> list[Finding]:
    trips = [event for event in run.events if event.event == "trip"]
    blamed = [event for event in run.events if (event.event, event.reason) == ("raise", "loss")]
    text = f"{run.name}: {len(trips)} episodes in {len(run.probes)} probes"
    if blamed:
        tables = dict.fromkeys(str(event.table) for event in blamed)
        text += f"; to blame, in order: {', '.join(list(tables)[:5])}"
    findings = [Finding(f"{text}.")]
    last = list(run.probes.values())[-1]
    if last.mean is not None:
        ends = f"It ends with {last.mean:+.3g} % of the loss, limit {last.limit_ne:g} %."
        findings.append(Finding(ends, verdict(last.mean <= last.limit_ne)))
    return findings


def _draw(canvas: Any, run: GuardRun, moved: dict[tuple[str, str], list[Stretch]]) -> None:
    heights = [2.2, *([0.24 * len(moved)] if moved else []), *([1.2] if _has_bytes(run) else [])]
    panels = canvas.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
    axes = [row[0] for row in panels]
    _draw_changes(axes[0], run)
    if moved:
        _draw_rungs(axes[1], moved)
    if _has_bytes(run):
        sent = [(p.step, p.wire_nbytes / 1e6) for p in run.probes.values() if p.wire_nbytes]
        axes[-1].plot(*zip(*sent, strict=True), color=OURS, drawstyle="steps-mid")
        axes[-1].set_ylim(bottom=0)
        axes[-1].set_ylabel("MB a step")
        grid(axes[-1])
    axes[-1].set_xlabel("step")


def _draw_changes(axes: Any, run: GuardRun) -> None:
    probes = list(run.probes.values())
    limit = probes[-1].limit_ne
    dots = [(p.step, p.change) for p in probes if p.change is not None]
    if dots:
        axes.plot(*zip(*dots, strict=True), ".", color=MUTED, markersize=4, label="a probe")
    means = [p for p in probes if p.mean is not None]
    steps = [p.step for p in means]
    axes.plot(steps, [p.mean for p in means], color=OURS, label="mean")
    band = [p for p in means if p.low is not None and p.high is not None]
    axes.fill_between(
        [p.step for p in band], [p.low for p in band], [p.high for p in band],
        color=OURS, alpha=0.15, linewidth=0,
    )  # fmt: skip
    axes.axhline(limit, color=INK, linewidth=1, linestyle="--", label="limit")
    for kind, (marker, color) in _MARKS.items():
        at = [event.step for event in run.events if event.event == kind]
        if at:
            label = {"raise": "finer codec", "lower": "coarser codec"}[kind]
            axes.plot(at, [limit] * len(at), marker, color=color, label=label, linestyle="none")
    axes.set_yscale("symlog", linthresh=2 * limit)
    ticks = _ticks([change for _, change in dots], limit)
    axes.set_yticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylabel("change of loss, %")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5)
    grid(axes)


def _ticks(changes: Sequence[float], limit: float) -> list[float]:
    """Return 0 and the limit times powers of ten, as far as changes reach."""
    ticks = [0.0, limit]
    while ticks[-1] < max(changes, default=0.0):
        ticks.append(10 * ticks[-1])
    below = [-limit]
    while below[-1] > min(changes, default=0.0):
        below.append(10 * below[-1])
    return [*reversed(below[: None if min(changes, default=0.0) < -limit else 0]), *ticks]


def _draw_rungs(axes: Any, moved: dict[tuple[str, str], list[Stretch]]) -> None:
    finest = max(rung for parts in moved.values() for _, _, rung in parts)
    for y, parts in enumerate(moved.values()):
        for first, last, rung in parts:
            color = heat_color(rung / max(1, finest))
            width = max(last - first, 1)
            axes.broken_barh([(first, width)], (y + 0.08, 0.84), facecolors=color)
            ink = "#000000" if luminance(color) > 0.5 else "#ffffff"
            axes.text(first, y + 0.55, f" {rung}", fontsize=7, va="center", color=ink)
    axes.set_ylim(len(moved), 0)
    names = [short(f"{table}, {direction}", 32) for table, direction in moved]
    axes.set_yticks([y + 0.5 for y in range(len(moved))], names)
    grid(axes, "x")
