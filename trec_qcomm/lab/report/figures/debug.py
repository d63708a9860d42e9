"""Figures of the numeric debugger: where precision is lost, how errors lie, what others would do.

A run is the debug records of one folder.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trec_qcomm.lab.debug.recorded import DebugRun, Place, PlaceNoise, Tried, noisiest, tried_of
from trec_qcomm.lab.records import DebugRecord, Record
from trec_qcomm.lab.report import style
from trec_qcomm.lab.report.figure import Cell, Figure, short
from trec_qcomm.lab.report.runs import grouped
from trec_qcomm.lab.report.style import Looks

MOST_ROWS, MOST_COLUMNS, MOST_PLACES, MOST_LINES = 40, 60, 4, 8
LOWEST_BIN = -25  # bin i of an error histogram is [i - 25, i - 24), see records.debug
_DASHES = (":", "--", "-")


def debug_runs(records: Sequence[Record]) -> list[Figure]:
    """Return up to three figures for each run."""
    every = [record for record in records if isinstance(record, DebugRecord)]
    folders = grouped(every, lambda r: str(Path(r.origin.file).parent) if r.origin else "")
    figures = []
    for number, (folder, members) in enumerate(folders.items(), start=1):
        run = DebugRun(folder, members)
        for figure in filter(None, (signal_to_noise(run), distributions(run), shadows(run))):
            title = f"{figure.title}: {Path(folder).name}" if len(folders) > 1 else figure.title
            key = f"{figure.key}-{number}" if number > 1 else figure.key
            figures.append(replace(figure, key=key, title=title))
    return figures


def signal_to_noise(run: DebugRun) -> Figure | None:
    """Return decibels by table and step, None where all is exact and finite."""
    lines, steps = noisiest(run), run.steps
    if not lines:
        return None
    shown, columns = lines[:MOST_ROWS], columns_of(steps)
    rows: list[Sequence[Cell]] = []
    for line in lines:
        pairs = zip(line.decibels, steps, strict=True)
        known = [(d, step) for d, step in pairs if d is not None]
        least, at = min(known, default=(math.inf, None))
        decibels = (line.median, least, known[-1][0] if known else math.inf)
        place = (line.place.name, line.place.direction, line.place.site, line.codec)
        median, low, last = (None if d == math.inf else d for d in decibels)
        rows.append((*place, median, low, at, last, line.bits, line.lost, sum(line.nonfinite)))
    return Figure(
        key="debug",
        title="Signal to noise by table and step",
        columns=(
            "name", "direction", "site", "codec", "median dB", "least dB", "at step",
            "last dB", "bits a value", "share lost", "NaN and inf",
        ),
        rows=rows,
        draw=lambda canvas: _draw_noise(canvas, shown, columns, steps),
        size=(max(7.0, 3.8 + 0.11 * len(columns)), 1.5 + 0.21 * len(shown)),
        caption="The noisiest rows of the table first; a column is the noisiest of its steps. A "
        "cross is NaN or inf before the codec. Grey: nothing was sent, or all of it exactly.",
    )  # fmt: skip


def columns_of(steps: Sequence[int]) -> list[range]:
    """Return the numbers of the steps that each column stands for, at most MOST_COLUMNS."""
    width = -(-len(steps) // MOST_COLUMNS)
    return [range(at, min(at + width, len(steps))) for at in range(0, len(steps), width)]


def _draw_noise(
    canvas: Any, lines: Sequence[PlaceNoise], columns: Sequence[range], steps: Sequence[int]
) -> None:
    axes = canvas.subplots()
    worst = [
        [min((d for n in column if (d := line.decibels[n]) is not None), default=math.inf)
         for column in columns]
        for line in lines
    ]  # fmt: skip
    colors = style.matplotlib().colormaps["cividis"].resampled(12).with_extremes(bad="#c9ced6")
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(worst), cmap=colors, vmin=0, vmax=60, edgecolors="white", linewidth=0.6
    )
    canvas.colorbar(mesh, label="dB", aspect=8)
    axes.invert_yaxis()
    for y, line in enumerate(lines):
        odd = [
            x + 0.5 for x, column in enumerate(columns) if any(line.nonfinite[n] for n in column)
        ]
        axes.plot(odd, [y + 0.5] * len(odd), "x", color=style.INK, markersize=5)
    ticks = range(0, len(columns), -(-len(columns) // 10))
    axes.set_xticks([x + 0.5 for x in ticks], [str(steps[columns[x][0]]) for x in ticks])
    axes.set_yticks([y + 0.5 for y in range(len(lines))], [short(str(r.place), 40) for r in lines])
    axes.set_xlabel("step")


def distributions(run: DebugRun) -> Figure | None:
    """Return errors and norms of the noisiest places with histograms, None without any."""
    steps = {line.place: _steps_with(run, line.place) for line in noisiest(run)}
    places = [place for place, some in steps.items() if some][:MOST_PLACES]
    if not places:
        return None
    return Figure(
        key="debug-distributions",
        title="Errors and norms of the noisiest tables",
        columns=("name", "direction", "step", "power of 2", "values"),
        rows=[
            (place.name, place.direction, step, number + LOWEST_BIN, count)
            for place in places for step in steps[place]
            for number, count in enumerate(histogram(run.by_place[place][step])) if count
        ],
        draw=lambda canvas: _draw_distributions(canvas, run, {p: steps[p] for p in places}),
        size=(9.2, 0.6 + 2.0 * len(places)),
        caption="Left: errors as a power of 2 of their row's range, in the first, the middle and "
        "the last measured step. Right: norms of rows: median, the middle half and the middle 98 "
        "%.",
    )  # fmt: skip


def _steps_with(run: DebugRun, place: Place) -> list[int]:
    """Return up to three steps that have a histogram: first, middle, last."""
    steps = [step for step, r in run.by_place[place].items() if any(histogram(r))]
    return sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []


def histogram(records: Sequence[DebugRecord]) -> list[int]:
    """Return the counts of errors of all ranks together; empty without any."""
    known = [record.error_histogram for record in records if record.error_histogram]
    return [sum(counts) for counts in zip(*known, strict=True)]


def norms(records: Sequence[DebugRecord]) -> list[float]:
    """Return quantiles of norms, the mean over ranks weighted by rows; empty without any."""
    known = [(r.norm_quantiles, r.num_rows) for r in records if r.norm_quantiles and r.num_rows]
    if not known:
        return []
    quantiles, weights = zip(*known, strict=True)
    return [float(mean) for mean in np.average(quantiles, axis=0, weights=weights)]


def _draw_distributions(
    canvas: Any, run: DebugRun, steps_by_place: Mapping[Place, Sequence[int]]
) -> None:
    every = canvas.subplots(len(steps_by_place), 2, squeeze=False)
    for (left, right), (place, steps) in zip(every, steps_by_place.items(), strict=True):
        left.set_title(short(str(place), 50))
        left.set_ylabel("share of values")
        right.set_ylabel("norm of a row")
        for dash, step in zip(_DASHES[-len(steps) :], steps, strict=True):
            counts = histogram(run.by_place[place][step])
            shares = [count / sum(counts) for count in counts]
            middles = [number + LOWEST_BIN + 0.5 for number in range(len(counts))]
            looks = {"color": style.OURS, "linestyle": dash, "label": f"step {step}"}
            left.step(middles, shares, where="mid", **looks)
        left.legend()
        quantiles = {s: q for s, r in run.by_place[place].items() if (q := norms(r))}
        if quantiles:
            x, columns = list(quantiles), list(zip(*quantiles.values(), strict=True))
            for low, high in ((1, 5), (2, 4)):
                right.fill_between(x, columns[low], columns[high], color=style.OURS, alpha=0.2)
            right.plot(x, columns[3], ".-", color=style.OURS)
            if min(columns[1]) > 0:
                right.set_yscale("log")
                style.plain_ticks(right.yaxis, subs=(1, 3))
        for axes in (left, right):
            style.grid(axes)
    every[-1][0].set_xlabel("log2 of the error over the row's range")
    every[-1][1].set_xlabel("step")


def shadows(run: DebugRun) -> Figure | None:
    """Return decibels against bits, a panel for each direction, None without shadows."""
    tried = {place: codecs for place, codecs in tried_of(run).items() if len(codecs) > 1}
    noisy = [line.place for line in noisiest(run) if line.place in tried]
    ordered = list(dict.fromkeys([*noisy, *tried]))
    panels = grouped(sorted(ordered, key=lambda place: place.order), lambda place: place.direction)
    if not panels:
        return None
    return Figure(
        key="debug-shadows",
        title="What other codecs would do",
        columns=("name", "direction", "codec", "in use", "bits a value", "dB"),
        rows=[
            (p.name, p.direction, c.codec, "yes" if c.is_used else "no", c.bits, c.decibels)
            for p in ordered for c in tried[p]
        ],
        draw=lambda canvas: _draw_shadows(canvas, panels, tried),
        size=(2.0 + 4.6 * len(panels), 3.8),
        caption="A line is a table, a point is a codec on its values, medians over the measured "
        "steps. The large point is the codec in use; the others were only tried.",
    )  # fmt: skip


def _draw_shadows(
    canvas: Any,
    places_by_direction: Mapping[str, Sequence[Place]],
    tried: Mapping[Place, Sequence[Tried]],
) -> None:
    panels = canvas.subplots(1, len(places_by_direction), squeeze=False)[0]
    for axes, (direction, places) in zip(panels, places_by_direction.items(), strict=True):
        looks = Looks(str(place) for place in places)
        for place in places[:MOST_LINES]:
            look, codecs = looks[str(place)], tried[place]
            bits, decibels = [c.bits for c in codecs], [c.decibels for c in codecs]
            axes.plot(bits, decibels, **look.line, markersize=4, label=short(place.name, 24))
            axes.scatter(
                bits, decibels, [80 * c.is_used for c in codecs], look.color, marker=look.marker
            )
        axes.set_title(direction)
        axes.set_xlabel("bits a value")
        axes.set_ylabel("signal to noise [dB]")
        style.grid(axes)
        axes.legend(loc="lower right", fontsize=8)
