"""Reference of a config's fields, as Markdown, from the type hints and docstrings of its classes.

    python -m trec_qcomm schema --markdown configs/REFERENCE.md

Each mapping has a section: what the docstring of its class says, and a table of its fields. The
meaning of a field is its note below `Args:`, in the docstring of the class or of a base of it.

Knows: type hints, docstrings. Does not know: what any field means.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, is_dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from trec_qcomm.config import Config
from trec_qcomm.config.section import At
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.fields import LISTS, UNIONS, Range, default_of, hints_of, stored_fields
from trec_qcomm.core.registry import codec_names, codec_type

Headings = dict[Any, str]  # {class of a mapping: the heading of its section, "## dense"}
BEGIN, END = "<!-- generated -->\n", "<!-- end -->\n"
_NOUNS = {int: "integer", float: "number", bool: "`true` or `false`", str: "text"}
_NOTE = re.compile(r"(?:^(?: {4})?|(?<=\S) {2})(\w+(?:, \w+)*): ", re.MULTILINE)
_HEAD = "| field | type | default | meaning |\n|---|---|---|---|"


def filled(page: str) -> str:
    """Return a page with the reference between its lines `<!-- generated -->` and `<!-- end -->`.

    Raises: ValueError: the page does not have these lines.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"has no lines {BEGIN.strip()} and {END.strip()}, in this order")
    return f"{before}{begin}\n{config_reference()}\n{end}{after}"


def config_reference() -> str:
    """Return the sections of all mappings that a config may have, and of all codecs."""
    headings: Headings = {}
    _collect(Config, "## Top level", headings)
    parts: list[str] = []
    for kind, heading in headings.items():
        parts += _section(kind, heading, headings)
    parts.append("## Codecs")
    for name in codec_names():
        parts += _section(codec_type(name), f"### {name}", headings)
    return "\n\n".join(parts) + "\n"


def _collect(kind: Any, heading: str, headings: Headings) -> None:
    """Note a mapping, and those that its fields may hold, in the order in which they are named."""
    headings[kind] = heading
    for field in stored_fields(kind):
        hint = hints_of(kind)[field.name]
        title = f"{field.name} rules" if get_origin(hint) in LISTS else field.name
        for part in _parts(hint):
            if is_dataclass(part) and part not in headings:
                _collect(part, f"{'##' if kind is Config else '###'} {title}", headings)


def _parts(hint: Any) -> Iterator[Any]:
    """Yield the types of which a field may hold a value or a list."""
    if get_origin(hint) is Annotated:
        kind, rule = get_args(hint)
        yield from _parts(rule.section_type() if isinstance(rule, At) else kind)
    elif get_origin(hint) in (*UNIONS, *LISTS):
        for part in get_args(hint):
            yield from _parts(part)
    else:
        yield hint


def _section(kind: Any, heading: str, headings: Headings) -> Iterator[str]:
    """Yield the parts of a section: its heading, the docstring, and the tables."""
    yield heading
    yield _docstring(kind)[0]
    kinds = getattr(kind, "kinds", {})
    if kinds:
        lines = [_row(f"`{name}`", _docstring(each)[0]) for name, each in kinds.items()]
        yield "\n".join(["| kind | meaning |\n|---|---|", *lines])
    rows = [row for each in kinds.values() or [kind] for row in _rows(each, headings)]
    if rows:
        yield "\n".join([_HEAD, *dict.fromkeys(rows)])  # a field that kinds share, once


def _rows(kind: Any, headings: Headings) -> Iterator[str]:
    """Yield the row of each field of a mapping."""
    notes, hints = _notes(kind), hints_of(kind)
    others = {name: key for key, name in getattr(kind, "other_keys", {}).items()}
    for field in stored_fields(kind):
        words, note = _words(hints[field.name], headings), notes.get(field.name, "")
        keys = [field.name, others[field.name]] if field.name in others else [field.name]
        yield _row(" or ".join(map(_value, keys)), words, _default(field), note)


def _row(*cells: str) -> str:
    in_one_line = (" ".join(cell.split()).replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(in_one_line)} |"


def _docstring(kind: Any) -> tuple[str, str]:
    """Return the docstring of a class, and what it has below `Args:`."""
    text = inspect.cleandoc(kind.__doc__ or "")
    said, _, rest = text.partition("Args:")
    return said.strip(), re.split(r"\n(?=\S)", rest)[0].strip()


def _notes(kind: Any) -> dict[str, str]:
    """Return {field: note} of a class and its bases."""
    notes: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, *parts = _NOTE.split(_docstring(base)[1])
        for names, note in zip(parts[::2], parts[1::2], strict=True):
            notes |= dict.fromkeys(names.split(", "), note)
    return notes


def _words(hint: Any, headings: Headings) -> str:
    """Return what a hint allows."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, rule = arguments
        kind = rule.section_type() if isinstance(rule, At) else kind
        return _words(kind, headings) + (str(rule) if isinstance(rule, Range) else "")
    if origin in UNIONS:
        return ", or ".join(_words(part, headings) for part in arguments if part is not NoneType)
    if origin is Literal:
        *others, last = map(_value, arguments)
        return f"{', '.join(others)} or {last}" if others else last
    if origin in LISTS:
        items = _words(arguments[0], headings)
        return f"{items}, or list of them" if hint == Sequence[str] else f"list of {items}"
    if hint in headings:
        return f"[mapping](#{headings[hint].lstrip('# ').replace(' ', '-')})"
    return "[codec](#codecs)" if hint is Codec else _NOUNS.get(hint, hint.__name__)


def _default(field: Field[Any]) -> str:
    value = default_of(field)
    if value is MISSING:
        return "required"
    if value is None or value == ():
        return "none"
    if isinstance(value, Codec):
        return _value(value.name)
    if is_dataclass(value):
        return "its defaults"
    return ", ".join(map(_value, value)) if isinstance(value, tuple) else _value(value)


def _value(value: object) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
