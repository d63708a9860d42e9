"""The page of a paper's script: figures of its records, in one file and as PNGs.

Knows: the report's page and drawing. Does not know: what a figure shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trec_qcomm.lab.records import Record
from trec_qcomm.lab.report.figure import Figure
from trec_qcomm.lab.report.page import Drawn, page_html
from trec_qcomm.lab.report.style import matplotlib, render


@dataclass(frozen=True)
class Drawing:
    """What a page shows.

    Args:
        figures: in their order.
        records: records whose origin the page shows.
    """

    figures: Sequence[Figure]
    records: Sequence[Record] = ()


Draw = Callable[[Mapping[str, Path]], Drawing]  # file of records by part -> what a page shows


def check(out: Path) -> None:
    """Raise ValueError where no page can be written there, or matplotlib is not installed."""
    if out.is_dir() or not out.parent.is_dir():
        raise ValueError(f"report {out}: expected a file in a folder that exists")
    matplotlib()


def write_page(title: str, drawing: Drawing, out: Path) -> str:
    """Write the page, and its figures as PNGs into a folder beside it; return a line to print.

    Raises: ValueError: no figure, or see `check`.
    """
    check(out)
    if not drawing.figures:
        raise ValueError(f"report {out}: the records make no figure")
    folder = out.with_name(f"{out.stem}_png")
    folder.mkdir(exist_ok=True)
    drawn = [Drawn(figure, render(figure, folder)) for figure in drawing.figures]
    text = page_html(title, drawn, drawing.records, missing={}, notes=())
    out.write_text(text, encoding="utf-8")
    return f"{out}: {len(drawn)} figures, also as PNG in {folder}"
