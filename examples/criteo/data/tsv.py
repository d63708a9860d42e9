"""Criteo's TSV, read in chunks of whole lines with no Python loop over the lines.

Knows: the text format, its compressions, malformed lines. Does not know: vocabularies, torch.
A line is 40 fields parted by tabs: label (0 or 1), I1..I13 (decimal integers), C1..C26 (up to
eight hex digits). An empty I or C is missing: NaN and MISSING_CATEGORY. Anything else is malformed:
it is counted and skipped. Shapes: B bytes of a chunk, L lines in it, N of them good.
"""

from __future__ import annotations

import gzip
import lzma
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from data.malformed import NUM_DENSE, NUM_FIELDS, NUM_SPARSE, why_malformed

MISSING_CATEGORY = -1
MAX_MALFORMED = 0.01
MAX_TOLD = 3
MAX_LOOKED_AT = 100  # malformed lines of a chunk in which kinds of problems are looked for
CHUNK_NBYTES = 8 << 20

# One row: label 0 or 1, integers as float32 (NaN is missing), categories as int64 (-1 is missing).
ROW = np.dtype(
    [("label", "u1"), ("dense", "<f4", (NUM_DENSE,)), ("categories", "<i8", (NUM_SPARSE,))]
)
Rows = NDArray[np.void]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Text = NDArray[np.uint8]

_UNREADABLE = (".bz2", ".zst", ".zip", ".7z", ".tar", ".tgz")
_TAB, _NEWLINE, _MINUS = 9, 10, 45
_DIGIT = np.full(256, 99, dtype=np.int64)  # the value of a digit's byte; 99 is no digit
_DIGIT[np.frombuffer(b"0123456789abcdef", np.uint8)] = range(16)
_DIGIT[np.frombuffer(b"ABCDEF", np.uint8)] = range(10, 16)


@dataclass
class LineCount:
    """How many lines of one file were read, how many were malformed, and what is wrong with them.

    The first line of each kind of problem is told, of at most MAX_TOLD kinds.
    """

    path: Path
    num_lines: int = 0
    num_malformed: int = 0
    problems: dict[str, str] = field(default_factory=dict)  # by kind, see why_malformed

    def add(self, good: Bools, text: Text) -> None:
        """Count L more lines. Args: good: [L], which are well-formed.  text: [B], the lines."""
        bad = np.flatnonzero(~good)
        if len(bad) and len(self.problems) < MAX_TOLD:
            ends = np.flatnonzero(text == _NEWLINE)
            for line in bad[:MAX_LOOKED_AT].tolist():
                start = int(ends[line - 1]) + 1 if line else 0
                self._note(text[start : int(ends[line])].tobytes(), self.num_lines + line + 1)
        self.num_lines += len(good)
        self.num_malformed += len(bad)

    def _note(self, line: bytes, number: int) -> None:
        kind, reason = why_malformed(line, is_first=number == 1)
        if len(self.problems) < MAX_TOLD:
            self.problems.setdefault(kind, f"line {number}: {reason}")

    def check(self) -> None:
        """Raise ValueError if more than MAX_MALFORMED of the lines are malformed."""
        if self.num_malformed > MAX_MALFORMED * self.num_lines:
            raise ValueError(f"{self}; more than {MAX_MALFORMED:.0%}, is this Criteo's TSV?")

    def __str__(self) -> str:
        what = "".join(f"; {problem}" for problem in self.problems.values())
        return f"{self.path}: {self.num_malformed} of {self.num_lines} lines malformed{what}"


def list_files(path: Path) -> list[Path]:
    """The file itself, or a directory's visible files with day_2 before day_10.

    Raises: ValueError: there is no such file, or no file in the directory.
    """
    if path.is_file():
        return [path]
    files = [f for f in path.glob("*") if f.is_file() and not f.name.startswith(".")]
    if not files:
        raise ValueError(f"{path}: no such file, or a directory without files")
    return sorted(files, key=_natural_order)


