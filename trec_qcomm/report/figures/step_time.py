"""Step time against the rate of the links, and the rate up to which a way is worth it.

Between two rates that were measured a step is taken to be a + b / rate, which is exact where it is
compute and one transfer after another. So break-even is found on a straight line over 1 / rate,
where no limit is 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trec_qcomm.report.figure import Cell, Figure, Finding, short, verdict
from trec_qcomm.report.figures.quality.rate_distortion import Kept
from trec_qcomm.report.runs import (
    Run,
    Setup,
    base_of,
    by_setup,
    rate_text,
    setup_labels,
    ways_of,
)
from trec_qcomm.report.style import INK, MUTED, Look, Looks, grid, plain_ticks

_FREE = 200  # no limit is drawn at so many times the fastest link


@dataclass(frozen=True)
class Crossing:
    """Where two medians are equal. Args: is_clear: at the rates measured on either side of it the
    20th to 80th percentiles of the two are apart, so that it is no scatter."""

    rate_mbit: float
    is_clear: bool

    def __str__(self) -> str:
        return rate_text(self.rate_mbit) + ("" if self.is_clear else " (within the scatter)")


@dataclass(frozen=True)
class Crossings:
    """Of a way against the base. Args: gains: (1 / rate in s / Mbit, seconds saved by the medians),
    by rising 1 / rate.  rates: rising."""

    gains: Sequence[tuple[float, float]]
    rates: Sequence[Crossing]

    def __str__(self) -> str:
        if not self.rates:
            slower = all(gain <= 0 for _, gain in self.gains)
            return f"none, {'slower' if slower else 'faster'} at every rate measured"
        return " and ".join(map(str, self.rates))


def crossings(base: Sequence[Run], own: Sequence[Run]) -> Crossings:
    """From the rates that both have. Args: runs of one setup, a rate once."""
    ours = {inverse(run): run.step_s for run in own}
    both = {inverse(run): run.step_s for run in base if inverse(run) in ours}
    gains = [(u, both[u]["p50"] - ours[u]["p50"]) for u in sorted(both)]
    found = []
    for (u, gain), (v, next_gain) in pairwise(gains):
        if gain * next_gain < 0:
            rate = 1 / (u + (v - u) * gain / (gain - next_gain))
            found.append(Crossing(rate, all(_are_apart(both[x], ours[x]) for x in (u, v))))
    return Crossings(gains, found[::-1])


def _are_apart(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return one["p80"] < other["p20"] or other["p80"] < one["p20"]


def inverse(run: Run) -> float:
    """1 / rate in seconds a Mbit; 0 without a limit."""
    return 0.0 if run.rate_mbit is None else 1 / run.rate_mbit


def build(runs: Sequence[Run], looks: Looks, kept: Mapping[str, Kept]) -> list[Figure]:
    """One figure, two panels a setup. Args: kept: ways that are shown to keep quality."""
    setups = by_setup([run for run in runs if run.setup.is_network])
    setups = {setup: _one_seed(own) for setup, own in setups.items()}
    if not setups:
        return []
    labels = setup_labels(list(setups))
    rows = [row for setup, own in setups.items() for row in _rows(labels[setup], own)]
    return [
        Figure(
            key="step-time",
            title="Step time against link rate",
            caption=(
                "Left: the median step of the slowest host with all compute, whiskers from the "
                "20th to the 80th percentile. Right: how many times the baseline's speed that is. "
                "Ways that send less gain on slow links; where there is no limit only compute and "
                "coding are left. A diamond is break-even: on faster links the way no longer pays. "
                "Hollow ones lie within the scatter of the steps. Lines are a + b / rate between "
                "the rates that were measured."
            ),
            alt=f"Step time over link rate. {_alt(rows)}",
            columns=(
                "setup", "configuration", "link", "p20 [ms]", "p50 [ms]", "p80 [ms]",
                "times the baseline's speed", "break-even of the configuration",
            ),
            rows=rows,
            draw=lambda canvas: _draw(canvas, setups, labels, looks),
            size=(9.2, 4.1 * len(setups)),
            notes=(
                "Hosts are network namespaces of one machine, whose links a token bucket slows "
                "down: times are for comparison within this figure.",
                *(_told(labels[setup], own) for setup, own in setups.items() if all_crossings(own)),
            ),
            findings=[
                f for s, own in setups.items() for f in _findings(s, labels[s], own, kept)
            ],
        )
    ]  # fmt: skip


def _one_seed(runs: Sequence[Run]) -> list[Run]:
    """Those of the first seed that each way has."""
    first = {way: own[0].seed for way, own in ways_of(runs).items()}
    return [run for run in runs if run.seed == first[run.way]]


def all_crossings(runs: Sequence[Run]) -> dict[str, Crossings]:
    """Of each way but the base; empty without a base."""
    ways = ways_of(runs)
    base = base_of(ways)
    if base is None:
        return {}
    found = {way: crossings(ways[base], own) for way, own in ways.items() if way != base}
    return {way: even for way, even in found.items() if even.gains}


def _told(label: str, runs: Sequence[Run]) -> str:
    """Break-even of all ways of a setup; ways of which the same is said are said together."""
    by_text: dict[str, list[str]] = {}
    for way, even in all_crossings(runs).items():
        by_text.setdefault(str(even), []).append(way)
    said = (f"{', '.join(ways)}: {text}" for text, ways in by_text.items())
    return f"Break-even by the medians ({label}): {'; '.join(said)}."


def _rows(label: str, runs: Sequence[Run]) -> list[Sequence[Cell]]:
    evens, base = all_crossings(runs), _base_s(runs)
    rows: list[Sequence[Cell]] = []
    for run in sorted(runs, key=inverse, reverse=True):
        times = [1e3 * run.step_s[p] for p in ("p20", "p50", "p80")]
        gain = base[run.rate_mbit] / run.step_s["p50"] if run.rate_mbit in base else None
        even = str(evens[run.way]) if run.way in evens else None
        rows.append((label, run.way, rate_text(run.rate_mbit), *times, gain, even))
    return rows


def _base_s(runs: Sequence[Run]) -> dict[float | None, float]:
    """Seconds of the base by rate."""
    base = base_of(run.way for run in runs)
    return {run.rate_mbit: run.step_s["p50"] for run in runs if run.way == base}


def _findings(
    setup: Setup, label: str, runs: Sequence[Run], kept: Mapping[str, Kept]
) -> list[Finding]:
    """At each rate: the way that gains most, of all and of those that keep quality."""
    base, found = base_of(run.way for run in runs), []
    quality = {way: own.told(setup) for way, own in kept.items()}
    for rate in sorted({r.rate_mbit for r in runs}, key=lambda r: math.inf if r is None else r):
        times = {run.way: run.step_s for run in runs if run.rate_mbit == rate}
        if base is None or base not in times or len(times) < 2:
            continue
        stock = times.pop(base)
        where = f"At {rate_text(rate)} ({label})" if rate else f"Without a limit ({label})"
        found.append(_at_rate(where, base, stock, times, quality))
    return found


def _at_rate(
    where: str,
    base: str,
    stock: Mapping[str, float],
    times: Mapping[str, Mapping[str, float]],
    quality: Mapping[str, str],
) -> Finding:
    """Args: quality: by way that keeps it, where that was shown."""
    faster = [way for way, own in times.items() if own["p80"] < stock["p20"]]
    slower = [way for way, own in times.items() if own["p20"] > stock["p80"]]
    worse = f"; slower beyond the scatter: {', '.join(slower)}" if slower else ""
    if not faster:
        text = f"{where} nothing is faster than {base} beyond the scatter{worse}."
        return Finding(text, "does not hold")

    def gain(way: str) -> str:
        own = times[way]["p50"]
        return f"{way} {1e3 * own:.0f} ms, {stock['p50'] / own:.1f} times as fast"

    fastest = min(faster, key=lambda way: times[way]["p50"])
    text = f"{where} a step of {base} takes {1e3 * stock['p50']:.0f} ms, of {gain(fastest)}"
    keeping = [way for way in faster if way in quality]
    if fastest in quality:
        text += f", with {quality[fastest]}"
    elif keeping:
        best = min(keeping, key=lambda way: times[way]["p50"])
        text += f", and with {quality[best]} {gain(best)}"
    return Finding(f"{text}{worse}.", verdict(not slower))


def _alt(rows: Sequence[Sequence[Cell]]) -> str:
    return "; ".join(f"{row[1]} at {row[2]} {row[4]:.0f} ms" for row in rows)


def _draw(
    canvas: Any, setups: Mapping[Setup, Sequence[Run]], labels: Mapping[Setup, str], looks: Looks
) -> None:
    panels = canvas.subplots(len(setups), 2, squeeze=False)
    for (left, right), (setup, runs) in zip(panels, setups.items(), strict=True):
        left.set_title(short(labels[setup], 60))
        rates = sorted({run.rate_mbit for run in runs if run.rate_mbit is not None})
        free = _FREE * max([*rates, 1.0])
        for way, own in ways_of(runs).items():
            _times(left, sorted(own, key=inverse, reverse=True), looks[way], free)
        left.set_yscale("log")
        plain_ticks(left.yaxis)
        left.set_ylabel("step [ms]")
        _speeds(right, runs, looks, free)
        for axes in (left, right):
            _rate_axis(axes, rates, free if any(r.rate_mbit is None for r in runs) else None)
        handles, names = left.get_legend_handles_labels()
        for face, name in ((MUTED, "break-even"), ("none", "within scatter")):
            style = {"color": face, "markeredgecolor": MUTED, "markersize": 8}
            handles, names = [*handles, *right.plot([], [], "D", **style)], [*names, name]
        right.legend(handles, names, loc="center left", bbox_to_anchor=(1.01, 0.5))


def _times(axes: Any, own: Sequence[Run], look: Look, free: float) -> None:
    places = [run.rate_mbit or free for run in own]
    rates, seconds = _curve(own, free)
    axes.plot(rates, [1e3 * s for s in seconds], color=look.color, linestyle=look.dash)
    times = [[1e3 * run.step_s[p] for run in own] for p in ("p20", "p50", "p80")]
    axes.vlines(places, times[0], times[2], color=look.color, linewidth=1)
    name = short(own[0].way, 26)
    axes.plot(places, times[1], look.marker, color=look.color, label=name)


def _speeds(axes: Any, runs: Sequence[Run], looks: Looks, free: float) -> None:
    """Times the base's speed, over the rates that both have."""
    ways, evens = ways_of(runs), all_crossings(runs)
    base = base_of(ways)
    axes.set_ylabel(f"times the speed of {base}" if base else "no baseline in these records")
    axes.axhline(1, color=INK, linewidth=1)
    for way, even in evens.items():
        both = {u for u, _ in even.gains}
        own, other = (
            sorted((r for r in ways[w] if inverse(r) in both), key=inverse, reverse=True)
            for w in (way, base or "")
        )
        look, rates = looks[way], _curve(own, free)[0]
        gains = [b / a for a, b in zip(_curve(own, free)[1], _curve(other, free)[1], strict=True)]
        axes.plot(rates, gains, color=look.color, linestyle=look.dash)
        measured = [b.step_s["p50"] / a.step_s["p50"] for a, b in zip(own, other, strict=True)]
        axes.plot([r.rate_mbit or free for r in own], measured, look.marker, color=look.color)
        for crossing in even.rates:
            face = look.color if crossing.is_clear else "none"
            if crossing.rate_mbit < free:
                axes.plot([crossing.rate_mbit], [1], "D", color=face, markersize=8,
                          markeredgecolor=look.color)  # fmt: skip
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)


