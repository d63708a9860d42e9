"""Criteo's TSV, read in chunks of whole lines, which a kernel parses.

Knows: the text format, its compressions, malformed lines. Does not know: vocabularies, torch.
A line is 40 fields parted by tabs: label (0 or 1), I1..I13 (decimal integers), C1..C26 (up to
eight hex digits). An empty I or C is missing: NaN and MISSING_CATEGORY. Anything else is malformed:
it is counted and skipped. Shapes: B bytes of a chunk, L lines in it, N of them good.
"""

from __future__ import annotations

import gzip
import lzma
import math
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from data.kernels import NOT_A_DIGIT, parse
from data.malformed import NUM_DENSE, NUM_SPARSE, why_malformed

MISSING_CATEGORY = -1
MAX_MALFORMED = 0.01
MAX_TOLD = 3
MAX_LOOKED_AT = 100  # malformed lines of a chunk in which kinds of problems are looked for
CHUNK_NBYTES = 8 << 20
MAX_LINE_NBYTES = 64 << 20
UNREADABLE = (EOFError, OSError, lzma.LZMAError, zlib.error)  # what a damaged file raises

# One row: label 0 or 1, integers as float32 (NaN is missing), categories as int64 (-1 is missing).
ROW = np.dtype(
    [("label", "u1"), ("dense", "<f4", (NUM_DENSE,)), ("categories", "<i8", (NUM_SPARSE,))]
)
Rows = NDArray[np.void]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Text = NDArray[np.uint8]

_UNREADABLE = (".bz2", ".zst", ".zip", ".7z", ".tar", ".tgz")
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
_NEWLINE = 10
_DIGITS = np.full(256, NOT_A_DIGIT, np.uint8)  # the value of a digit's byte
_DIGITS[np.frombuffer(b"0123456789abcdef", np.uint8)] = range(16)
_DIGITS[np.frombuffer(b"ABCDEF", np.uint8)] = range(10, 16)


@dataclass
class LineCount:
    """How many lines of one file were read, how many were malformed, and what is wrong with them.

    The first line of each kind of problem is told, of at most MAX_TOLD kinds. Counts of the parts
    of a file are joined by `append`.
    """

    path: Path
    num_lines: int = 0
    num_malformed: int = 0
    problems: dict[str, tuple[int, str]] = field(default_factory=dict)  # line and reason by kind
    is_start: bool = True  # whether the first line is that of the file

    def add(self, good: Bools, text: Text) -> None:
        """Count L more lines. Args: good: [L], which are well-formed.  text: [B], the lines."""
        bad = np.flatnonzero(~good)
        if len(bad) and len(self.problems) < MAX_TOLD:
            ends = np.flatnonzero(text == _NEWLINE)
            for line in bad[:MAX_LOOKED_AT].tolist():
                start, number = int(ends[line - 1]) + 1 if line else 0, self.num_lines + line + 1
                is_first = self.is_start and number == 1
                bytes_ = text[start : int(ends[line])].tobytes()
                self._note(number, *why_malformed(bytes_, is_first=is_first))
        self.num_lines += len(good)
        self.num_malformed += len(bad)

    def append(self, part: LineCount) -> None:
        """Count the lines of the next part of the file."""
        for kind, (number, reason) in part.problems.items():
            self._note(self.num_lines + number, kind, reason)
        self.num_lines += part.num_lines
        self.num_malformed += part.num_malformed

    def _note(self, number: int, kind: str, reason: str) -> None:
        if len(self.problems) < MAX_TOLD:
            self.problems.setdefault(kind, (number, reason))

    def check(self) -> None:
        """Raise ValueError if more than MAX_MALFORMED of the lines are malformed."""
        if self.num_malformed > MAX_MALFORMED * self.num_lines:
            raise ValueError(f"{self}; more than {MAX_MALFORMED:.0%}, is this Criteo's TSV?")

    def __str__(self) -> str:
        what = "".join(f"; line {number}: {reason}" for number, reason in self.problems.values())
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
        with open_text(path) as file:
            yield from read_lines(LineReader(file), math.inf, count)
    except UNREADABLE as error:
        raise ValueError(f"{path}: cannot be read to its end: {error}") from error
    count.check()


