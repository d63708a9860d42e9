"""Rows and gradients of a few steps, as QComm.capture_rows saved them or as it still holds them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trec_qcomm.lab.sizes.rows import Blocks, blocks_by_table, read_content, without_rows


@dataclass(frozen=True, kw_only=True)
class CapturedRows:
    """Blocks [n, D] float32 by direction ("forward", "backward") and table.

    Args:
        num_steps: number of steps that they are of; None where it is not known, so that a block is
            a batch.
        num_left_out: number of rows for which the capture had no room.
        without_rows: tables of which nothing was sent.
        whose: whose rows they are, in words.
    """

    blocks: Mapping[str, Blocks]
    num_steps: int | None = None
    num_left_out: int = 0
    without_rows: Sequence[str] = field(default=())
    whose: str = "all ranks"

    @property
    def unit(self) -> str:
        """What a number of bytes is of."""
        return "a batch" if self.num_steps is None else f"a step of {self.whose}"


def load_captured(path: Path, *, batch: int) -> CapturedRows:
    """Return the rows of a file, and the gradients where it has some.

    Args:
        path: file that QComm.capture_rows saved, or another one that analyze.sizes.rows tells of.
        batch: number of rows in a batch, into which a tensor is cut.
    Raises: ValueError naming file and field.
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
