"""Figure: a picture with all that a reader needs beside it. Knows nothing of matplotlib or HTML."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Cell = str | float | int | None  # None is an empty cell


@dataclass(frozen=True)
class Finding:
    """One sentence of the summary. Args: mark: what it says of what was promised; "" where it
    only tells."""

    text: str
    mark: Literal["holds", "not shown", "does not hold", ""] = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Args: key: its id in the page, and the name of its PNG.  caption: what one should see.
    alt: the same for who cannot see it.  notes: what was joined, left out or assumed.
    draw: draws on a matplotlib figure of `size` inches.  is_model: predicted, not measured.
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
        """Of the title and the numbers as the page shows them: PNGs say whose picture they are."""
        lines = [self.title, *("|".join(map(cell_text, row)) for row in (self.columns, *self.rows))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def cell_text(value: Cell) -> str:
    """As it stands in a table: numbers to six digits."""
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def short(text: str, most: int = 30) -> str:
    """The text, cut to what a picture has room for, without characters that no font has."""
    text = re.sub("[\x00-\x1f\x7f]", "\ufffd", text)
    return text if len(text) <= most else text[: most - 1] + "…"


def verdict(holds: bool) -> Literal["holds", "does not hold"]:
    """The mark of what is one or the other."""
    return "holds" if holds else "does not hold"
