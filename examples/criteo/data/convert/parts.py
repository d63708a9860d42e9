"""First: the text of each part becomes labels, dense features and raw columns of categories.

Knows: text, parts. Does not know: other processes, vocabularies.
A part of a plain file is a stretch of bytes that any process can read; the parts of a compressed
file are read one after another by one process. A part is finished when its told.json is there,
which is written last. Memory: one part's rows, about PART_NBYTES.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from data.convert.files import Part, save_array, save_json
from data.ids import raw_columns, transform_dense
from data.tsv import (
    NUM_SPARSE,
    UNREADABLE,
    LineCount,
    LineReader,
    is_compressed,
    open_text,
    read_lines,
)

PART_NBYTES = 128 << 20  # of text; some 560,000 rows


def list_jobs(files: list[Path], part_nbytes: int) -> list[tuple[int, int | None]]:
    """Return what processes can do side by side: file and part, or file and None for all parts."""
    jobs: list[tuple[int, int | None]] = []
    for number, path in enumerate(files):
        if is_compressed(path):
            jobs.append((number, None))
        else:
            jobs += [(number, k) for k in range(-(-path.stat().st_size // part_nbytes))]
    return jobs


def read_parts(work: Path, path: Path, file: int, index: int | None, part_nbytes: int) -> None:
    """Read one part of a file, or all of them, and write their arrays; not those that are there.

    Raises: ValueError: the file cannot be read to its end.
    """
    try:
        with path.open("rb") as raw, open_text(path, raw) as text:
            if index is not None:
                part, at = Part(file, index), max(index * part_nbytes - 1, 0)
                if part.told(work) is None:
                    text.seek(at)
                    nbytes = min(part_nbytes, path.stat().st_size - index * part_nbytes)
                    _read_part(work, part, path, LineReader(text, at), part_nbytes, nbytes)
            elif not (done := work / f"file_{file}_done.json").exists():
                num_parts = _read_in_turn(work, path, file, LineReader(text), raw, part_nbytes)
                save_json(done, {"num_parts": num_parts})
    except UNREADABLE as error:
        raise ValueError(f"{path}: cannot be read to its end: {error}") from error


def _read_in_turn(
    work: Path, path: Path, file: int, lines: LineReader, raw: BinaryIO, part_nbytes: int
) -> int:
    """Read all parts of a compressed file; return how many there are."""
    index, before = 0, 0
    while not lines.is_at_end:
        part = Part(file, index)
        if part.told(work) is None:
            nbytes = partial(_read_since, raw, before)
            _read_part(work, part, path, lines, part_nbytes, nbytes)
        else:
            for _ in lines.lines_until((index + 1) * part_nbytes):
                pass
        index, before = index + 1, raw.tell()
    return index


def _read_since(raw: BinaryIO, before: int) -> int:
    return raw.tell() - before


def list_parts(work: Path, files: list[Path], part_nbytes: int) -> list[Part]:
    """Return all parts in order, when all are read."""
    parts = []
    for file, path in enumerate(files):
        done = work / f"file_{file}_done.json"
        if done.exists():
            num_parts = json.loads(done.read_text())["num_parts"]
        else:
            num_parts = -(-path.stat().st_size // part_nbytes)
        parts += [Part(file, index) for index in range(num_parts)]
    return parts


def _read_part(
    work: Path,
    part: Part,
    path: Path,
    lines: LineReader,
    part_nbytes: int,
    nbytes: int | Callable[[], int],
) -> None:
    """Read the lines of one part and write its arrays. nbytes: of the file, for the progress."""
    count = LineCount(path, is_start=part.index == 0)
    labels, dense, raw = [], [], []
    for rows in read_lines(lines, (part.index + 1) * part_nbytes, count):
        labels.append(rows["label"].astype(np.int32)[:, None])
        dense.append(transform_dense(rows["dense"]))
        raw.append(raw_columns(rows))
    told = {
        "rows": sum(map(len, labels)),
        "lines": count.num_lines,
        "malformed": count.num_malformed,
        "problems": count.problems,
        "nbytes": nbytes() if callable(nbytes) else nbytes,
        "largest": [max((int(r[k].max(initial=0)) for r in raw), default=0) for k in _COLUMNS],
    }
    if told["rows"]:
        save_array(part.at(work, "labels.npy"), np.concatenate(labels))
        save_array(part.at(work, "dense.npy"), np.concatenate(dense))
        dense.clear()
        save_array(part.at(work, "raw.npy"), np.concatenate(raw, axis=1))
    save_json(part.at(work, "told.json"), told)


_COLUMNS = range(NUM_SPARSE)
