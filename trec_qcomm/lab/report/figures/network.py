"""Runs on links of a given rate: step time, and bytes by kind of traffic.

Between two rates that were measured a step is taken to be a + b / rate, which is exact where it is
compute and one transfer after another. So lines and break-even are straight over 1 / rate, where no
limit is 0.
Bytes before are float32 of all rows, which is what plain TorchRec sends: the largest count among
the configurations of a setup. Where no record has it, it is float32 of the rows that were sent at
all. Of plain TorchRec only the sum is known, by the kernel's count, which also holds for the
others.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from trec_qcomm.lab.records import TRAFFIC_GROUPS
from trec_qcomm.lab.report import style
from trec_qcomm.lab.report.figure import Cell, Figure, short
from trec_qcomm.lab.report.runs import (
    Bytes,
    Run,
    baseline_of,
    by_configuration,
    by_setup,
    rate_text,
)
from trec_qcomm.lab.report.style import Looks

_FREE = 200  # no limit is drawn at so many times the fastest link
_NAMES = {
    "forward": "rows forward", "backward": "gradients backward", "dense": "dense gradients",
    "ids": "ids",
}  # fmt: skip
# A hatch tells groups apart without colour.
_FILLS = {
    "forward": ("#2f7f86", ""), "backward": ("#5aa5a8", "///"), "dense": ("#98a1ab", ""),
    "ids": ("#b5a03f", "..."),
}  # fmt: skip

Crossings = Sequence[tuple[float, bool]]  # Mbit/s of equal medians; whether it is no scatter


def step_time(runs: Sequence[Run], looks: Looks) -> Figure | None:
    """Return one figure, a line for each setup: the step, and times the baseline's speed."""
    # The first seed of each configuration.
    first = {(run.setup, run.configuration): run.record.seed for run in reversed(runs)}
    shown = [run for run in runs if run.record.seed == first[run.setup, run.configuration]]
    setups = by_setup(run for run in shown if run.setup.is_network)
    if not setups:
        return None
    return Figure(
        key="step-time",
        title="Step time against link rate",
        columns=(
            "setup", "configuration", "link", "p20 [ms]", "p50 [ms]", "p80 [ms]",
            "times the baseline's speed", "break-even of the configuration",
        ),
        rows=[row for label, group in setups.items() for row in _times(label, group)],
        draw=lambda canvas: _draw_steps(canvas, setups, looks),
        size=(9.2, 4.1 * len(setups)),
        caption="Median, 20th and 80th percentile of the slowest host; lines are a + b / rate. On "
        "links faster than a diamond a configuration no longer pays. Hosts share one machine.",
    )  # fmt: skip


def inverse(run: Run) -> float:
    """Return 1 / rate in seconds a Mbit; 0 without a limit."""
    return 0.0 if run.rate_mbit is None else 1 / run.rate_mbit


def crossings(baseline: Sequence[Run], runs: Sequence[Run]) -> Crossings:
    """Return where a configuration breaks even, by rising rate."""
    ours, theirs = ({inverse(run): run.step_s for run in group} for group in (runs, baseline))
    gains = [(u, theirs[u]["p50"] - ours[u]["p50"]) for u in sorted(ours.keys() & theirs.keys())]
    rates = []
    for (u, gain), (v, after) in pairwise(gains):
        if gain * after < 0:
            is_clear = all(
                ours[x]["p80"] < theirs[x]["p20"] or theirs[x]["p80"] < ours[x]["p20"]
                for x in (u, v)
            )
            rates.append((1 / (u + (v - u) * gain / (gain - after)), is_clear))
    return rates[::-1]


def _break_even(baseline: Sequence[Run], runs: Sequence[Run]) -> str | None:
    """Return the break-even of a configuration in words; None where there is none."""
    rates = crossings(baseline, runs)
    texts = (rate_text(rate) + " (within the scatter)" * (not clear) for rate, clear in rates)
    return " and ".join(texts) or None


def _times(label: str, runs: Sequence[Run]) -> list[Sequence[Cell]]:
    groups = by_configuration(runs)
    baseline = groups.get(baseline_of(groups) or "", [])
    base_s = {run.rate_mbit: run.step_s["p50"] for run in baseline}
    rows: list[Sequence[Cell]] = []
    for run in sorted(runs, key=inverse, reverse=True):
        times = [1e3 * run.step_s[p] for p in ("p20", "p50", "p80")]
        gain = base_s[run.rate_mbit] / run.step_s["p50"] if run.rate_mbit in base_s else None
        even = _break_even(baseline, groups[run.configuration])
        rows.append((label, run.configuration, rate_text(run.rate_mbit), *times, gain, even))
    return rows


