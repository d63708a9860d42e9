"""Step time against the rate of the links, and the rate up to which a configuration pays.

Lines between the rates that were measured are a + b / rate, as break_even.py has it.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from trec_qcomm.lab.report.figure import Cell, Figure, Finding, short, verdict
from trec_qcomm.lab.report.figures.break_even import all_crossings, inverse
from trec_qcomm.lab.report.figures.quality.joined import Passing
from trec_qcomm.lab.report.runs import (
    Run,
    Setup,
    baseline_of,
    by_configuration,
    by_setup,
    rate_text,
    setup_labels,
)
from trec_qcomm.lab.report.style import INK, MUTED, Look, Looks, grid, plain_ticks

_FREE = 200  # no limit is drawn at so many times the fastest link
_CLOSE = 6  # labels of two rates overlap if one is less than so many times the other


def build(runs: Sequence[Run], looks: Looks, passing: Mapping[str, Passing]) -> list[Figure]:
    """Return one figure with two panels for each setup.

    Args: passing: configurations that are shown to keep quality.
    """
    setups = by_setup([run for run in runs if run.setup.is_network])
    setups = {setup: _one_seed(group) for setup, group in setups.items()}
    if not setups:
        return []
    labels = setup_labels(list(setups))
    rows = [row for setup, group in setups.items() for row in _rows(labels[setup], group)]
    return [
        Figure(
            key="step-time",
            title="Step time against link rate",
            caption=(
                "Left: the median step of the slowest host with all compute, whiskers from the "
                "20th to the 80th percentile. Right: how many times the baseline's speed that is. "
                "Who sends less gains on slow links; where there is no limit only compute and "
                "coding are left. A diamond is break-even: on faster links it no longer pays. "
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
                *(
                    _break_even_note(labels[setup], group)
                    for setup, group in setups.items() if all_crossings(group)
                ),
            ),
            findings=[
                finding for setup, group in setups.items()
                for finding in _findings(setup, labels[setup], group, passing)
            ],
        )
    ]  # fmt: skip


def _one_seed(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of the first seed that each configuration has."""
    first = {name: group[0].seed for name, group in by_configuration(runs).items()}
    return [run for run in runs if run.seed == first[run.configuration]]


def _break_even_note(label: str, runs: Sequence[Run]) -> str:
    """Return the break-even of all configurations of a setup; equal texts are said once."""
    names_by_text: dict[str, list[str]] = {}
    for name, crossed in all_crossings(runs).items():
        names_by_text.setdefault(str(crossed), []).append(name)
    said = (f"{', '.join(names)}: {text}" for text, names in names_by_text.items())
    return f"Break-even by the medians ({label}): {'; '.join(said)}."


def _rows(label: str, runs: Sequence[Run]) -> list[Sequence[Cell]]:
    crossings, baseline_s = all_crossings(runs), _baseline_s(runs)
    rows: list[Sequence[Cell]] = []
    for run in sorted(runs, key=inverse, reverse=True):
        times = [1e3 * run.step_s[p] for p in ("p20", "p50", "p80")]
        gain = None
        if run.rate_mbit in baseline_s:
            gain = baseline_s[run.rate_mbit] / run.step_s["p50"]
        crossed = crossings.get(run.configuration)
        even = None if crossed is None else str(crossed)
        rows.append((label, run.configuration, rate_text(run.rate_mbit), *times, gain, even))
    return rows


def _baseline_s(runs: Sequence[Run]) -> dict[float | None, float]:
    """Return the baseline's median seconds by rate."""
    baseline = baseline_of(run.configuration for run in runs)
    return {run.rate_mbit: run.step_s["p50"] for run in runs if run.configuration == baseline}


def _findings(
    setup: Setup, label: str, runs: Sequence[Run], passing: Mapping[str, Passing]
) -> list[Finding]:
    """Return who gains most at each rate, of all and of those that keep quality."""
    baseline, findings = baseline_of(run.configuration for run in runs), []
    quality = {name: passed.described(setup) for name, passed in passing.items()}
    for rate in sorted({r.rate_mbit for r in runs}, key=lambda r: math.inf if r is None else r):
        times = {run.configuration: run.step_s for run in runs if run.rate_mbit == rate}
        if baseline is None or baseline not in times or len(times) < 2:
            continue
        baseline_s = times.pop(baseline)
        where = f"At {rate_text(rate)} ({label})" if rate else f"Without a limit ({label})"
        findings.append(_at_rate(where, baseline, baseline_s, times, quality))
    return findings