def read_file(path: Path, count: LineCount) -> Iterator[Rows]:
    """Yield the good rows of one file in order, some 30,000 at a time, and fill in `count`.

    Raises: ValueError: the file cannot be read to its end, or more than 1 % of the lines are
        malformed (after the last of them).
    """
    try:
        with _open(path) as file:
            for chunk in _whole_lines(file):
                text = np.frombuffer(chunk, np.uint8)
                rows, good = parse_lines(text)
                count.add(good, text)
                yield rows
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read to its end: {error}") from error
    count.check()


def parse_lines(text: Text) -> tuple[Rows, Bools]:
    """Parse whole lines.

    Args:    text: [B] uint8, ends with a newline.
    Returns: rows: [N] ROW, the good lines in order.  good: [L] bool, which lines they are.
    """
    starts, ends, good = _find_fields(text)
    label, label_ok = _integers(text, starts[:, :1], ends[:, :1])
    dense, dense_ok = _integers(text, starts[:, 1:14], ends[:, 1:14])
    categories, categories_ok = _digits(text, starts[:, 14:], ends[:, 14:], base=16, max_digits=8)
    ok = label_ok[:, 0] & np.isin(label[:, 0], (0, 1)) & (ends[:, 0] > starts[:, 0])
    ok &= dense_ok.all(axis=1) & categories_ok.all(axis=1)
    good[good] = ok
    rows = np.empty(int(ok.sum()), ROW)
    rows["label"] = label[ok, 0]
    rows["dense"] = np.where(starts[:, 1:14] == ends[:, 1:14], np.nan, dense)[ok]
    missing = starts[:, 14:] == ends[:, 14:]
    rows["categories"] = np.where(missing, MISSING_CATEGORY, categories)[ok]
    return rows, good


def _find_fields(text: Text) -> tuple[Ints, Ints, Bools]:
    """Where fields start and end: [M, 40], [M, 40] and [L] bool, which lines have 40 fields."""
    line_ends = np.flatnonzero(text == _NEWLINE)
    line_starts = np.concatenate([[0], line_ends[:-1] + 1])
    tabs = np.flatnonzero(text == _TAB)
    first_tab = np.searchsorted(tabs, line_starts)
    good = np.searchsorted(tabs, line_ends) - first_tab == NUM_FIELDS - 1
    inner = tabs[first_tab[good, None] + np.arange(NUM_FIELDS - 1)]
    starts = np.concatenate([line_starts[good, None], inner + 1], axis=1)
    return starts, np.concatenate([inner, line_ends[good, None]], axis=1), good


def _integers(text: Text, starts: Ints, ends: Ints) -> tuple[Ints, Bools]:
    """Decimal integers with an optional minus; a lone minus is not one. All shapes [M, K]."""
    negative = (text[starts] == _MINUS) & (ends > starts)
    starts = starts + negative
    value, ok = _digits(text, starts, ends, base=10, max_digits=18)
    return np.where(negative, -value, value), ok & ~(negative & (starts == ends))


def _digits(
    text: Text, starts: Ints, ends: Ints, *, base: int, max_digits: int
) -> tuple[Ints, Bools]:
    """Unsigned numbers, all shapes [M, K]; an empty field is 0. Column by column of digits."""
    lengths = ends - starts
    ok = lengths <= max_digits
    value = np.zeros_like(starts)
    for k in range(min(max_digits, int(lengths.max(initial=0)))):
        inside = lengths > k
        digit = np.where(inside, _DIGIT[text[np.where(inside, starts + k, 0)]], 0)
        ok &= digit < base
        value = np.where(inside, value * base + digit, value)
    return value, ok


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Cut a stream into chunks that end with a newline; adds one the file lacks at its end."""
    rest = b""
    while chunk := file.read(CHUNK_NBYTES):
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            yield (rest + head + newline).replace(b"\r\n", b"\n")
        rest = tail if newline else rest + tail
    if rest:
        yield rest.rstrip(b"\r") + b"\n"


def _open(path: Path) -> BinaryIO:
    if path.suffix in _UNREADABLE:
        raise ValueError(f"{path}: {path.suffix} is not read; expected plain text, .gz or .xz")
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
    return cast(BinaryIO, openers.get(path.suffix, open)(path, "rb"))


def _natural_order(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", path.name)
    return [(int(p), "") if p.isdigit() else (-1, p) for p in parts]