def _draw_steps(canvas: Any, setups: Mapping[str, Sequence[Run]], looks: Looks) -> None:
    panels = canvas.subplots(len(setups), 2, squeeze=False)
    for (left, right), (label, runs) in zip(panels, setups.items(), strict=True):
        groups = by_configuration(sorted(runs, key=inverse, reverse=True))
        baseline = baseline_of(groups)
        free = _FREE * max(run.rate_mbit or 1.0 for run in runs)
        left.set_title(short(label, 60))
        left.set_ylabel("step [ms]")
        right.set_ylabel(f"times the speed of {baseline}" if baseline else "no baseline")
        right.axhline(1, color=style.INK, linewidth=1)
        for name in by_configuration(runs):
            look, group = looks[name], groups[name]
            rates, curve = _curve(group, free)
            left.plot(rates, 1e3 * curve(rates), color=look.color, linestyle=look.dash)
            at = [run.rate_mbit or free for run in group]
            p20, p50, p80 = ([1e3 * r.step_s[p] for r in group] for p in ("p20", "p50", "p80"))
            left.vlines(at, p20, p80, color=look.color, linewidth=1)
            left.plot(at, p50, look.marker, color=look.color, label=short(name, 26))
            if baseline and name != baseline:
                _draw_speed(right, groups[baseline], group, look, free)
        places = sorted({run.rate_mbit or free for run in runs})
        for axes in (left, right):
            _rate_axis(axes, places, free)
        for face, name in ((style.MUTED, "break-even"), ("none", "within scatter")):
            diamond = {"markeredgecolor": style.MUTED, "markersize": 8, "label": name}
            left.plot([], [], "D", color=face, **diamond)
        style.legend_beside(right, left)


def _draw_speed(
    axes: Any, baseline: Sequence[Run], runs: Sequence[Run], look: Any, free: float
) -> None:
    """Draw how many times the baseline's speed, over the rates that both have."""
    common = {inverse(run) for run in baseline} & {inverse(run) for run in runs}
    ours, theirs = ([r for r in group if inverse(r) in common] for group in (runs, baseline))
    if not common:
        return
    (places, our_s), (_, their_s) = _curve(ours, free), _curve(theirs, free)
    axes.plot(places, their_s(places) / our_s(places), color=look.color, linestyle=look.dash)
    at = np.array([run.rate_mbit or free for run in ours])
    axes.plot(at, their_s(at) / our_s(at), look.marker, color=look.color)
    for rate, is_clear in crossings(theirs, ours):
        if rate < free:
            face = look.color if is_clear else "none"
            axes.plot([rate], [1], "D", color=face, markersize=8, markeredgecolor=look.color)


def _curve(runs: Sequence[Run], free: float) -> tuple[Any, Any]:
    """Return rates to draw at, and the function of seconds at them. Args: runs: slowest first."""
    places = np.array([run.rate_mbit or free for run in runs])
    us, seconds = zip(*sorted((inverse(run), run.step_s["p50"]) for run in runs), strict=True)
    between = np.geomspace(places[0], places[-1], 200)

    def curve(rates: Any) -> Any:
        return np.interp(np.where(rates >= free, 0.0, 1 / rates), us, seconds)

    return np.unique([*places, *between]), curve


def _rate_axis(axes: Any, places: Sequence[float], free: float) -> None:
    style.grid(axes)
    axes.set_xscale("log")
    axes.set_yscale("log")
    style.plain_ticks(axes.yaxis)
    texts = [
        "no\nlimit" if rate == free else "\n" * (n % 2) + rate_text(rate).removesuffix("bit/s")
        for n, rate in enumerate(places)
    ]  # every other one a line lower, or they would overlap
    axes.set_xticks(places, texts)
    axes.minorticks_off()
    axes.set_xlabel("rate of each host's link [bit/s]")