def read_lines(lines: LineReader, stop: float, count: LineCount) -> Iterator[Rows]:
    """Yield the good rows of the lines that start before the byte `stop`, and fill in `count`."""
    for chunk in lines.lines_until(stop):
        text = np.frombuffer(chunk, np.uint8)
        rows, good = parse_lines(text)
        count.add(good, text)
        yield rows


def parse_lines(text: Text) -> tuple[Rows, Bools]:
    """Parse whole lines.

    Args:    text: [B] uint8, ends with a newline.
    Returns: rows: [N] ROW, the good lines in order.  good: [L] bool, which lines they are.
    """
    rows = np.empty(int(np.count_nonzero(text == _NEWLINE)), ROW)
    good = np.empty(len(rows), np.bool_)
    num_good = parse(text, _DIGITS, rows["label"], rows["dense"], rows["categories"], good)
    return rows[:num_good], good


class LineReader:
    """Whole lines of a stream, in chunks that end with a newline.

    Args:
        file: a stream.
        at: the stream's position, in bytes of text. Unless it is 0 it must be one byte before the
            place from which on lines are wanted: the line that holds this byte is passed over.
    """

    def __init__(self, file: BinaryIO, at: int = 0) -> None:
        self._file, self._at, self._rest = file, at, b""
        self._is_at_end = False
        while at > 0 and self._at == at and not self.is_at_end:
            self._take(at + 1)

    @property
    def is_at_end(self) -> bool:
        """Whether there are no more lines."""
        return self._is_at_end and not self._rest

    def lines_until(self, stop: float) -> Iterator[bytes]:
        """Yield the lines that start before the byte `stop`; add a newline the last one lacks."""
        while self._at < stop and not self.is_at_end:
            chunk = self._take(stop)
            if chunk:
                yield chunk.replace(b"\r\n", b"\n")

    def _take(self, stop: float) -> bytes:
        """Return the next lines that start before `stop`; none if no line has ended yet."""
        last = max(min(stop, sys.maxsize) - self._at - 1, 0)
        size = self._rest.find(b"\n", int(last)) + 1
        if not size and not self._is_at_end:
            chunk = self._file.read(CHUNK_NBYTES)
            self._is_at_end = not chunk
            self._rest += chunk
            size = self._rest.find(b"\n", int(last)) + 1
        size = size or self._rest.rfind(b"\n") + 1
        text = self._rest[:size]
        if not size and self._is_at_end:
            size, text = len(self._rest), self._rest.rstrip(b"\r") + b"\n"
        elif not size and len(self._rest) > MAX_LINE_NBYTES:
            raise ValueError(f"no line ends within {MAX_LINE_NBYTES >> 20} MB")
        self._rest = self._rest[size:]
        self._at += size
        return text if size else b""


def is_compressed(path: Path) -> bool:
    """Return whether the text of a file is packed: it cannot be read from the middle then."""
    return path.suffix in _OPENERS


def open_text(path: Path, raw: BinaryIO | None = None) -> BinaryIO:
    """Open a file for its text, unpacked.

    Args: raw: the file, if it is open already.
    Raises: ValueError: a compression that is not read.
    """
    if path.suffix in _UNREADABLE:
        raise ValueError(f"{path}: {path.suffix} is not read; expected plain text, .gz or .xz")
    file = path.open("rb") if raw is None else raw
    return cast(BinaryIO, _OPENERS[path.suffix](file)) if is_compressed(path) else file


def _natural_order(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", path.name)
    return [(int(p), "") if p.isdigit() else (-1, p) for p in parts]
