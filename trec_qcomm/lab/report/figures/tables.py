"""Table by table: bits of a value on the wire, the error bound it was sent with, the ratio.

Bits are 32 times wire bytes over float32 bytes of the rows that were sent; the ratio also counts
the bags that were merged and so not sent at all.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trec_qcomm.lab.records import TableTraffic, TrainingRecord
from trec_qcomm.lab.report.figure import Cell, Figure, Finding, short
from trec_qcomm.lab.report.runs import Run, grouped
from trec_qcomm.lab.report.style import grid, heat_color, luminance, square

FLOAT_BITS = 32


@dataclass(frozen=True)
class TableRow:
    """Figures of a table in one run. None: no row of it crossed, or it has no bound.

    Args:
        bits_forward, bits_backward: bits of a value on the wire.
        bound: the largest error bound or threshold among ranks.
        ratio: float32 of all bags over what was sent, both directions.
    """

    table: str
    bits_forward: float | None
    bits_backward: float | None
    bound: float | None
    ratio: float | None


def build(runs: Sequence[Run]) -> list[Figure]:
    """Return one figure with three heat maps: the last run of each configuration with tables."""
    runs_by_name = {run.configuration: run for run in runs if _tables(run)}
    if not runs_by_name:
        return []
    rows_by_name = {name: rows_of(_tables(run)) for name, run in runs_by_name.items()}
    rows: list[Sequence[Cell]] = [
        (name, r.table, r.bits_forward, r.bits_backward, r.bound, r.ratio)
        for name, table_rows in rows_by_name.items() for r in table_rows
    ]  # fmt: skip
    num_tables = len({row[1] for row in rows})
    return [
        Figure(
            key="tables",
            title="Bits, bounds and ratio by table",
            caption=(
                "A row is an embedding table, a column a configuration; f is rows forward, b "
                "gradients backward. Left: bits that a value takes on the wire (float32: 32). "
                "Middle: how many times fewer bytes than float32 of all bags. Right: the error "
                "bound or threshold of forward rows at the end of the training. Tables of few "
                "distinct ids have the highest ratio where equal bags are sent once. Grey: none of "
                "its rows crossed, or the codec has no bound."
            ),
            alt=_alt(rows_by_name),
            columns=(
                "configuration", "table", "bits forward", "bits backward", "bound or threshold",
                "ratio",
            ),
            rows=rows,
            draw=lambda canvas: _draw(canvas, rows_by_name),
            size=(max(9.2, 3.4 + 1.9 * len(rows_by_name)), 1.9 + 0.235 * num_tables),
            notes=_notes(runs_by_name),
            findings=_findings(rows_by_name),
        )
    ]  # fmt: skip


def _tables(run: Run) -> Mapping[str, TableTraffic]:
    record = run.record
    return (record.tables or {}) if isinstance(record, TrainingRecord) else {}


def _notes(runs_by_name: Mapping[str, Run]) -> list[str]:
    """Return which configurations were measured in which setup."""
    texts = grouped(
        runs_by_name,
        lambda name: f"{runs_by_name[name].setup}, seed {runs_by_name[name].seed}",
    )
    return [f"{', '.join(names)}: {text}." for text, names in texts.items()]


def rows_of(tables: Mapping[str, TableTraffic]) -> list[TableRow]:
    """Return a row a table, in the order of their names, numbers within them by value."""
    return [_row(table, tables[table]) for table in sorted(tables, key=_by_number)]


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part or 0), text) for text, part in re.findall(r"(\D+|^)(\d*)", name)]


def _row(table: str, traffic: TableTraffic) -> TableRow:
    directions = (traffic.forward, traffic.backward)
    sent = [direction.distinct_nbytes or 0 for direction in directions]
    bits = [
        FLOAT_BITS * direction.wire_nbytes / nbytes if nbytes else None
        for direction, nbytes in zip(directions, sent, strict=True)
    ]
    wire = sum(direction.wire_nbytes for direction in directions)
    merged = traffic.num_bags / traffic.num_sent if traffic.num_sent else 1.0
    raw = [direction.raw_nbytes for direction in directions]
    whole = sum(n or 0 for n in raw) if None not in raw else sum(sent) * merged
    bound = max(traffic.tolerances, default=None)
    return TableRow(table, bits[0], bits[1], bound, whole / wire if wire else None)


def _findings(rows_by_name: Mapping[str, Sequence[TableRow]]) -> list[Finding]:
    """Return one sentence about all configurations that change a table's size."""
    parts = []
    for name, rows in rows_by_name.items():
        ratios = {row.table: row.ratio for row in rows if row.ratio is not None}
        if not ratios or math.isclose(max(ratios.values()), 1, abs_tol=0.05):
            continue
        low, high = (pick(ratios, key=ratios.__getitem__) for pick in (min, max))
        if math.isclose(ratios[low], ratios[high], rel_tol=0.05):
            parts.append(f"{name} {ratios[low]:.1f} times in all")
        else:
            parts.append(f"{name} {ratios[low]:.1f} ({low}) to {ratios[high]:.1f} times ({high})")
    if not parts:
        return []
    return [Finding(f"Tables send so much less, both directions together: {'; '.join(parts)}.")]


