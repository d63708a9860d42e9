"""Align cells of text in columns, for a terminal."""

from collections.abc import Iterable, Sequence

Cells = Sequence[str]


def aligned(lines: Iterable[Cells], *, right: Sequence[int] = ()) -> str:
    """Return one line of text for each line of cells.

    Args:
        lines: cells, line by line; all lines have equally many.
        right: indices of the columns that are aligned to the right, as numbers are.
    """
    return "\n".join("  ".join(line).rstrip() for line in padded(list(lines), right))


def padded(lines: Sequence[Cells], right: Sequence[int]) -> list[list[str]]:
    """Return the cells, each as wide as its column. The arguments are those of `aligned`."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
