"""Rows of tables in a file, batch by batch, and how many of them differ.

A file is written by QComm.capture_rows, or by torch.save of {"rows": {table: [n, D] float32, or a
list of batches of such rows}, "without_rows": [table]}. "without_rows" may be left out, and other
keys are ignored.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Blocks = dict[str, list[Tensor]]  # batches [n, D] float32, by table


def read_content(path: Path) -> dict[str, Any]:
    """Return what torch.save wrote to a file of rows. Raises ValueError naming the file."""
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # whatever the parsers behind torch.load may raise
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path}: cannot be read: {first_line}") from error
    if not isinstance(content, dict):
        raise ValueError(f'{path}: rows: expected {{"rows": {{table: [n, dim] float32}}}}')
    return content


def blocks_by_table(path: Path, content: dict[str, Any], key: str, *, batch: int) -> Blocks:
    """Return {table: batches} of one entry of a file's content, rows or gradients.

    Args:
        path: name of the file, for errors.
        batch: number of rows in a batch, into which a tensor is cut. Rows at the end that do not
            fill a batch are left out, unless there is no other batch.
    Raises: ValueError: a wrong entry; the error names file and field.
    """
    tables = content.get(key)
    if not isinstance(tables, dict) or not tables:
        raise ValueError(f'{path}: {key}: expected {{"{key}": {{table: [n, dim] float32}}}}')
    return {str(t): _batches(f"{path}: {key}.{t}", tables[t], batch) for t in tables}


def without_rows(path: Path, content: dict[str, Any]) -> tuple[str, ...]:
    """Return the tables of which a file says that it has no rows. Raises ValueError naming both."""
    tables = content.get("without_rows", [])
    if not isinstance(tables, list) or set(map(str, tables)) & set(map(str, content["rows"])):
        raise ValueError(f"{path}: without_rows: expected a list of tables that are not in rows")
    return tuple(map(str, tables))


def write_rows(
    path: str | Path, rows: Mapping[str, Tensor | Sequence[Tensor]], **more: Any
) -> None:
    """Write a file that `python -m trec_qcomm preview` reads.

    Args:
        path: file to write; its folder is made.
        rows: {table: [n, D] float32, or a list of batches}.
        more: other entries, which a reader does not need: gradients, without_rows, meta.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.save({"rows": dict(rows)} | more, path)


def distinct(rows: Tensor) -> Tensor:
    """Return the distinct rows of [n, D] float32, in order of first occurrence."""
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
