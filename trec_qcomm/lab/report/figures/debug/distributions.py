"""Distributions of the noisiest tables: how large errors are, and how norms of rows move."""

import math
from collections.abc import Sequence
from typing import Any

from trec_qcomm.lab.debug.recorded.noise import noisiest
from trec_qcomm.lab.debug.recorded.run import DebugRun, Place
from trec_qcomm.lab.records import DebugRecord
from trec_qcomm.lab.report.figure import Cell, Figure, short
from trec_qcomm.lab.report.style import OURS, grid, plain_ticks

MOST = 4
QUANTILE_NAMES = ("least", "1 %", "25 %", "median", "75 %", "99 %", "largest")
LOWEST_BIN = -25  # bin i of an error histogram is [i - 25, i - 24), see records.debug
_DASHES = (":", "--", "-")
_BANDS = ((1, 5, 0.2), (2, 4, 0.35))  # quantiles that a band lies between, and its shade


def build(run: DebugRun, *, title: str, suffix: str) -> list[Figure]:
    """Return the figure of the noisiest places with histograms; none without any."""
    places = [line.place for line in noisiest(run) if _steps_with(run, line.place)][:MOST]
    if not places:
        return []
    return [
        Figure(
            key=f"debug-distributions{suffix}",
            title=f"Errors and norms of the noisiest tables{title}",
            caption=(
                "Left: how many values have an error of which size, as a power of 2 of their row's "
                "range (max - min), in the first, the middle and the last measured step. A codec "
                "of 4 bits peaks near -5, one of 2 bits near -2; a curve that moves right loses "
                "precision, one that reaches 0 has errors as large as its rows. Right: norms of "
                "the rows by step: median, the middle half and the middle 98 %. A band that widens "
                "upward is a tail that grows."
            ),
            alt=f"Histograms of errors and bands of norms of {', '.join(map(str, places))}",
            columns=("name", "direction", "step", "power of 2", "values"),
            rows=[row for place in places for row in _rows(run, place)],
            draw=lambda canvas: _draw(canvas, run, places),
            size=(9.2, 0.6 + 2.0 * len(places)),
        )
    ]


def _steps_with(run: DebugRun, place: Place) -> list[int]:
    """Return up to three steps that have a histogram: first, middle, last."""
    steps = [step for step, r in run.by_place[place].items() if any(histogram(r))]
    return sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []


def histogram(records: Sequence[DebugRecord]) -> list[int]:
    """Return the counts of errors of all ranks together; empty without any."""
    known = [record.error_histogram for record in records if record.error_histogram]
    return [sum(counts) for counts in zip(*known, strict=True)]


def _rows(run: DebugRun, place: Place) -> list[Sequence[Cell]]:
    return [
        (place.name, place.direction, step, number + LOWEST_BIN, count)
        for step in _steps_with(run, place)
        for number, count in enumerate(histogram(run.by_place[place][step]))
        if count
    ]


def _draw(canvas: Any, run: DebugRun, places: Sequence[Place]) -> None:
    every = canvas.subplots(len(places), 2, squeeze=False)
    for (left, right), place in zip(every, places, strict=True):
        left.set_title(short(str(place), 50))
        _errors(left, run, place)
        _norms(right, run, place)
        for axes in (left, right):
            grid(axes)
    every[-1][0].set_xlabel("log2 of the error over the row's range")
    every[-1][1].set_xlabel("step")


def _errors(axes: Any, run: DebugRun, place: Place) -> None:
    steps = _steps_with(run, place)
    for dash, step in zip(_DASHES[-len(steps) :], steps, strict=True):
        counts = histogram(run.by_place[place][step])
        shares = [count / sum(counts) for count in counts]
        middles = [number + LOWEST_BIN + 0.5 for number in range(len(counts))]
        axes.step(middles, shares, where="mid", color=OURS, linestyle=dash, label=f"step {step}")
    axes.set_ylabel("share of values")
    axes.legend()


def _norms(axes: Any, run: DebugRun, place: Place) -> None:
    quantiles = {
        step: joined
        for step, records in run.by_place[place].items() if (joined := norms(records))
    }  # fmt: skip
    if not quantiles:
        axes.set_axis_off()
        return
    steps = list(quantiles)
    for low, high, shade in _BANDS:
        lower, upper = ([quantiles[step][at] for step in steps] for at in (low, high))
        axes.fill_between(steps, lower, upper, color=OURS, alpha=shade, linewidth=0)
    axes.plot(steps, [quantiles[step][3] for step in steps], color=OURS, marker=".")
    if min(quantiles[step][1] for step in steps) > 0:
        axes.set_yscale("log")
        plain_ticks(axes.yaxis, subs=(1, 3))
    axes.set_ylabel("norm of a row")


def norms(records: Sequence[DebugRecord]) -> list[float]:
    """Return quantiles of norms, the mean over ranks weighted by rows; empty without any."""
    known = [(r.norm_quantiles, r.num_rows or 0) for r in records if r.norm_quantiles]
    total = sum(weight for _, weight in known)
    if not total:
        return []
    columns = zip(*(quantiles for quantiles, _ in known), strict=True)
    weights = [weight / total for _, weight in known]
    return [math.fsum(w * q for w, q in zip(weights, column, strict=True)) for column in columns]
