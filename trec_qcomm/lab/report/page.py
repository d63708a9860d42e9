"""The page: figures with their numbers, and where the records are from.

One file of HTML that asks for nothing else: no script, no font, no address. Everything that comes
from a record is escaped. Knows figures, not how they came about.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trec_qcomm.lab.records import Environment, Record
from trec_qcomm.lab.report.figure import Cell, Figure, cell_text
from trec_qcomm.lab.report.runs import grouped
from trec_qcomm.lab.report.style import render

_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body { margin: 0 auto; padding: 1rem; max-width: 60rem; font: 1rem/1.5 system-ui, sans-serif; }
section { margin: 2rem 0; overflow-x: auto; }
figure { margin: 0; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { text-align: left; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid #d1d9e0; }
td.number { text-align: right; }
</style></head><body><h1>{title}</h1>"""


def write_page(
    title: str, figures: Sequence[Figure], records: Sequence[Record], *, out: Path, png: Path
) -> str:
    """Write the page, and each figure as a PNG; return a line to print.

    Args:
        figures: figures in their order.
        records: records whose origin the page shows.
        out: file to write.
        png: folder of the PNGs, which is made.
    """
    png.mkdir(parents=True, exist_ok=True)
    sections = [_section(figure, render(figure, png)) for figure in figures]
    links = ", ".join(f'<a href="#{f.key}">{escape(f.title)}</a>' for f in figures)
    head = _HEAD.replace("{title}", escape(title))
    text = "\n".join([head, f"<nav>{links}</nav>", *sections, _origin(records), "</body></html>\n"])
    out.write_text(text, encoding="utf-8")
    return f"{out}: {len(figures)} figures of {len(records)} records, also as PNG in {png}"


def escape(value: object) -> str:
    """Return text for HTML."""
    return html.escape(str(value))


def _section(figure: Figure, svg: str) -> str:
    return (
        f'<section id="{figure.key}"><h2>{escape(figure.title)}</h2><figure>{svg}'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
        f"<details><summary>The numbers ({len(figure.rows)} rows)</summary>"
        f"{_table(figure.columns, figure.rows)}</details></section>"
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Cell) -> str:
    kind = ' class="number"' if isinstance(value, int | float) else ""
    return f"<td{kind}>{escape(cell_text(value))}</td>"


def _origin(records: Sequence[Record]) -> str:
    """Return what was measured with what, by file and kind."""
    groups = grouped(records, lambda r: ("" if r.origin is None else r.origin.file, r.kind))
    rows: list[Sequence[Cell]] = []
    for key, group in groups.items():
        made = [record.environment or Environment() for record in group]
        facts = [(e.commit or "", _listed(e.versions), _listed(e.hardware)) for e in made]
        columns = (dict.fromkeys(filter(None, values)) for values in zip(*facts, strict=True))
        rows.append((*key, len(group), *map("; ".join, columns)))
    names = ("file", "kind of record", "records", "commit", "versions", "hardware")
    return f'<section id="records"><h2>The records</h2>{_table(names, rows)}</section>'


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
