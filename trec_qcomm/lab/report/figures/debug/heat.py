"""Heat map of signal to noise: a row for each table and direction, a column for each step."""

import math
from collections.abc import Sequence
from typing import Any

from trec_qcomm.lab.debug.recorded.noise import PlaceNoise, noisiest
from trec_qcomm.lab.debug.recorded.run import DebugRun
from trec_qcomm.lab.report.figure import Cell, Figure, Finding, short
from trec_qcomm.lab.report.style import INK, grid, heat_color, squares

MOST_ROWS, MOST_COLUMNS = 40, 60
LOW_DB, HIGH_DB = 0.0, 60.0  # no better than nothing sent; better than bf16


def build(run: DebugRun, *, title: str, suffix: str) -> list[Figure]:
    """Return the heat map; none where all is exact and finite."""
    lines, steps = noisiest(run), run.steps
    if not lines:
        return []
    shown = lines[:MOST_ROWS]
    columns = columns_of(steps)
    return [
        Figure(
            key=f"debug{suffix}",
            title=f"Signal to noise by table and step{title}",
            caption=(
                "A row is a table's rows (forward), their gradients (backward), or a dense "
                "parameter's gradient; a column is a measured step. The darker, the noisier: dark "
                "is 0 dB, where 0 would be as good, light is 60 dB and more. The noisiest rows "
                "come first. A row that turns dark is where precision is lost from that step on; "
                "a cross marks NaN or inf before the codec. Grey: nothing was sent, or all of it "
                "exactly."
            ),
            alt=_alt(lines, steps),
            columns=(
                "name", "direction", "site", "codec", "median dB", "least dB", "at step",
                "last dB", "bits a value", "share lost", "NaN and inf",
            ),
            rows=[_row(line, steps) for line in lines],
            draw=lambda canvas: _draw(canvas, shown, columns, steps),
            size=(max(7.0, 3.8 + 0.11 * len(columns)), 1.5 + 0.21 * len(shown)),
            notes=_notes(run, lines, columns),
            findings=_findings(lines, steps),
        )
    ]  # fmt: skip


def columns_of(steps: Sequence[int]) -> list[range]:
    """Return the numbers of the steps that each column stands for, at most MOST_COLUMNS."""
    width = -(-len(steps) // MOST_COLUMNS)
    return [range(at, min(at + width, len(steps))) for at in range(0, len(steps), width)]


def _row(line: PlaceNoise, steps: Sequence[int]) -> Sequence[Cell]:
    known = [(d, step) for d, step in zip(line.decibels, steps, strict=True) if d is not None]
    least, at = min(known, default=(math.inf, None))
    last = known[-1][0] if known else math.inf
    decibels = [None if value == math.inf else value for value in (line.median, least)]
    return (
        line.place.name, line.place.direction, line.place.site, line.codec, *decibels, at,
        None if last == math.inf else last, line.bits, line.lost, sum(line.nonfinite),
    )  # fmt: skip


def _alt(lines: Sequence[PlaceNoise], steps: Sequence[int]) -> str:
    noisiest = f"Noisiest: {lines[0].place}, {lines[0].median:.1f} dB in the median step."
    return f"Heat map of decibels, {len(lines)} rows and {len(steps)} steps. {noisiest}"


def _notes(run: DebugRun, lines: Sequence[PlaceNoise], columns: Sequence[range]) -> list[str]:
    notes = [f"{run}."]
    if len(lines) > MOST_ROWS:
        notes.append(f"Drawn are the noisiest {MOST_ROWS} of {len(lines)}; the table has all.")
    if len(columns[0]) > 1:
        notes.append(f"A column is the noisiest of {len(columns[0])} measured steps.")
    return notes


def _findings(lines: Sequence[PlaceNoise], steps: Sequence[int]) -> list[Finding]:
    findings = []
    odd = [
        (step, str(line.place))
        for line in lines for step, count in zip(steps, line.nonfinite, strict=True) if count
    ]  # fmt: skip
    if odd:
        step, where = min(odd)
        findings.append(Finding(f"NaN or inf first in step {step}: {where}.", "does not hold"))
    noisy = [line for line in lines if line.median < math.inf]
    if noisy:
        worst = "; ".join(f"{line.place} {line.median:.1f} dB" for line in noisy[:3])
        findings.append(Finding(f"The noisiest, in the median step: {worst}."))
    return findings


def _draw(
    canvas: Any, lines: Sequence[PlaceNoise], columns: Sequence[range], steps: Sequence[int]
) -> None:
    axes = canvas.subplots()
    axes.add_collection(squares([[_color(line, column) for column in columns] for line in lines]))
    crosses = [
        (x + 0.5, y + 0.5)
        for y, line in enumerate(lines) for x, column in enumerate(columns)
        if any(line.nonfinite[n] for n in column)
    ]  # fmt: skip
    if crosses:
        at = list(zip(*crosses, strict=True))
        axes.plot(*at, linestyle="none", marker="x", color=INK, markersize=5)
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(lines), 0)
    ticks = range(0, len(columns), -(-len(columns) // 10))
    axes.set_xticks([x + 0.5 for x in ticks], [str(steps[columns[x][0]]) for x in ticks])
    axes.set_yticks([y + 0.5 for y in range(len(lines))], [short(str(r.place), 40) for r in lines])
    axes.set_xlabel("step")
    for decibels in range(int(LOW_DB), int(HIGH_DB) + 1, 15):
        color = heat_color((decibels - LOW_DB) / (HIGH_DB - LOW_DB))
        axes.bar([0], [0], color=color, label=f"{decibels} dB")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, handlelength=1)
    grid(axes)
    axes.grid(False)


def _color(line: PlaceNoise, column: range) -> str:
    """Return the colour of the noisiest of some steps."""
    worst = min((d for n in column if (d := line.decibels[n]) is not None), default=math.inf)
    return heat_color(None if worst == math.inf else (worst - LOW_DB) / (HIGH_DB - LOW_DB))
