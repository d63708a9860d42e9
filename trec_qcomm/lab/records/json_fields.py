"""JSON of dataclasses: written field by field, and read back with every type checked.

Knows: type hints of dataclasses made of str, int, float, bool, None, tuples, mappings with text
keys, Literal, unions, and other such dataclasses. Does not know: files, kinds of record.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union

_NAMES = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}


class MistypedError(ValueError):
    """Error of a JSON value that does not fit its field. The message names the field."""


def to_json(value: Any) -> Any:
    """Return the value as dicts, lists and scalars.

    A field is left out if it has a default and is None or empty, or if it has
    `metadata={"stored": False}`.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((field, getattr(value, field.name)) for field in stored_fields(type(value)))
        return {field.name: to_json(item) for field, item in pairs if not _is_left_out(field, item)}
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json(item) for item in value]
    return value


def _is_left_out(field: dataclasses.Field[Any], value: Any) -> bool:
    has_default = not (
        field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    )
    is_empty = isinstance(value, Mapping | tuple) and not value
    return has_default and (value is None or is_empty)


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


def stored_fields(record_type: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields that JSON has: all but those with `metadata={"stored": False}`."""
    return [f for f in dataclasses.fields(record_type) if f.metadata.get("stored", True)]


def _dataclass_from_json(expected: Any, value: Any, where: str) -> Any:
    members = _checked(dict, value, where, "an object")
    fields = {field.name: field for field in stored_fields(expected)}
    prefix = f"{where}." if where else ""
    unknown = sorted(members.keys() - fields.keys())
    if unknown:
        raise MistypedError(f"{prefix}{unknown[0]}: unknown field; known are {', '.join(fields)}")
    for name, field in fields.items():
        has_default = field.default is not dataclasses.MISSING
        if name not in members and not has_default and field.default_factory is dataclasses.MISSING:
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
