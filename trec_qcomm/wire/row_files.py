"""Delta: a file of changed rows, read with numpy alone. FORMAT.md specifies it ("Files of rows").

Shapes: n rows of D values; W bytes.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.ops.numpy_decoders import Array, checksum, decode_ids, decode_rows

MAGIC, VERSION, HEADER_NBYTES = b"TQDL", 3, 16
_IDS_MAGIC, _FRAME_MAGIC, _ONE_SEGMENT = b"TQID", b"TQCM", 48
_FIELDS = {"name": str, "first_row": int, "first_column": int, "dim": int, "counts": list}


@dataclass(frozen=True, eq=False)
class ChangedRows:
    """Changed rows of one table, with their new values.

    Args:
        table: name of the table.
        rows: [n] int64, numbers of the rows in the whole table, ascending.
        first_column: column of the table where the values begin; not 0 for some column-wise shards.
        values: [n, D] float32.
    """

    table: str
    rows: Array
    first_column: int
    values: Array

    def write_to(self, table: Array) -> None:
        """Write the values to their places in a whole table. Args: table: [rows, dim] float32."""
        table[self.rows, self.first_column : self.first_column + self.values.shape[1]] = self.values


@dataclass(frozen=True, eq=False)
class _Part:
    table: dict[str, Any]
    count: int
    ids: Array  # what follows the message's header
    codec: int
    segment: Array


class Delta:
    """Rows of one file, which is checked when it is opened. Iterating over it yields ChangedRows.

    Attributes:
        number: number of the export, from 0 on.
        is_whole: whether it has all rows, and needs no export before it.
        rank, num_ranks: which rank wrote it, and how many there were.
        tables: names of its tables.
    """

    def __init__(self, data: Array) -> None:
        """Check all bytes of a file. Args: data: [W] uint8.

        Raises: CorruptFrameError: a file that is torn or changed, or no file of rows.
        """
        if bytes(data[:4]) != MAGIC or len(data) < HEADER_NBYTES:
            raise CorruptFrameError("no file of rows (magic)")
        if (version := int(data[4:6].view("<u2")[0])) != VERSION:
            raise CorruptFrameError(f"version {version}; this release reads version {VERSION}")
        size, crc = data[8:16].view("<u4").tolist()
        begin = HEADER_NBYTES + size
        if size % 8 or zlib.crc32(data[HEADER_NBYTES:begin]) != crc:
            raise CorruptFrameError("torn: its header is not what was written")
        header = _header(bytes(data[HEADER_NBYTES:begin]))
        self.number, self.is_whole = header["number"], header["whole"]
        self.rank, self.num_ranks = header["rank"], header["ranks"]
        self.tables = list(dict.fromkeys(table["name"] for table in header["tables"]))
        self._parts: list[_Part] = []
        key = zlib.crc32(data[:begin])
        for table in header["tables"]:
            for count in table["counts"]:
                ids, begin = _frame(data, begin, _IDS_MAGIC, "ids")
                frame, begin = _frame(data, begin, _FRAME_MAGIC, f"table {table['name']!r}")
                call, layout = int(frame[6:8].view("<u2")[0]), int(frame[8:12].view("<u4")[0])
                codec, num_rows, nbytes = frame[32:44].view("<u4").tolist()
                expected = (len(self._parts) % 2**16, zlib.crc32(ids, key), count, len(frame))
                if (call, layout, num_rows, nbytes + _ONE_SEGMENT) != expected:
                    raise CorruptFrameError("rows of another file, or in another order")
                segment = frame[_ONE_SEGMENT:]
                self._parts.append(_Part(table, count, ids[32:], codec, segment))
        if begin != len(data):
            raise CorruptFrameError(f"{len(data) - begin} bytes after its last rows")

    def __iter__(self) -> Iterator[ChangedRows]:
        """Yield the rows of each table, some 2^20 values at a time."""
        for part in self._parts:
            table = part.table
            try:
                rows = decode_ids(part.ids, part.count)
                values = decode_rows(part.codec, part.segment, part.count, table["dim"])
            except (CorruptFrameError, ValueError, IndexError, OverflowError) as error:
                reason = getattr(error, "reason", str(error))
                raise CorruptFrameError(reason, table=table["name"]) from error
            yield ChangedRows(
                table["name"], rows + table["first_row"], table["first_column"], values
            )


def read_delta(source: str | Path | bytes | bytearray | memoryview) -> Delta:
    """Open a file that DeltaExport wrote, or the bytes that it handed out. Needs numpy alone.

        for changed in trec_qcomm.read_delta(path):
            changed.write_to(tables[changed.table])

    Raises: CorruptFrameError: a file that is torn or changed, or no file of rows. This is found
        before any row is yielded.
    """
    if not isinstance(source, str | Path):
        return Delta(np.frombuffer(source, np.uint8))
    if not Path(source).stat().st_size:
        raise CorruptFrameError(f"{source}: an empty file")
    try:
        return Delta(np.memmap(source, np.uint8, "r").view(np.ndarray))
    except CorruptFrameError as error:
        raise CorruptFrameError(f"{source}: {error.reason}") from error


def _header(text: bytes) -> dict[str, Any]:
    """Return the header. Raises CorruptFrameError unless its fields have their types."""
    try:
        header: dict[str, Any] = json.loads(text)
        types = {"number": int, "whole": bool, "rank": int, "ranks": int, "tables": list}
        objects = [(header, types), *((table, _FIELDS) for table in header["tables"])]
        fits = all(type(o[name]) is kind for o, kinds in objects for name, kind in kinds.items())
        fits = fits and all(type(n) is int and n > 0 for t in header["tables"] for n in t["counts"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptFrameError("its header is no JSON, or lacks a field") from error
    if not fits:
        raise CorruptFrameError("its header has a field of another type or value")
    return header


def _frame(data: Array, begin: int, magic: bytes, what: str) -> tuple[Array, int]:
    """Return the bytes of a frame or message of one segment, and where it ends."""
    words = data[begin : begin + 24]
    if bytes(words[:4]) != magic or len(words) < 24:
        raise CorruptFrameError(f"torn: {what} should begin at byte {begin}")
    end = begin + int(words[16:24].view("<u8")[0])
    frame = data[begin:end]
    if end > len(data) or len(frame) % 8 or len(frame) < _ONE_SEGMENT:
        raise CorruptFrameError(f"torn: {what} should end at byte {end} of {len(data)}")
    version, at = int(frame[4:6].view("<u2")[0]), 8 if magic == _IDS_MAGIC else 12
    count = int(frame[at : at + 4].view("<u4")[0])
    if version != VERSION or count != 1:
        raise CorruptFrameError(f"{what}: version {version}, {count} segments; due: {VERSION}, 1")
    if checksum(frame.view("<u8")) != int(frame[24:32].view("<u8")[0]):
        raise CorruptFrameError(f"{what}: checksum differs: bytes changed on the way")
    return frame, end