def traffic(runs: Sequence[Run]) -> Figure | None:
    """Return one figure, a panel a setup; setups in which nothing was counted are left out."""
    # One run a configuration: bytes hardly depend on rate and seed.
    setups = {
        label: [same[0] for same in by_configuration(group).values()]
        for label, group in by_setup(runs).items()
    }
    setups = {
        label: group for label, group in setups.items()
        if any(sum((run.by_group("wire_nbytes") or {}).values()) for run in group)
    }  # fmt: skip
    if not setups:
        return None
    num_bars = sum(len(group) + 1 for group in setups.values())
    return Figure(
        key="traffic",
        title="Bytes by kind of traffic",
        columns=(
            "setup", "configuration", *(f"{_NAMES[group]} [MB]" for group in TRAFFIC_GROUPS),
            "sum [MB]", "float32 of what is sent [MB]", "kernel's count [MB]",
            "times less than before",
        ),
        rows=[row for label, group in setups.items() for row in _bytes(label, group)],
        draw=lambda canvas: _draw_traffic(canvas, setups),
        size=(9.2, 0.9 * len(setups) + 0.34 * num_bars + 0.7),
        caption="What a host sends in a step, with headers. The first bar is what float32 takes. "
        "The tick is what the kernel counted on the interface.",
    )  # fmt: skip


def _before(runs: Sequence[Run]) -> tuple[str, Bytes]:
    """Return the bytes of a step by group as float32, and what to call them."""
    raw, distinct = (
        [count for run in runs if (count := run.by_group(field))]
        for field in ("raw_nbytes", "distinct_nbytes")
    )
    counts = raw or distinct
    most = {group: max((count[group] for count in counts), default=0.0) for group in TRAFFIC_GROUPS}
    return "float32, all bags" if raw else "float32, bags merged", most


def _bytes(label: str, runs: Sequence[Run]) -> list[Sequence[Cell]]:
    name, before = _before(runs)
    most, empty = sum(before.values()), [None] * len(TRAFFIC_GROUPS)
    rows: list[Sequence[Cell]] = [(label, name, *_megabytes(before), most / 1e6, None, None, 1.0)]
    for run in runs:
        by_group, distinct = run.by_group("wire_nbytes"), run.by_group("distinct_nbytes")
        wire, what = (sum(n.values()) / 1e6 if n else None for n in (by_group, distinct))
        counted = (_kernel_count(run) or 0.0) / 1e6 or None
        total = wire or counted
        less = most / 1e6 / total if total else None
        split = _megabytes(by_group) if by_group else empty
        rows.append((label, run.configuration, *split, wire, what, counted, less))
    return rows


def _megabytes(by_group: Bytes) -> list[float]:
    return [by_group[group] / 1e6 for group in TRAFFIC_GROUPS]


def _draw_traffic(canvas: Any, setups: Mapping[str, Sequence[Run]]) -> None:
    heights = [len(group) + 2.2 for group in setups.values()]
    panels = canvas.subplots(len(setups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (label, runs) in zip(panels, setups.items(), strict=True):
        axes.set_title(short(label, 95))
        _draw_bars(axes, runs)
    style.legend_beside(panels[0], *panels)
    panels[-1].set_xlabel("sent by a host in a step [MB]")


def _draw_bars(axes: Any, runs: Sequence[Run]) -> None:
    bars: list[tuple[str, Bytes | None, float | None]] = [(*_before(runs), None)]
    bars += [(run.configuration, run.by_group("wire_nbytes"), _kernel_count(run)) for run in runs]
    ends = []
    for place, (_, by_group, counted) in enumerate(bars):
        end, kernel = 0.0, (counted or 0.0) / 1e6
        for group, nbytes in (by_group or {}).items():
            color, hatch = _FILLS[group]
            axes.barh(
                place, nbytes / 1e6, 0.7, left=end, color=color, hatch=hatch, edgecolor="white",
                linewidth=0.5, label=_NAMES[group],
            )  # fmt: skip
            end += nbytes / 1e6
        if kernel and not by_group:
            look = {"edgecolor": style.MUTED, "hatch": "xx", "label": "not split"}
            axes.barh(place, kernel, 0.7, color="none", linewidth=0.8, **look)
        if kernel:
            tick = {"color": style.INK, "linewidth": 1.5, "label": "kernel's count"}
            axes.vlines(kernel, place - 0.42, place + 0.42, **tick)
        ends.append(max(end, kernel))
        said = f" {end or kernel:.2f}" if ends[-1] else " not counted"
        axes.text(ends[-1], place, said, va="center", fontsize=8.5)
    axes.set_yticks(range(len(bars)), [short(name) for name, _, _ in bars])
    axes.set_xlim(0, 1.09 * max(ends))
    axes.invert_yaxis()
    style.grid(axes, "x")


def _kernel_count(run: Run) -> float | None:
    """Return the bytes that the kernel counted on the interface; None without a network."""
    return run.sent_nbytes if run.setup.is_network else None
