"""Rows of tables from a file, batch by batch."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """What a file holds: {table: batches [n, D] float32}, and names of tables without rows."""

    batches: dict[str, list[Tensor]]
    without_rows: tuple[str, ...] = ()


def load_rows(path: Path, *, batch: int) -> TableRows:
    """Return the rows of a file that QComm.capture_rows or torch.save wrote.

    Args:
        path: file of {"rows": {table: [n, D] float32, or a list of batches of such rows},
            "without_rows": [table]}; the second may be left out, and other keys are ignored.
        batch: number of rows in a batch, into which a tensor is cut. Rows at the end that do not
            fill a batch are left out, unless there is no other batch.
    Raises: ValueError naming file and field.
    """
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # whatever the parsers behind torch.load may raise
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path}: cannot be read: {first_line}") from error
    tables = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(tables, dict) or not tables:
        raise ValueError(f'{path}: rows: expected {{"rows": {{table: [n, dim] float32}}}}')
    without_rows = content.get("without_rows", [])
    if not isinstance(without_rows, list) or set(map(str, without_rows)) & set(map(str, tables)):
        raise ValueError(f"{path}: without_rows: expected a list of tables that are not in rows")
    return TableRows(
        batches={str(t): _batches(f"{path}: rows.{t}", tables[t], batch) for t in tables},
        without_rows=tuple(map(str, without_rows)),
    )


def distinct(rows: Tensor) -> Tensor:
    """Return the different rows of [n, D] float32, each where it occurs first."""
    bits = rows.contiguous().view(torch.int32).numpy()
    _, first = np.unique(bits, axis=0, return_index=True)
    return rows[torch.from_numpy(np.sort(first))]


def _batches(where: str, rows: object, batch: int) -> list[Tensor]:
    filled = []
    for each in rows if isinstance(rows, list) else [rows]:
        if not isinstance(each, Tensor) or each.dim() != 2 or each.dtype != torch.float32:
            raise ValueError(f"{where}: expected [n, dim] float32, or a list of such batches")
        if each.numel():  # a rank may have had no rows
            filled.append(each.contiguous())
    if len({each.shape[1] for each in filled}) != 1:
        raise ValueError(f"{where}: expected one row or more, all of one dim")
    if isinstance(rows, list):
        return filled
    (whole,) = filled
    ends = range(batch, len(whole) + 1, batch)
    return [whole[end - batch : end] for end in ends] or filled
