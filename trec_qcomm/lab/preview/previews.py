"""Preview, the figures of every codec on the rows of a few steps.

LivePreview is that of a training that runs: of the rows that this rank sends.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from trec_qcomm.core.codec import Codec
from trec_qcomm.lab.debug.row_capture import RowCapture
from trec_qcomm.lab.preview.candidates import candidates
from trec_qcomm.lab.preview.captured import CapturedRows
from trec_qcomm.lab.preview.measure import TablePreview, preview_table
from trec_qcomm.lab.preview.text import direction_text

SHOWN_TABLES = 10  # by LivePreview


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Figures of all codecs on all tables.

    Args:
        captured: the rows.
        tables: the figures, by direction.
    """

    captured: CapturedRows
    tables: Mapping[str, Sequence[TablePreview]]

    def text(self, *, top: int) -> str:
        """Return the tables of both directions. Args: top: number of tables to show."""
        unit = self.captured.unit
        parts = [direction_text(*pair, unit=unit, top=top) for pair in self.tables.items()]
        return "\n\n".join([*parts, *self._notes()])

    def _notes(self) -> list[str]:
        captured, notes = self.captured, []
        if captured.num_left_out:
            notes.append(
                f"The capture had no room for {captured.num_left_out} rows: tables that sent most "
                "show too few bytes. Give capture_rows a larger max_nbytes."
            )
        if captured.without_rows:
            notes.append(f"Without rows, and not shown: {', '.join(captured.without_rows)}.")
        if "forward" not in captured.blocks:
            notes.append("This rank holds no table, so it sends gradients and no rows.")
        if "backward" not in captured.blocks:
            notes.append("No gradients: capture_rows(steps, gradients=True) keeps them.")
        return notes


def make_preview(
    captured: CapturedRows,
    codecs: Mapping[str, Mapping[str, Codec]],
    *,
    forward_of_table: Mapping[str, Mapping[str, Codec]] | None = None,
    distinct_rows: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Preview:
    """Measure all codecs on all tables, on one thread.

    Args:
        captured: the rows.
        codecs: codecs by direction and name; each direction that was captured.
        forward_of_table: further codecs of the rows of single tables, by table and name.
        distinct_rows: whether a row that repeats in a block is sent once; gradients always are
            taken as they are.
        progress: function that is told which table is next.
    Raises: ValueError: a codec does not take a table's rows; it names both.
    """
    tables: dict[str, list[TablePreview]] = {}
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for direction, blocks_by_table in captured.blocks.items():
            is_forward, tables[direction] = direction == "forward", []
            for number, (table, blocks) in enumerate(blocks_by_table.items(), start=1):
                first = "; kernels are compiled once on a machine, about a minute" * (number == 1)
                progress(f"{direction}, {number} of {len(blocks_by_table)}: {table}{first}")
                further = (forward_of_table or {}).get(table, {}) if is_forward else {}
                preview = preview_table(
                    table,
                    blocks,
                    {**codecs[direction], **further},
                    num_steps=captured.num_steps or len(blocks),
                    distinct_rows=distinct_rows and is_forward,
                )
                tables[direction].append(preview)
    finally:
        torch.set_num_threads(num_threads)
    return Preview(captured=captured, tables=tables)


class LivePreview:
    """Preview of the next steps of a training; `QComm.preview` makes it.

    Its text is the tables, measured when it is first asked for once the steps are over. No
    collective: each rank has its own rows. `capture.save("rows.pt")`, on all ranks, writes those of
    all, for `python -m trec_qcomm preview rows.pt`.

    Args: capture: the rows of these steps.
    """

    def __init__(self, capture: RowCapture) -> None:
        self.capture = capture
        self._complete: Preview | None = None

    def __str__(self) -> str:
        """Return the tables of all steps so far, with a line that says how many these are."""
        num_steps = self.capture.num_steps
        if not num_steps:
            return f"Preview: 0 of {self.capture.steps} steps so far; train, and print it again"
        head = f"Preview of {num_steps} of {self.capture.steps} steps, rows of this rank alone"
        return f"{head}\n\n{self.preview().text(top=SHOWN_TABLES)}"

    def preview(self) -> Preview:
        """Return the figures of the steps so far. Raises ValueError: nothing was sent yet."""
        if self._complete is not None:
            return self._complete
        num_steps = self.capture.num_steps
        blocks = {"forward": self.capture.rows, "backward": self.capture.gradients}
        blocks = {direction: tables for direction, tables in blocks.items() if tables}
        if not num_steps:
            raise ValueError("preview: no training step yet")
        captured = CapturedRows(
            blocks=blocks,
            num_steps=num_steps,
            num_left_out=self.capture.num_left_out,
            whose="this rank",
        )
        codecs = {direction: candidates(direction) for direction in blocks}
        measured = make_preview(captured, codecs)
        if num_steps == self.capture.steps:
            self.capture.stop()
            self._complete = measured
        return measured
