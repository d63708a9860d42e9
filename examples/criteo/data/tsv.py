"""Criteo's TSV, read in chunks of whole lines.

Knows: the text format, its compressions, malformed lines. Does not know: vocabularies, torch.
A line is 40 fields parted by tabs: label (0 or 1), I1..I13 (decimal integers), C1..C26 (up to
eight hex digits). An empty I or C is missing: NaN and MISSING_CATEGORY. Anything else is malformed:
it is counted and skipped. Shapes: N rows.
"""

from __future__ import annotations

import gzip
import logging
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

NUM_DENSE, NUM_SPARSE = 13, 26
NUM_FIELDS = 1 + NUM_DENSE + NUM_SPARSE
MISSING_CATEGORY = -1
MAX_MALFORMED = 0.01
CHUNK_NBYTES = 4 << 20
# One row: label 0 or 1, integers as float32 (NaN is missing), categories as int64 (-1 is missing).
ROW = np.dtype(
    [("label", "u1"), ("dense", "<f4", (NUM_DENSE,)), ("categories", "<i8", (NUM_SPARSE,))]
)
Rows = NDArray[np.void]
Ints = NDArray[np.int64]
Parsed = tuple[Rows, list[tuple[int, str]]]  # good rows; place and reason of each malformed line
_UNREADABLE = (EOFError, OSError, lzma.LZMAError, zlib.error)  # what a damaged file raises
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
_REFUSED = (".bz2", ".zst", ".zip", ".7z", ".tar", ".tgz")
_LABEL, _INTEGER, _CATEGORY = rb"[01]", rb"(?:-?\d{1,18})?", rb"[0-9a-fA-F]{0,8}"
_FIELDS = (
    ("label", _LABEL, "0 or 1"),
    *((f"I{k}", _INTEGER, "a decimal integer, or nothing") for k in range(1, NUM_DENSE + 1)),
    *((f"C{k}", _CATEGORY, "at most 8 hex digits, or nothing") for k in range(1, NUM_SPARSE + 1)),
)
_LINE = re.compile(b"\t".join(pattern for _, pattern, _ in _FIELDS))


def list_files(path: Path) -> list[Path]:
    """Return the file itself, or a directory's visible files with day_2 before day_10.

    Raises: ValueError: there is no such file, no file in the directory, or one that is not read.
    """
    files = [path] if path.is_file() else [f for f in path.glob("[!.]*") if f.is_file()]
    if not files:
        raise ValueError(f"{path}: no such file, or a directory without files")
    for file in files:
        if file.suffix in _REFUSED:
            raise ValueError(f"{file}: {file.suffix} is not read; expected plain text, .gz or .xz")
    return sorted(files, key=_natural_order)


def read_file(path: Path, run: Callable[..., Any] = map, at_once: int = 1) -> Iterator[Rows]:
    """Yield the good rows of one file in order, some thousand at a time.

    Args: run: `map`, or that of a pool of processes.  at_once: number of chunks that it gets.
    Raises: ValueError: the file cannot be read to its end, or more than 1 % of the lines are
        malformed (after the last of them).
    """
    num_lines, num_malformed, first = 0, 0, ""
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            chunks = iter(lambda: file.readlines(CHUNK_NBYTES), [])
            while group := list(islice(chunks, at_once)):
                for lines, (rows, malformed) in zip(group, run(parse, group), strict=True):
                    if malformed and not first:
                        place, reason = malformed[0]
                        first = f"; line {num_lines + place + 1}: {reason}"
                    num_lines += len(lines)
                    num_malformed += len(malformed)
                    yield rows
    except _UNREADABLE as error:
        raise ValueError(f"{path}: cannot be read to its end: {error}") from error
    told = f"{path}: {num_malformed} of {num_lines} lines malformed{first}"
    if num_malformed > MAX_MALFORMED * num_lines:
        raise ValueError(f"{told}; more than {MAX_MALFORMED:.0%}, is this Criteo's TSV?")
    if num_malformed:
        logger.warning("%s", told)


def parse(lines: list[bytes]) -> Parsed:
    """Parse whole lines, with or without their newlines."""
    labels, dense, categories, malformed = [], [], [], []
    for place, line in enumerate(lines):
        line = line.rstrip(b"\r\n")
        if not _LINE.fullmatch(line):
            malformed.append((place, why_malformed(line)))
            continue
        fields = line.split(b"\t")
        labels.append(int(fields[0]))
        dense.append([int(x) if x else np.nan for x in fields[1 : NUM_DENSE + 1]])
        categories.append([int(x, 16) if x else -1 for x in fields[NUM_DENSE + 1 :]])
    rows = np.empty(len(labels), ROW)
    if labels:
        rows["label"], rows["dense"], rows["categories"] = labels, dense, categories
    return rows, malformed


def why_malformed(line: bytes) -> str:
    """Return what is wrong with a malformed line: the number of fields, or the first wrong one."""
    fields = line.split(b"\t")
    if len(fields) != NUM_FIELDS:
        return f"{len(fields)} fields parted by tabs, expected {NUM_FIELDS}"
    for (name, pattern, expected), text in zip(_FIELDS, fields, strict=True):
        if not re.fullmatch(pattern, text):
            shown = text[:20].decode("ascii", "backslashreplace")
            return f"{name} is {shown!r}, expected {expected}"
    raise AssertionError(f"not malformed: {line!r}")


def _natural_order(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", path.name)
    return [(int(p), "") if p.isdigit() else (-1, p) for p in parts]
