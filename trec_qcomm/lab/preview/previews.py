"""Preview: the figures of every codec on the rows and gradients of a few steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trec_qcomm.core.codec import Codec
from trec_qcomm.lab.preview.measure import TablePreview, preview_table
from trec_qcomm.lab.preview.text import direction_text
from trec_qcomm.lab.sizes.rows import Blocks, blocks_by_table, read_content, without_rows


@dataclass(frozen=True, kw_only=True)
class CapturedRows:
    """Blocks [n, D] float32 by direction ("forward", "backward") and table.

    Args:
        num_steps: number of steps of the blocks. None: unknown; a block is then a batch.
        num_left_out: number of rows for which the capture had no room.
        without_rows: tables without sent rows.
        whose: owner of the rows, in words.
    """

    blocks: Mapping[str, Blocks]
    num_steps: int | None = None
    num_left_out: int = 0
    without_rows: Sequence[str] = field(default=())
    whose: str = "all ranks"

    @property
    def unit(self) -> str:
        """Unit to which a number of bytes belongs, such as a step."""
        return "a batch" if self.num_steps is None else f"a step of {self.whose}"


def load_captured(path: Path, *, batch: int) -> CapturedRows:
    """Return the rows of a file, and the gradients if it has some.

    Args:
        path: file that QComm.capture_rows saved, or another file as lab.sizes.rows describes.
        batch: number of rows in a batch, into which a tensor is cut.
    Raises: ValueError: a wrong file; the error names file and field.
    """
    content = read_content(path)
    blocks = {"forward": blocks_by_table(path, content, "rows", batch=batch)}
    if content.get("gradients"):
        blocks["backward"] = blocks_by_table(path, content, "gradients", batch=batch)
    meta = content.get("meta", {})
    if not isinstance(meta, dict):
        raise ValueError(f"{path}: meta: expected a dict, as QComm.capture_rows saves it")
    of_capture = "num_left_out" in meta  # in other files, steps may be those of the training
    return CapturedRows(
        blocks=blocks,
        num_steps=_count(path, meta, "steps", least=1) if of_capture else None,
        num_left_out=_count(path, meta, "num_left_out", least=0) or 0,
        without_rows=without_rows(path, content),
    )


def _count(path: Path, meta: Mapping[str, Any], name: str, *, least: int) -> int | None:
    value = meta.get(name)
    if value is not None and (type(value) is not int or value < least):
        raise ValueError(f"{path}: meta.{name}: {value!r} is not an integer >= {least}")
    return value


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
    more_forward: Mapping[str, Codec] | None = None,
    distinct_rows: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Preview:
    """Measure all codecs on all tables, on one thread.

    Args:
        captured: the rows.
        codecs: codecs by direction and name; each direction that was captured.
        more_forward: further codecs of rows, by name.
        distinct_rows: whether a row that repeats in a block is sent once; gradients are always
            taken as they are.
        progress: function that is called with the next table.
    Raises: ValueError: a codec does not take a table's rows; the error names both.
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
                further = (more_forward or {}) if is_forward else {}
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
