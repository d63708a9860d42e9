"""JSON-lines files of records: appended to one line at a time, read back with every field checked.

Fields are str, int, float, bool, None, tuples, mappings with text keys, Literal, unions, and other
such dataclasses.
An unknown kind, version or field, a mistyped or missing field, a number beyond float64's range, and
a line that was cut short are errors that name file and line.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Union

from trec_qcomm.lab.records.record import RECORD_TYPES, SCHEMA_VERSION, Origin, Record

_NAMES = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}


def append(path: str | Path, *records: Record) -> None:
    """Append records to a file, one JSON line each. The file and its folder are made if needed.

    Each line is written in one piece, so several processes may append to one file.
    Raises: ValueError: the last line of the file was cut short; nothing is written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    check_whole(path)
    with path.open("ab", buffering=0) as file:
        for record in records:
            file.write(line_of(record).encode())


def check_whole(path: str | Path) -> None:
    """Raise ValueError if the last line of the file was cut short. A missing file is whole."""
    path = Path(path)
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        number = file.read().count(b"\n") + 1
    raise ValueError(f"{path}, line {number}: was cut short; take it away to go on")


def line_of(record: Record) -> str:
    """Return the record as a line of JSON, with its kind and the version of the schema first."""
    head = {"kind": record.kind, "version": SCHEMA_VERSION}
    return json.dumps(head | to_json(record)) + "\n"


def read(path: str | Path) -> list[Record]:
    """Return the records of a file; each knows its line by `origin`.

    Raises: ValueError: the file cannot be read, or a line is no record; it names file and line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    lines = enumerate(text.split("\n"), start=1)
    return [parse_line(line, Origin(str(path), number)) for number, line in lines if line.strip()]


def read_all(places: Iterable[str | Path]) -> list[Record]:
    """Return the records of files, and of all *.jsonl files in folders, in the order given.

    Raises: ValueError: the errors of `read`; a place that is not there; no record at all.
    """
    records = [record for path in _files(map(Path, places)) for record in read(path)]
    if not records:
        raise ValueError("the files hold no record")
    return records


def parse_line(line: str, origin: Origin) -> Record:
    """Return the record of one line. Raises ValueError, which names the origin: it is no record."""
    try:
        fields = json.loads(line, parse_int=_integer, parse_float=_number)
        if not isinstance(fields, dict):
            raise MistypedError(f"expected an object, got {type(fields).__name__}")
        return replace(_record(fields), origin=origin)
    except json.JSONDecodeError as error:
        raise ValueError(f"{origin}: not JSON ({error}); was it cut short?") from None
    except MistypedError as error:
        raise ValueError(f"{origin}: {error}") from None


def _integer(digits: str) -> int:
    """Return an integer of JSON. Raises MistypedError: too large for a float, as figures need."""
    _number(digits)
    return int(digits)


def _number(text: str) -> float:
    """Return a number of JSON. Raises MistypedError: beyond float64's range."""
    number = float(text)
    if math.isinf(number):
        raise MistypedError(f"a number beyond the range of float64: {text:.20}...")
    return number


def _record(fields: dict[str, Any]) -> Record:
    if "version" not in fields:
        raise MistypedError(
            f"version: missing; this line was written before records had versions, or by another "
            f"program (known is version {SCHEMA_VERSION})"
        )
    kind, version = fields.pop("kind", None), fields.pop("version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise MistypedError(f"version: expected {SCHEMA_VERSION}, got {version!r}")
    if not isinstance(kind, str) or kind not in RECORD_TYPES:
        raise MistypedError(f"kind: expected one of {', '.join(RECORD_TYPES)}, got {kind!r}")
    try:
        record: Record = from_json(RECORD_TYPES[kind], fields, "")
    except MistypedError as error:
        raise MistypedError(f"{kind} record, {error}") from None
    return record


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


class MistypedError(ValueError):
    """Error of a JSON value that does not fit its field. The message names the field."""


def to_json(value: Any) -> Any:
    """Return the value as dicts, lists and scalars.

    A field is left out if it has a default and is None or empty, or if it has
    `metadata={"stored": False}`.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((field, getattr(value, field.name)) for field in _stored_fields(type(value)))
        return {
            f.name: to_json(x) for f, x in pairs if not (_has_default(f) and x in (None, {}, ()))
        }
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json(item) for item in value]
    return value


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return not (field.default is missing and field.default_factory is missing)


def _stored_fields(record_type: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields that JSON has: all but those with `metadata={"stored": False}`."""
    return [f for f in dataclasses.fields(record_type) if f.metadata.get("stored", True)]


def from_json(expected: Any, value: Any, where: str) -> Any:
    """Return the value as the expected type.

    Args:
        expected: a type or a type hint.
        value: what `json.loads` gave.
        where: name of the field, for messages.
    Raises: MistypedError: another type, an unknown field, or a missing one without a default.
    """
    if dataclasses.is_dataclass(expected):
        return _dataclass_from_json(expected, value, where)
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (Union, types.UnionType):
        return _first_that_fits(arguments, value, where)
    if origin is Literal:
        if value not in arguments:
            raise MistypedError(f"{where}: expected one of {', '.join(arguments)}, got {value!r}")
        return value
    if origin is tuple:
        items = _checked(list, value, where, "a list")
        return tuple(from_json(arguments[0], item, f"{where}[{n}]") for n, item in enumerate(items))
    if origin is not None and issubclass(origin, Mapping):
        members = _checked(dict, value, where, "an object")
        return {
            name: from_json(arguments[1], item, f"{where}.{name}")
            for name, item in members.items()
        }  # fmt: skip
    return _scalar(expected, value, where)


def _dataclass_from_json(expected: Any, value: Any, where: str) -> Any:
    members = _checked(dict, value, where, "an object")
    fields = {field.name: field for field in _stored_fields(expected)}
    prefix = f"{where}." if where else ""
    unknown = sorted(members.keys() - fields.keys())
    if unknown:
        raise MistypedError(f"{prefix}{unknown[0]}: unknown field; known are {', '.join(fields)}")
    for name, field in fields.items():
        if name not in members and not _has_default(field):
            raise MistypedError(f"{prefix}{name}: missing")
    hints = _hints(expected)
    values = {name: from_json(hints[name], item, prefix + name) for name, item in members.items()}
    try:
        return expected(**values)
    except ValueError as error:  # what a dataclass says of its own fields
        raise MistypedError(f"{prefix}{error}") from None


@functools.cache
def _hints(record_type: type) -> dict[str, Any]:
    return typing.get_type_hints(record_type)


def _first_that_fits(choices: Sequence[Any], value: Any, where: str) -> Any:
    """Return the value as one of several types; where none fits, say what the last one misses."""
    if value is None and type(None) in choices:
        return None
    choices = [choice for choice in choices if choice is not type(None)]
    for choice in choices[:-1]:
        try:
            return from_json(choice, value, where)
        except MistypedError:
            continue
    return from_json(choices[-1], value, where)


def _scalar(expected: Any, value: Any, where: str) -> Any:
    if expected is Any:
        return value
    is_flag = isinstance(value, bool)
    if expected is float and isinstance(value, int) and not is_flag:
        return value  # as it was written: 3 stays 3
    if not isinstance(value, expected) or (is_flag and expected is not bool):
        what = _NAMES.get(expected, f"a {expected.__name__}")
        raise MistypedError(f"{where}: expected {what}, got {value!r:.60}")
    return value


def _checked(expected: type, value: Any, where: str, what: str) -> Any:
    if not isinstance(value, expected):
        raise MistypedError(f"{where or 'the line'}: expected {what}, got {value!r:.60}")
    return value
