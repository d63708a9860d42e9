"""Figure: a picture with a title and its numbers. Knows nothing of matplotlib or HTML."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Cell = str | float | int | None  # None is an empty cell


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Picture with its numbers.

    Args:
        key: id in the page, and name of the PNG.
        columns, rows: the numbers.
        draw: function that draws on a matplotlib figure of `size` inches.
        caption: what the picture does not say by itself.
    """

    key: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    draw: Callable[[Any], None]
    size: tuple[float, float]
    caption: str = ""


def numbered(key: str, number: int) -> str:
    """Return the key of one of several figures: "search", "search-2" and so on."""
    return key if number == 1 else f"{key}-{number}"


def cell_text(value: Cell) -> str:
    """Return the text of a table's cell: numbers to six digits."""
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def short(text: str, most: int = 30) -> str:
    """Return the text, cut to the room of a picture."""
    return text if len(text) <= most else text[: most - 1] + "…"
