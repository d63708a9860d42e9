"""Figures of the numeric debugger: where precision is lost, and what other codecs would do.

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
from trec_qcomm.lab.report.figure import Cell, Figure, numbered, short
from trec_qcomm.lab.report.runs import grouped
from trec_qcomm.lab.report.style import Looks

MOST_ROWS, MOST_COLUMNS, MOST_LINES = 40, 60, 8


def debug_runs(records: Sequence[Record]) -> list[Figure]:
    """Return up to two figures for each run."""
    every = [record for record in records if isinstance(record, DebugRecord)]
    folders = grouped(every, lambda r: str(Path(r.origin.file).parent) if r.origin else "")
    figures = []
    for number, (folder, members) in enumerate(folders.items(), start=1):
        run = DebugRun(folder, members)
        for figure in filter(None, (signal_to_noise(run), shadows(run))):
            title = f"{figure.title}: {Path(folder).name}" if len(folders) > 1 else figure.title
            figures.append(replace(figure, key=numbered(figure.key, number), title=title))
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
