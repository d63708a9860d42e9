"""Table by table: bits of a value on the wire, the error bound it was sent with, the ratio.

From the "tables" of train.py's final records. Bits are 32 times wire over raw bytes of the rows
that were sent; the ratio also counts the bags that were merged and so not sent at all.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trec_qcomm.report.figure import Cell, Figure, Finding, short
from trec_qcomm.report.runs import Run
from trec_qcomm.report.style import grid, square

FLOAT_BITS = 32


@dataclass(frozen=True)
class TableRow:
    """Of a table in one run. None: no row of it crossed, or it has no bound.

    Args: bound: the largest error bound or threshold among ranks.  ratio: float32 of all bags over
    what was sent, both directions.
    """

    table: str
    bits_forward: float | None
    bits_backward: float | None
    bound: float | None
    ratio: float | None


def build(runs: Sequence[Run]) -> list[Figure]:
    """One figure, three heat maps: of the last run of each way that recorded its tables."""
    found = {run.way: run for run in runs if run.record.get("tables")}
    if not found:
        return []
    by_way = {way: rows_of(run) for way, run in found.items()}
    rows: list[Sequence[Cell]] = [
        (way, r.table, r.bits_forward, r.bits_backward, r.bound, r.ratio)
        for way, own in by_way.items() for r in own
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
            alt=_alt(by_way),
            columns=(
                "configuration", "table", "bits forward", "bits backward", "bound or threshold",
                "ratio",
            ),
            rows=rows,
            draw=lambda canvas: _draw(canvas, by_way),
            size=(max(9.2, 3.4 + 1.9 * len(by_way)), 1.9 + 0.235 * num_tables),
            notes=_notes(found),
            findings=_findings(by_way),
        )
    ]  # fmt: skip


def _notes(found: Mapping[str, Run]) -> list[str]:
    """Which ways were measured how."""
    by_setup: dict[str, list[str]] = {}
    for way, run in found.items():
        by_setup.setdefault(f"{run.setup}, seed {run.seed}", []).append(way)
    return [f"{', '.join(ways)}: {setup}." for setup, ways in by_setup.items()]


def rows_of(run: Run) -> list[TableRow]:
    """In the order of the tables' names, numbers within them by value."""
    tables = run.record["tables"]
    try:
        return [_row(table, tables[table]) for table in sorted(tables, key=_by_number)]
    except (KeyError, TypeError) as error:
        where = f"{run.record.file}, line {run.record.line}, tables"
        raise ValueError(f"{where}: a field is missing or of another type: {error!r}") from None


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part or 0), text) for text, part in re.findall(r"(\D+|^)(\d*)", name)]


def _row(table: str, fields: Mapping[str, Any]) -> TableRow:
    raw, wire = fields["raw_nbytes"], fields["wire_nbytes"]
    bits = [
        FLOAT_BITS * wire[way] / raw[way] if raw[way] else None for way in ("forward", "backward")
    ]
    total = sum(wire.values())
    merged = fields["num_bags"] / fields["num_sent"] if fields["num_sent"] else 1.0
    ratio = sum(raw.values()) / total * merged if total else None
    return TableRow(table, bits[0], bits[1], max(fields["params"], default=None), ratio)


def _findings(by_way: Mapping[str, Sequence[TableRow]]) -> list[Finding]:
    """One sentence about all ways that change a table's size."""
    parts = []
    for way, rows in by_way.items():
        ratios = {row.table: row.ratio for row in rows if row.ratio is not None}
        if not ratios or math.isclose(max(ratios.values()), 1, abs_tol=0.05):
            continue
        low, high = (pick(ratios, key=ratios.__getitem__) for pick in (min, max))
        if math.isclose(ratios[low], ratios[high], rel_tol=0.05):
            parts.append(f"{way} {ratios[low]:.1f} times in all")
        else:
            parts.append(f"{way} {ratios[low]:.1f} ({low}) to {ratios[high]:.1f} times ({high})")
    if not parts:
        return []
    return [Finding(f"Tables send so much less, both directions together: {'; '.join(parts)}.")]


def _alt(by_way: Mapping[str, Sequence[TableRow]]) -> str:
    said = []
    for way, rows in by_way.items():
        ratios = [row.ratio for row in rows if row.ratio is not None]
        if ratios:
            said.append(f"{way}: ratio {min(ratios):.1f} to {max(ratios):.1f}")
    return f"Heat maps by table. {'; '.join(said)}"


def _draw(canvas: Any, by_way: Mapping[str, Sequence[TableRow]]) -> None:
    ways = list(by_way)
    tables = list(dict.fromkeys(row.table for rows in by_way.values() for row in rows))
    of = {(way, row.table): row for way, rows in by_way.items() for row in rows}
    bounded = [way for way, rows in by_way.items() if any(row.bound is not None for row in rows)]
    widths = [2 * len(ways), len(ways), *([len(bounded)] if bounded else [])]
    panels = canvas.subplots(1, len(widths), sharey=True, width_ratios=widths)
    both = [(way, name) for way in ways for name in ("bits_forward", "bits_backward")]
    labels = [f"{short(way, 20)}, {name[5]}" for way, name in both]
    _map(panels[0], [[_get(of, w, t, name) for w, name in both] for t in tables], labels, "%.1f")
    panels[0].set_title("bits a value")
    ratios = [[_get(of, way, t, "ratio") for way in ways] for t in tables]
    _map(panels[1], ratios, [short(way, 22) for way in ways], "%.1f")
    panels[1].set_title("times smaller")
    if bounded:
        bounds = [[_get(of, way, t, "bound") for way in bounded] for t in tables]
        _map(panels[2], bounds, [short(way, 22) for way in bounded], "%.3g")
        panels[2].set_title("bound")
    panels[0].set_yticks([place + 0.5 for place in range(len(tables))], map(short, tables))
    panels[0].invert_yaxis()


def _get(of: Mapping[tuple[str, str], TableRow], way: str, table: str, name: str) -> float | None:
    row = of.get((way, table))
    value: float | None = getattr(row, name) if row is not None else None
    return value


def _map(
    axes: Any, values: Sequence[Sequence[float | None]], labels: Sequence[str], form: str
) -> None:
    """Rectangles and not an image, so that it stays sharp; numbers in each."""
    known = [value for row in values for value in row if value is not None and value > 0]
    low, high = (math.log(pick(known)) if known else 0.0 for pick in (min, max))
    colors = [[_shade(v, low, high) for v in row] for row in values]
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            axes.add_patch(square(x, y, colors[y][x]))
            if value is not None:
                dark = _luminance(colors[y][x]) < 0.45
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


_STOPS = ("#00224e", "#434e6c", "#7d7c78", "#bcae6c", "#fee838")  # matplotlib's cividis
_NONE = "#c9ced6"


def _shade(value: float | None, low: float, high: float) -> str:
    """On a log scale."""
    if value is None:
        return _NONE
    place = 0.5 if high - low < 1e-9 else (math.log(max(value, math.exp(low))) - low) / (high - low)
    index = min(int(place * (len(_STOPS) - 1)), len(_STOPS) - 2)
    part = place * (len(_STOPS) - 1) - index
    pair = [[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in _STOPS[index : index + 2]]
    mixed = [round(a + (b - a) * part) for a, b in zip(*pair, strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _luminance(color: str) -> float:
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