def _alt(rows_by_name: Mapping[str, Sequence[TableRow]]) -> str:
    said = []
    for name, rows in rows_by_name.items():
        ratios = [row.ratio for row in rows if row.ratio is not None]
        if ratios:
            said.append(f"{name}: ratio {min(ratios):.1f} to {max(ratios):.1f}")
    return f"Heat maps by table. {'; '.join(said)}"


def _draw(canvas: Any, rows_by_name: Mapping[str, Sequence[TableRow]]) -> None:
    names = list(rows_by_name)
    tables = list(dict.fromkeys(row.table for rows in rows_by_name.values() for row in rows))
    cells = {(name, row.table): row for name, rows in rows_by_name.items() for row in rows}

    def values(columns: Sequence[str], field: str) -> list[list[float | None]]:
        return [[getattr(cells.get((name, table)), field, None) for name in columns]
                for table in tables]  # fmt: skip

    bounded = [n for n, rows in rows_by_name.items() if any(row.bound is not None for row in rows)]
    widths = [2 * len(names), len(names), *([len(bounded)] if bounded else [])]
    panels = canvas.subplots(1, len(widths), sharey=True, width_ratios=widths)
    forward, backward = values(names, "bits_forward"), values(names, "bits_backward")
    pairs = [
        [bits for both in zip(*rows, strict=True) for bits in both]
        for rows in zip(forward, backward, strict=True)
    ]
    labels = [f"{short(name, 20)}, {letter}" for name in names for letter in "fb"]
    _map(panels[0], pairs, labels, "%.1f")
    panels[0].set_title("bits a value")
    _map(panels[1], values(names, "ratio"), [short(name, 22) for name in names], "%.1f")
    panels[1].set_title("times smaller")
    if bounded:
        _map(panels[2], values(bounded, "bound"), [short(name, 22) for name in bounded], "%.3g")
        panels[2].set_title("bound")
    panels[0].set_yticks([place + 0.5 for place in range(len(tables))], map(short, tables))
    panels[0].invert_yaxis()


def _map(
    axes: Any, values: Sequence[Sequence[float | None]], labels: Sequence[str], form: str
) -> None:
    """Draw a heat map with numbers, of rectangles and not of pixels, so that it stays sharp."""
    known = [value for row in values for value in row if value is not None and value > 0]
    low, high = (math.log(pick(known)) if known else 0.0 for pick in (min, max))
    colors = [[_shade(v, low, high) for v in row] for row in values]
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            axes.add_patch(square(x, y, colors[y][x]))
            if value is not None:
                dark = luminance(colors[y][x]) < 0.45
                axes.text(x + 0.5, y + 0.5, form % value, ha="center", va="center", fontsize=7.5,
                          color="#ffffff" if dark else "#000000")  # fmt: skip
    axes.set_xlim(0, len(labels))
    axes.set_ylim(0, len(values))
    axes.set_xticks([x + 0.5 for x in range(len(labels))], labels, rotation=35, ha="right",
                    rotation_mode="anchor")  # fmt: skip
    grid(axes)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _shade(value: float | None, low: float, high: float) -> str:
    """Return the colour of a value on a log scale."""
    if value is None:
        return heat_color(None)
    place = 0.5 if high - low < 1e-9 else (math.log(max(value, math.exp(low))) - low) / (high - low)
    return heat_color(place)
