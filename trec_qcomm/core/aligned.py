"""Cells of text whose columns stand below one another, for a terminal."""

from collections.abc import Iterable, Sequence

Cells = Sequence[str]


def aligned(lines: Iterable[Cells], *, right: Sequence[int] = ()) -> str:
    """Return one line of text for each line of cells, of which all have the same number.

    Args:
        lines: cells, line by line.
        right: numbers of the columns that are aligned to the right, as numbers are.
    """
    return "\n".join("  ".join(line).rstrip() for line in padded(list(lines), right))


def padded(lines: Sequence[Cells], right: Sequence[int]) -> list[list[str]]:
    """Return the cells as wide as their columns. Arguments: those of `aligned`."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
