"""Tables of a preview as Markdown that is also readable in a terminal."""

import math
from collections.abc import Iterable, Sequence

from trec_qcomm.core.aligned import Cells, padded
from trec_qcomm.lab.preview.candidates import BASELINE
from trec_qcomm.lab.preview.measure import CodecPreview, TablePreview, of_all_tables

TITLES = {"forward": "Rows, forward", "backward": "Gradients of rows, backward"}
_GBIT_OF_GB = 8
_HEAD = ("codec", "KB", "saved KB", "ratio", "dB", "encode ms", "decode ms", "pays below")
_RIGHT = range(1, 7)


def direction_text(direction: str, tables: Sequence[TablePreview], *, unit: str, top: int) -> str:
    """Return the codecs of each table, then those of all tables together, most bytes saved first.

    Args:
        direction: "forward", or "backward" for gradients.
        tables: one or more previews in that direction.
        unit: unit of the numbers, such as "a step".
        top: number of tables to show.
    """
    ordered = sorted(tables, key=lambda table: -table.saved_nbytes)
    lines = [line for table in ordered[:top] for line in _table_lines(table)]
    right = [1, *(number + 2 for number in _RIGHT)]
    title = TITLES[direction]
    parts = [
        f"{title}: each table, {unit}\n",
        markdown_table(("table", "rows", *_HEAD), lines, right=right),
    ]
    if len(ordered) > top:
        saved = sum(table.saved_nbytes for table in ordered[top:])
        parts.append(
            f"\n{len(ordered) - top} more tables save at most {saved / 1e3:.1f} KB together; "
            f"--top {len(ordered)} shows all."
        )
    sums = [
        (*_cells(preview), "" if preview.signal_to_noise_db == math.inf else where)
        for preview, where in of_all_tables(ordered)
    ]
    parts += [
        f"\n{title}: all {len(tables)} tables together, {unit}{_merged(ordered)}\n",
        markdown_table((*_HEAD, "least dB in"), sums, right=_RIGHT),
        *_nonfinite(ordered),
    ]
    return "\n".join(parts)


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
    table = padded([cells[0], rule, *cells[1:]], right)
    return "\n".join(f"| {' | '.join(line)} |" for line in table)


def _merged(tables: Sequence[TablePreview]) -> str:
    """Return what is saved, before any codec, where rows that repeat are sent once."""
    raw, sent = (
        sum(getattr(table.codecs[0], field) for table in tables) / 1e3
        for field in ("raw_nbytes", "sent_nbytes")
    )
    if raw == sent:
        return ""
    return f"; {raw:.1f} KB in float32, {sent:.1f} KB where rows that repeat go once"


def _table_lines(table: TablePreview) -> list[tuple[str, ...]]:
    """Return a line for each codec, of which the first names the table."""
    rows = f"{table.num_sent:.0f} x {table.dim}"
    if table.num_sent != table.num_rows:
        rows = f"{table.num_sent:.0f} of {table.num_rows:.0f} x {table.dim}"
    heads = [(table.table, rows)] + [("", "")] * (len(table.codecs) - 1)
    return [
        (*head, *_cells(preview)) for head, preview in zip(heads, table.codecs, strict=True)
    ]  # fmt: skip


def _cells(preview: CodecPreview) -> tuple[str, ...]:
    sizes = (f"{preview.wire_nbytes / 1e3:.2f}", f"{preview.saved_nbytes / 1e3:.2f}")
    ratio, noise = f"{preview.sent_nbytes / preview.wire_nbytes:.2f}", preview.signal_to_noise_db
    decibels = "exact" if noise == math.inf else f"{noise:.1f}"
    if preview.codec == BASELINE:
        return (BASELINE, *sizes, ratio, decibels, "", "", "")
    seconds = (f"{1e3 * preview.encode_s:.4f}", f"{1e3 * preview.decode_s:.4f}")
    return (preview.codec, *sizes, ratio, decibels, *seconds, link_text(preview.break_even_gb_s))


def link_text(gb_s: float) -> str:
    """Return a link's rate in words: 0.125 GB/s is "1 Gbit/s"."""
    gbit_s = _GBIT_OF_GB * gb_s
    if gbit_s == 0:
        return "no link"
    return f"{gbit_s:.1f} Gbit/s" if gbit_s >= 1 else f"{1e3 * gbit_s:.0f} Mbit/s"


def _nonfinite(tables: Sequence[TablePreview]) -> list[str]:
    counts = [f"{t.table} {t.num_nonfinite}" for t in tables if t.num_nonfinite]
    return [f"\nNaN or inf, which dB leaves out: {', '.join(counts)}."] if counts else []