def _at_rate(
    where: str,
    baseline: str,
    baseline_s: Mapping[str, float],
    times: Mapping[str, Mapping[str, float]],
    quality: Mapping[str, str],
) -> Finding:
    """Return who is fastest at one rate.

    Args:
        where: the rate and the setup, in words.
        baseline, baseline_s: name of the baseline, and its seconds by percentile.
        times: seconds by configuration and percentile.
        quality: where it was shown that quality is kept, by configuration.
    """
    faster = [name for name, step_s in times.items() if step_s["p80"] < baseline_s["p20"]]
    slower = [name for name, step_s in times.items() if step_s["p20"] > baseline_s["p80"]]
    worse = f"; slower beyond the scatter: {', '.join(slower)}" if slower else ""
    if not faster:
        text = f"{where} nothing is faster than {baseline} beyond the scatter{worse}."
        return Finding(text, "does not hold")

    def gain(name: str) -> str:
        median_s = times[name]["p50"]
        times_as_fast = baseline_s["p50"] / median_s
        return f"{name} {1e3 * median_s:.0f} ms, {times_as_fast:.1f} times as fast"

    fastest = min(faster, key=lambda name: times[name]["p50"])
    baseline_ms = 1e3 * baseline_s["p50"]
    text = f"{where} a step of {baseline} takes {baseline_ms:.0f} ms, of {gain(fastest)}"
    keeping = [name for name in faster if name in quality]
    if fastest in quality:
        text += f", with {quality[fastest]}"
    elif keeping:
        best = min(keeping, key=lambda name: times[name]["p50"])
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
        for name, group in by_configuration(runs).items():
            _times(left, sorted(group, key=inverse, reverse=True), looks[name], free)
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


def _times(axes: Any, runs: Sequence[Run], look: Look, free: float) -> None:
    places = [run.rate_mbit or free for run in runs]
    rates, seconds = _curve(runs, free)
    axes.plot(rates, [1e3 * s for s in seconds], color=look.color, linestyle=look.dash)
    times = [[1e3 * run.step_s[p] for run in runs] for p in ("p20", "p50", "p80")]
    axes.vlines(places, times[0], times[2], color=look.color, linewidth=1)
    name = short(runs[0].configuration, 26)
    axes.plot(places, times[1], look.marker, color=look.color, label=name)


def _speeds(axes: Any, runs: Sequence[Run], looks: Looks, free: float) -> None:
    """Draw how many times the baseline's speed, over the rates that both have."""
    groups = by_configuration(runs)
    baseline = baseline_of(groups)
    label = f"times the speed of {baseline}" if baseline else "no baseline in these records"
    axes.set_ylabel(label)
    axes.axhline(1, color=INK, linewidth=1)
    for name, crossed in all_crossings(runs).items():
        common = {u for u, _ in crossed.gains}
        ours, theirs = (
            sorted((r for r in groups[n] if inverse(r) in common), key=inverse, reverse=True)
            for n in (name, baseline or "")
        )
        look, (rates, seconds) = looks[name], _curve(ours, free)
        gains = [b / a for a, b in zip(seconds, _curve(theirs, free)[1], strict=True)]
        axes.plot(rates, gains, color=look.color, linestyle=look.dash)
        measured = [b.step_s["p50"] / a.step_s["p50"] for a, b in zip(ours, theirs, strict=True)]
        axes.plot([r.rate_mbit or free for r in ours], measured, look.marker, color=look.color)
        for crossing in crossed.rates:
            face = look.color if crossing.is_clear else "none"
            if crossing.rate_mbit < free:
                axes.plot([crossing.rate_mbit], [1], "D", color=face, markersize=8,
                          markeredgecolor=look.color)  # fmt: skip
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)


def _rate_axis(axes: Any, rates: Sequence[float], free: float | None) -> None:
    grid(axes)
    axes.set_xscale("log")
    places, texts = [*rates], [rate_text(rate).removesuffix("bit/s") for rate in rates]
    for number, (rate, after) in enumerate(pairwise(rates), start=1):
        if after < _CLOSE * rate and not texts[number - 1].startswith("\n"):
            texts[number] = f"\n{texts[number]}"  # a line lower, or the two would overlap
    if free is not None:
        places, texts = [*places, free], [*texts, "no\nlimit"]
    axes.set_xticks(places, texts)
    axes.minorticks_off()
    axes.set_xlabel("rate of each host's link [bit/s]")


def _curve(runs: Sequence[Run], free: float) -> tuple[list[float], list[float]]:
    """Return a + b / rate between neighbours: rates in Mbit/s, and seconds."""
    xs: list[float] = []
    ys: list[float] = []
    for left, right in pairwise(runs):
        begin, end = left.rate_mbit or free, right.rate_mbit or free
        for step in range(33):
            rate = begin * (end / begin) ** (step / 32)
            u = inverse(right) if step == 32 else 1 / rate
            xs.append(rate)
            ys.append(_time_at(runs, u))
    return xs, ys


def _time_at(runs: Sequence[Run], u: float) -> float:
    """Return the seconds at u = 1 / rate, on the line through the neighbours of that place."""
    points = sorted((inverse(run), run.step_s["p50"]) for run in runs)
    for (left, low), (right, high) in pairwise(points):
        if left <= u <= right:
            return low + (high - low) * (u - left) / (right - left)
    return points[0][1] if u < points[0][0] else points[-1][1]
