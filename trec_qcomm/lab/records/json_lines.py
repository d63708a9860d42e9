"""JSON-lines files of records: append one line at a time, and read lines with all fields checked.

An unknown kind, version or field, a mistyped or missing field, a number beyond float64's range, and
a line that was cut short are errors that name file and line.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from trec_qcomm.core import fields
from trec_qcomm.lab.records.record import Origin, Record, Scalar

R = TypeVar("R", bound=Record)


def append(path: str | Path, *records: Record) -> None:
    """Append records to a file, one JSON line each. The file and its folder are made if needed.

    Each line is written in one piece, so several processes may append to one file.
    Raises: ValueError: the last line of the file was cut short; nothing is written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_whole(path)
    with path.open("ab", buffering=0) as file:
        for record in records:
            file.write((json.dumps(fields.write(record)) + "\n").encode())


def _check_whole(path: Path) -> None:
    """Raise ValueError if the last line of a file was cut short. A missing file is whole."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        number = file.read().count(b"\n") + 1
    raise ValueError(f"{path}, line {number}: was cut short; take it away to go on")


def read(path: str | Path) -> list[Record]:
    """Return the records of a file; each knows its line by `origin`.

    Raises: ValueError: the file cannot be read, or a line is no record; the error names both.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    lines = enumerate(text.split("\n"), start=1)
    return [_record(line, Origin(str(path), number)) for number, line in lines if line.strip()]


def read_same(
    path: Path, kind: type[R], setup: Mapping[str, Scalar], num_ranks: int, what: str
) -> list[R]:
    """Return the records of a file, all of one kind and setup; empty if the file is missing.

    Args: num_ranks: number of ranks of the records.  what: words before what differs, in errors.
    Raises: ValueError: the errors of `read`, or a record of another kind, setup or number of ranks.
    """
    records: list[Any] = read(path) if path.exists() else []
    ours = dict(setup) | {"num_ranks": num_ranks}
    for record in records:
        if not isinstance(record, kind):
            raise ValueError(f"{record.origin}: a record of kind {record.kind}, not {kind.kind}")
        theirs = dict(record.setup) | {"num_ranks": getattr(record, "num_ranks", None)}
        changed = [key for key in ours | theirs if ours.get(key) != theirs.get(key)]
        if changed:
            raise ValueError(f"{path}: {what} {', '.join(changed)}; give another path")
    return records


def read_all(places: Iterable[str | Path]) -> list[Record]:
    """Return the records of files, and of all *.jsonl files in folders, in the order given.

    Raises: ValueError: the errors of `read`, a missing place, or no record at all.
    """
    records = [record for path in _files(map(Path, places)) for record in read(path)]
    if not records:
        raise ValueError("the files hold no record; name files that a tool of trec_qcomm wrote")
    return records


def _record(line: str, origin: Origin) -> Record:
    """Return the record of one line. Raises ValueError, which names the origin: it is no record."""
    try:
        members = json.loads(line, parse_int=_integer, parse_float=_number)
        if not isinstance(members, dict):
            raise ValueError(f"expected an object, got {type(members).__name__}")
        if "version" not in members:
            raise ValueError(
                "version: missing; this line was written before records had versions, or by "
                f"another program (known is version {Record.version})"
            )
        record: Record = fields.read(Record, members)
    except json.JSONDecodeError as error:
        raise ValueError(f"{origin}: not JSON ({error}); was it cut short?") from None
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from None
    return replace(record, origin=origin)


def _integer(digits: str) -> int:
    """Return an integer of JSON. Raises ValueError: too large for a float, as figures need."""
    _number(digits)
    return int(digits)


def _number(text: str) -> float:
    """Return a number of JSON. Raises ValueError: beyond float64's range."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"a number beyond the range of float64: {text:.20}...")
    return number


def _files(places: Iterable[Path]) -> Sequence[Path]:
    """Return the files of all places; one that is given twice counts once."""
    files: dict[Path, Path] = {}
    for place in places:
        if not place.exists():
            raise ValueError(f"{place}: no such file or folder")
        inside = sorted(place.rglob("*.jsonl")) if place.is_dir() else [place]
        if not inside:
            raise ValueError(f"{place}: no *.jsonl in this folder")
        for file in inside:
            files.setdefault(file.resolve(), file)
    return list(files.values())
