"""Cells of text whose columns stand below one another, for a terminal."""

from collections.abc import Iterable, Sequence

Cells = Sequence[str]


def aligned(lines: Iterable[Cells], *, right: Sequence[int] = ()) -> str:
    """Return one line of text for each line of cells, of which all have the same number.

    Args:
        lines: cells, line by line.
        right: numbers of the columns that are aligned to the right, as numbers are.
    """
    return "\n".join("  ".join(line).rstrip() for line in _padded(list(lines), right))


def markdown_table(head: Cells, lines: Iterable[Cells], *, right: Sequence[int] = ()) -> str:
    """Return a table of Markdown whose source is aligned, too.

    Args:
        head: names of the columns.
        lines: cells, line by line.
        right: numbers of the columns that are aligned to the right.
    """
    cells = [head, *([cell.replace("|", "\\|") for cell in line] for line in lines)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    rule = [
        "-" * (width - 1) + (":" if number in right else "-")
        for number, width in enumerate(widths)
    ]  # fmt: skip
    padded = _padded([cells[0], rule, *cells[1:]], right)
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def _padded(lines: Sequence[Cells], right: Sequence[int]) -> list[list[str]]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
