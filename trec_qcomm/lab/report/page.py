"""The page: a summary, the figures with captions and tables, where the records are from.

One file of HTML that asks for nothing else: no script, no font, no address. Everything that comes
from a record is escaped. Knows figures, not how they came about.
"""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from trec_qcomm.lab.records import Environment, Record
from trec_qcomm.lab.report.figure import Cell, Figure, Finding, cell_text
from trec_qcomm.lab.report.runs import grouped
from trec_qcomm.lab.report.style import DARK, variable

_CSP = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_UNKNOWN = "not in the records"
MOST_IN_SHORT = 6  # findings at the top of the page; the others stand below the figures
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
    """Return the whole page.

    Args:
        title: title of the page.
        drawn: figures in their order.
        records: all records that were read.
        missing: what would make the records of a kind of figure that is not there, by kind.
        notes: what was read and not drawn.
    """
    names = list(dict.fromkeys(_file_name(record) for record in records))
    short, more = _split(drawn)
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_CSP)}">',
        '<link rel="icon" href="data:,">',
        f"<style>{_css()}</style></head><body>",
        f'<header><h1>{escape(title)}</h1><p class="sub">{len(records)} records from '
        f"{escape(', '.join(names))}</p></header>",
        _summary(drawn, short, more, missing),
        *(_section(one) for one in drawn),
        _more(more),
        _missing(missing),
        _origin(records, notes),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def escape(value: object) -> str:
    """Return text for HTML, without characters that HTML does not have."""
    return html.escape(re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", "\ufffd", str(value)))


def table_html(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table that scrolls where it is too wide."""
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
    return themes + (files("trec_qcomm.lab.report") / "page.css").read_text(encoding="utf-8")


Placed = tuple[Finding, Figure]  # a finding, and the figure that it is about


def _split(drawn: Sequence[Drawn]) -> tuple[list[Placed], list[Placed]]:
    """Return the findings of the summary, and the others, both in the order of the figures.

    The first finding of each figure comes before the second of any.
    """
    placed = [
        (rank, number, (finding, one.figure))
        for number, one in enumerate(drawn) for rank, finding in enumerate(one.figure.findings)
    ]  # fmt: skip
    chosen = sorted(sorted(placed, key=lambda p: p[:2])[:MOST_IN_SHORT], key=lambda p: (p[1], p[0]))
    others = [p for p in placed if p not in chosen]
    return [finding for *_, finding in chosen], [finding for *_, finding in others]


def _summary(
    drawn: Sequence[Drawn],
    short: Sequence[Placed],
    more: Sequence[Placed],
    missing: Mapping[str, str],
) -> str:
    lines = "".join(_finding(*placed) for placed in short)
    said = []
    if more:
        failed = sum(finding.mark == "does not hold" for finding, _ in more)
        text = f"{len(more)} more findings stand below the figures"
        text += f"; of these {failed} do not hold" if failed else ""
        said.append(f'<a href="#findings">{text}</a>.')
    if missing:
        said.append(f'Missing: {escape(", ".join(missing))}; <a href="#missing">see</a>.')
    links = ", ".join(
        f'<a href="#{one.figure.key}">{escape(one.figure.title)}</a>' for one in drawn
    )
    said.append(f"Figures: {links}.")
    texts = "".join(f"<p>{text}</p>" for text in said)
    return f'<section class="summary"><h2>In short</h2><ul>{lines}</ul>{texts}</section>'


def _more(findings: Sequence[Placed]) -> str:
    if not findings:
        return ""
    lines = "".join(_finding(*placed) for placed in findings)
    return (
        f'<section id="findings" class="summary"><h2>More findings</h2><ul>{lines}</ul></section>'
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
    """Return what was measured with what, by file and kind."""
    groups = grouped(records, lambda record: (_file_name(record), record.kind))
    rows: list[tuple[Cell, ...]] = [
        (*key, len(group), *map(_distinct, _made_with(group))) for key, group in groups.items()
    ]
    columns = ("file", "kind of record", "records", "commit", "versions", "hardware", "data")
    said = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    return f'<section id="records"><h2>The records</h2>{table_html(columns, rows)}{said}</section>'


def _file_name(record: Record) -> str:
    return "" if record.origin is None else Path(record.origin.file).name


def _made_with(records: Sequence[Record]) -> tuple[list[str], ...]:
    """Return commit, versions, hardware and data of each record."""
    environments = [record.environment or Environment() for record in records]
    return (
        [environment.commit or _UNKNOWN for environment in environments],
        [_listed(environment.versions) for environment in environments],
        [_listed(environment.hardware) for environment in environments],
        [str(record.setup.get("data", _UNKNOWN)) for record in records],
    )


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or _UNKNOWN


def _distinct(values: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(values))