def _rate_axis(axes: Any, rates: Sequence[float], free: float | None) -> None:
    grid(axes)
    axes.set_xscale("log")
    places, texts = [*rates], [rate_text(rate).replace(" ", "\n") for rate in rates]
    if free is not None:
        places, texts = [*places, free], [*texts, "no\nlimit"]
    axes.set_xticks(places, texts)
    axes.minorticks_off()
    axes.set_xlabel("rate of each host's link")


def _curve(own: Sequence[Run], free: float) -> tuple[list[float], list[float]]:
    """a + b / rate between neighbours, in Mbit/s and seconds."""
    xs: list[float] = []
    ys: list[float] = []
    for left, right in pairwise(own):
        begin, end = left.rate_mbit or free, right.rate_mbit or free
        for step in range(33):
            rate = begin * (end / begin) ** (step / 32)
            u = inverse(right) if step == 32 else 1 / rate
            xs.append(rate)
            ys.append(_time_at(own, u))
    return xs, ys


def _time_at(own: Sequence[Run], u: float) -> float:
    """Seconds at 1 / rate, on the line through the neighbours of that place."""
    points = sorted((inverse(run), run.step_s["p50"]) for run in own)
    for (left, low), (right, high) in pairwise(points):
        if left <= u <= right:
            return low + (high - low) * (u - left) / (right - left)
    return points[0][1] if u < points[0][0] else points[-1][1]
