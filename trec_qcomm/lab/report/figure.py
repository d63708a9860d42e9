"""Figure: a picture with all that a reader needs beside it. Knows nothing of matplotlib or HTML."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Cell = str | float | int | None  # None is an empty cell


@dataclass(frozen=True)
class Finding:
    """One sentence about a figure. Args: mark: whether a promise holds; "" where none was made."""

    text: str
    mark: Literal["holds", "not shown", "does not hold", ""] = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture with its words and numbers.

    Args:
        key: id in the page, and name of the PNG.
        caption: what one should see.
        alt: text for those who cannot see it.
        columns, rows: the numbers.
        draw: function that draws on a matplotlib figure of `size` inches.
        notes: what was joined, left out or assumed.
        findings: sentences for the summary, the most important first.
        is_model: predicted, not measured.
    """

    key: str
    title: str
    caption: str
    alt: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    draw: Callable[[Any], None]
    size: tuple[float, float]
    notes: Sequence[str] = ()
    findings: Sequence[Finding] = ()
    is_model: bool = False

    @property
    def digest(self) -> str:
        """SHA-256 of the title and the numbers as the page shows them, which each PNG bears."""
        lines = [self.title, *("|".join(map(cell_text, row)) for row in (self.columns, *self.rows))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def cell_text(value: Cell) -> str:
    """Return the text of a table's cell: numbers to six digits."""
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def short(text: str, most: int = 30) -> str:
    """Return the text cut to what a picture has room for, without characters no font has."""
    text = re.sub("[\x00-\x1f\x7f]", "\ufffd", text)
    return text if len(text) <= most else text[: most - 1] + "…"


def verdict(holds: bool) -> Literal["holds", "does not hold"]:
    """Return the mark of a promise that holds, or does not."""
    return "holds" if holds else "does not hold"
