"""Figures of the numeric debugger: where precision is lost.

A run is the debug records of one folder.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trec_qcomm.lab.debug.recorded import DebugRun, PlaceNoise, noisiest
from trec_qcomm.lab.records import DebugRecord, Record
from trec_qcomm.lab.report import style
from trec_qcomm.lab.report.figure import Cell, Figure, numbered, short
from trec_qcomm.lab.report.runs import grouped

MOST_ROWS, MOST_COLUMNS = 40, 60


def debug_runs(records: Sequence[Record]) -> list[Figure]:
    """Return a figure for each run that loses something."""
    every = [record for record in records if isinstance(record, DebugRecord)]
    folders = grouped(every, lambda r: str(Path(r.origin.file).parent) if r.origin else "")
    figures = []
    for number, (folder, members) in enumerate(folders.items(), start=1):
        figure = signal_to_noise(DebugRun(folder, members))
        if figure is not None:
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
