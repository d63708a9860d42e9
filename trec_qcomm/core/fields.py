"""Read and write dataclasses by their type hints: configs, codecs and records.

A hint says all that a field may hold: int, float, bool, str, Any, Literal, `X | Y`, Sequence[X] or
tuple[X, ...], Mapping[str, X], another dataclass, or Codec. `Annotated[int, Range(1, 256)]` adds
limits. `Annotated[X, function]` calls the function with the value and its place. The function
returns what the field holds, or raises ValueError.

    @dataclass(frozen=True)
    class Link:
        latency_s: Annotated[float, Range(0)] = 5e-5

        def __post_init__(self) -> None:
            check_fields(self)

    read(Link, {"latency_s": -1}, "link")  # link.latency_s: -1 is not a finite number >= 0

A class may have more than fields:

- `kinds`, {name: class}: a mapping then says by the key `kind` which of several classes it is.
- `fields_of_keys(mapping)` and `keys_of_fields()`: keys whose names differ from their fields'.

A field with `metadata={"stored": False}` is neither read nor written.

Knows: type hints, names of codecs. Does not know: YAML, JSON, what any field means.
"""

import dataclasses
import functools
import math
import reprlib  # a few lines of YAML whose aliases nest are a value of billions of parts
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, is_dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args, get_origin

from trec_qcomm.core.codec import Codec
from trec_qcomm.core.registry import codec_names, codec_type

_NOUNS = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
_PLURALS = {int: "integers", float: "numbers", str: "texts", Codec: "codecs"}
_POWERS: dict[float, str] = {2**bits - 1: f"2^{bits} - 1" for bits in (31, 63)}
UNIONS = (typing.Union, types.UnionType)
LISTS = (tuple, Sequence)


@dataclass(frozen=True)
class Range:
    """Finite numbers that a field may hold.

    Args: least, most: limits; `most` needs `least`.  is_open: whether the limits are excluded.
    """

    least: float = -math.inf
    most: float = math.inf
    is_open: bool = False

    def holds(self, number: float) -> bool:
        """Return whether a number is in the range."""
        is_limit = number in (self.least, self.most)
        is_inside = self.least <= number <= self.most and not (self.is_open and is_limit)
        return is_inside and abs(number) <= sys.float_info.max

    def __str__(self) -> str:
        """Return the range in words that follow a noun, such as " >= 1"."""
        if self.least == -math.inf:
            return ""
        if self.most == math.inf:
            return f" {'>' if self.is_open else '>='} {self.least}"
        most = _POWERS.get(self.most, self.most)
        return f" between {self.least} and {most}" if self.is_open else f" in {self.least}..{most}"


