"""The page: a summary, the figures with captions and tables, where the records are from.

One file of HTML that asks for nothing else: no script, no font, no address. Everything that comes
from a record is escaped. Knows figures, not how they came about.
"""

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from trec_qcomm.report.figure import Cell, Figure, Finding, cell_text
from trec_qcomm.report.records import Record
from trec_qcomm.report.style import DARK, variable

_CSP = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLES = {"holds": "holds", "not shown": "unsure", "does not hold": "fails"}


@dataclass(frozen=True)
class Drawn:
    """A figure and its <svg>."""

    figure: Figure
    svg: str


def page_html(
    title: str,
    drawn: Sequence[Drawn],
    records: Sequence[Record],
    *,
    missing: Mapping[str, str],
    notes: Sequence[str],
) -> str:
    """The whole page. Args: missing: by kind of picture, what would make its records."""
    names = list(dict.fromkeys(record.file for record in records))
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_CSP)}">',
        '<link rel="icon" href="data:,">',
        f"<style>{_css()}</style></head><body>",
        f'<header><h1>{escape(title)}</h1><p class="sub">{len(records)} records from '
        f"{escape(', '.join(names))}</p></header>",
        _summary(drawn, missing),
        *(_section(one) for one in drawn),
        _missing(missing),
        _origin(records, notes),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def escape(value: object) -> str:
    """Text for HTML, without characters that HTML does not have."""
    return html.escape(re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", "\ufffd", str(value)))


def table_html(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table that scrolls where it is too wide."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(value: Cell) -> str:
    kind = ' class="number"' if isinstance(value, int | float) else ""
    return f"<td{kind}>{escape(cell_text(value))}</td>"


def _css() -> str:
    light = "".join(f"{variable(color)}: {color}; " for color in DARK)
    dark = "".join(f"{variable(color)}: {other}; " for color, other in DARK.items())
    themes = f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"
    return themes + (files("trec_qcomm.report") / "page.css").read_text(encoding="utf-8")


def _summary(drawn: Sequence[Drawn], missing: Mapping[str, str]) -> str:
    lines = [
        _finding(finding, one.figure) for one in drawn for finding in one.figure.findings
    ]  # fmt: skip
    if missing:
        text = f'{escape(", ".join(missing))}; <a href="#missing">see</a>'
        lines.append(_line("unsure", "missing", text))
    links = ", ".join(
        f'<a href="#{one.figure.key}">{escape(one.figure.title)}</a>' for one in drawn
    )
    return (
        f'<section class="summary"><h2>In short</h2><ul>{"".join(lines)}</ul>'
        f"<p>Figures: {links}.</p></section>"
    )


def _finding(finding: Finding, figure: Figure) -> str:
    model = "Model: " if figure.is_model else ""
    style = _STYLES.get(finding.mark, "")
    return _line(
        style, finding.mark, f'{model}{escape(finding.text)} <a href="#{figure.key}">see</a>'
    )


def _line(style: str, mark: str, text: str) -> str:
    return f'<li><span class="mark {style}">{mark}</span><span>{text}</span></li>'


def _section(one: Drawn) -> str:
    figure = one.figure
    model = '<p class="model">a model, not a measurement</p>' if figure.is_model else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in figure.notes)
    return (
        f'<section id="{figure.key}"><h2>{escape(figure.title)}</h2>{model}'
        f'<figure><div class="wide" tabindex="0">{one.svg}</div>'
        f"<figcaption>{escape(figure.caption)}{notes}</figcaption></figure>"
        f"<details><summary>The numbers ({len(figure.rows)} rows)</summary>"
        f"{table_html(figure.columns, figure.rows)}</details></section>"
    )


def _missing(missing: Mapping[str, str]) -> str:
    if not missing:
        return ""
    lines = "".join(
        f"<li>{escape(kind)}: would need {escape(needs)}.</li>" for kind, needs in missing.items()
    )
    return f'<section id="missing"><h2>Missing</h2><ul>{lines}</ul></section>'


def _origin(records: Sequence[Record], notes: Sequence[str]) -> str:
    """What was measured with what, by file and kind."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.file, record.kind), []).append(record)
    rows: list[tuple[Cell, ...]] = [
        (*key, len(own), *map(_distinct, _made_with(own))) for key, own in groups.items()
    ]
    columns = ("file", "kind of record", "records", "commit", "versions", "hardware", "data")
    said = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    return f'<section id="records"><h2>The records</h2>{table_html(columns, rows)}{said}</section>'


def _made_with(records: Sequence[Record]) -> tuple[list[str], ...]:
    """Commits, versions, hardware and data of each."""
    versions = [_mapping(r.get("versions") or _mapping_of(r, "torch")) for r in records]
    data = [_data(r) for r in records]
    return (
        [str(r.get("commit", "not in the records")) for r in records],
        versions,
        [_mapping(r.get("hardware")) for r in records],
        data,
    )


def _mapping_of(record: Record, name: str) -> Mapping[str, object] | None:
    value = record.get(name)
    return None if value is None else {name: value}


def _mapping(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(
            f"{k} {v if isinstance(v, str | int | float) else json.dumps(v)}"
            for k, v in value.items()
        )
    return "not in the records" if value is None else str(value)


def _data(record: Record) -> str:
    options = record.get("options", {})
    data = options.get("data", record.get("data"))
    if data in (None, "None"):
        return "synthetic rows" if "rows" in options else "not in the records"
    return str(data).rsplit("/", maxsplit=1)[-1]


def _distinct(values: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(values))