def read(hint: Any, data: object, where: str = "") -> Any:
    """Return data of YAML or JSON as what a type hint asks for; `write` undoes it.

    Lists become tuples and mappings become dataclasses. A value that is a dataclass already stays.
    A codec, or a class with `kinds`, may be given by its name alone, and a Sequence[str] by one
    text.

    Args:
        hint: a type or type hint.
        data: mappings, lists and scalars.
        where: place of the data, for errors.

    Raises: ValueError: naming the place, and what is allowed there.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, rule, *_ = arguments
        if not isinstance(rule, Range):
            return rule(data, where)
        is_fitting = _is_scalar(data, kind) and rule.holds(data)  # type: ignore[arg-type]
    elif origin in UNIONS:
        return _read_union(hint, data, where)
    elif origin is Literal:
        is_fitting = any(type(data) is type(item) and data == item for item in arguments)
    elif origin in LISTS:
        if isinstance(data, str) and hint == Sequence[str]:
            data = [data]
        if not isinstance(data, Sequence) or isinstance(data, str):
            raise _refusal(hint, data, where)
        return tuple(read(arguments[0], item, f"{where}[{n}]") for n, item in enumerate(data))
    elif origin is Mapping:
        if not isinstance(data, Mapping):
            raise _refusal(hint, data, where)
        return {name: read(arguments[1], item, f"{where}.{name}") for name, item in data.items()}
    elif hint is Codec or is_dataclass(hint):
        return _read_object(hint, data, where)
    else:
        is_fitting = _is_scalar(data, hint)
    if not is_fitting:
        raise _refusal(hint, data, where)
    return data


def check_fields(owner: Any, where: str = "") -> None:
    """Check the fields of a new dataclass by their hints, and turn lists into tuples.

    Args: where: prefix of the names of fields in errors; may be empty.
    Raises: ValueError: naming the field, and what is allowed there.
    """
    kind: Any = type(owner)
    hints = hints_of(kind)
    for field in dataclasses.fields(kind):
        value = read(hints[field.name], getattr(owner, field.name), _place(where, field.name))
        object.__setattr__(owner, field.name, value)


def write(value: Any, brief: tuple[type, ...] = ()) -> Any:
    """Return the value as mappings, lists and scalars, with the fields in their order.

    A field is left out if it has its default and the default is None or empty. A codec has all
    fields.

    Args: brief: classes whose fields are all left out where they have their defaults.
    """
    if is_dataclass(value):
        data: dict[str, Any] = {}
        left_out: list[object] = [None, (), {}]
        if isinstance(value, Codec):
            data["codec"], left_out = value.name, []
        elif kinds := getattr(value, "kinds", None):
            data["kind"] = next(name for name, kind in kinds.items() if kind is type(value))
        keys = value.keys_of_fields() if hasattr(value, "keys_of_fields") else {}
        for field in stored_fields(value):
            item = getattr(value, field.name)
            may_miss = isinstance(value, brief) or item in left_out
            if not (may_miss and item == default_of(field)):
                data[keys.get(field.name, field.name)] = write(item, brief)
        return data
    if isinstance(value, Mapping):
        return {str(name): write(item, brief) for name, item in value.items()}
    return [write(item, brief) for item in value] if isinstance(value, list | tuple) else value


def _read_union(hint: Any, data: object, where: str) -> Any:
    """Return the data as the first type that fits.

    If none fits, the error is that of the type of the data's shape, a list or a mapping.
    """
    choices = [choice for choice in get_args(hint) if choice is not types.NoneType]
    if data is None and len(choices) < len(get_args(hint)):
        return None
    for choice in choices:
        try:
            return read(choice, data, where)
        except ValueError:
            if len(choices) == 1 or isinstance(data, _shape(choice)):
                raise
    raise _refusal(hint, data, where)


def _read_object(kind: Any, data: Any, where: str) -> Any:
    """Return a codec or dataclass from a mapping of its fields, none unknown and none missing."""
    if isinstance(data, kind) and not isinstance(data, type):
        return data
    if kind is Codec or getattr(kind, "kinds", None):
        kind, data = _named_class(kind, data, where)
    if not isinstance(data, Mapping):
        raise _refusal(kind, data, where or "top level")
    known = {f.name: f for f in stored_fields(kind)}
    names = _located(where, kind.fields_of_keys, data) if hasattr(kind, "fields_of_keys") else {}
    keys: dict[Any, Any] = {names.get(key, key): key for key in data}
    for name, key in keys.items():
        if name not in known:
            near = get_close_matches(str(key), known, n=1)
            raise ValueError(
                f"{_place(where, key)}: unknown key; allowed: {', '.join(known) or 'none'}"
                f"{f'; did you mean {near[0]}?' if near else ''}"
            )
    for name, field in known.items():
        if name not in keys and default_of(field) is MISSING:
            raise ValueError(f"{_place(where, name)}: missing")
    hints = hints_of(kind)
    values = {name: read(hints[name], data[key], _place(where, key)) for name, key in keys.items()}
    return _located(where, kind, **values)


def _named_class(kind: Any, data: Any, where: str) -> tuple[Any, dict[Any, Any]]:
    """Return the class that a mapping names, and its other members."""
    key, names = ("codec", codec_names()) if kind is Codec else ("kind", list(kind.kinds))
    if isinstance(data, str):
        data = {key: data}
    if not isinstance(data, Mapping) or key not in data:
        raise ValueError(
            f"{where or 'top level'}: expected the name of a {key} or {{{key}: name, ...}}, "
            f"got {reprlib.repr(data):.60}; {key}s: {', '.join(names)}"
        )
    if kind is Codec:
        chosen = _located(where, codec_type, str(data[key]))
    else:
        chosen = kind.kinds[read(Literal[*names], data[key], _place(where, key))]
    return chosen, {name: item for name, item in data.items() if name != key}


def _place(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _located(where: str, make: Callable[..., Any], *arguments: Any, **values: Any) -> Any:
    try:
        return make(*arguments, **values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from error


def _is_scalar(data: object, kind: Any) -> bool:
    if kind in _NOUNS:
        return type(data) is kind or (kind is float and type(data) is int)
    return not isinstance(kind, type) or isinstance(data, kind)


def _shape(hint: Any) -> Any:
    origin = get_origin(hint)
    if origin in LISTS:
        return list | tuple
    return Mapping if hint is Codec or is_dataclass(hint) or origin is Mapping else ()


def _words(hint: Any) -> str:
    """Return what a hint allows, as words of an error."""
    origin, arguments, name = get_origin(hint), get_args(hint), getattr(hint, "__name__", "")
    if origin is Annotated:
        return f"{_words(arguments[0])}{arguments[1]}".replace("a number", "a finite number")
    if origin is Literal:
        return f"one of {arguments}"
    if origin in UNIONS:
        return " or ".join(_words(part) for part in arguments if part is not types.NoneType)
    if origin in LISTS:
        return f"a list of {_PLURALS.get(arguments[0], 'mappings')}"
    if is_dataclass(hint):
        return f"a mapping of {', '.join(f.name for f in stored_fields(hint))} ({name})"
    return "a mapping" if origin is Mapping else _NOUNS.get(hint, name)


def _refusal(hint: Any, data: object, where: str) -> ValueError:
    parts = get_args(hint) if get_origin(hint) in UNIONS else [hint]
    if any(map(_shape, parts)):
        return ValueError(f"{where}: expected {_words(hint)}, got {reprlib.repr(data):.60}")
    return ValueError(f"{where}: {reprlib.repr(data):.60} is not {_words(hint)}")


def stored_fields(kind: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass that are read and written."""
    return [f for f in dataclasses.fields(kind) if f.metadata.get("stored", True)]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field; MISSING where it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


@functools.cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Return {field: type hint} of a dataclass, with what `Annotated` adds."""
    return typing.get_type_hints(kind, include_extras=True)
