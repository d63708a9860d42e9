"""JSON schema of a config, from the type hints of its fields, for editors.

examples:
  python -m trec_qcomm schema > schema.json
  python -m trec_qcomm schema --markdown configs/REFERENCE.md

An editor completes and checks a YAML file that begins with this line:
  # yaml-language-server: $schema=schema.json

The schema has the fields, types, ranges and choices. It does not have what several fields must
fulfil together; reading the config checks that.

The second command writes the reference of all fields into a page: their types, and what the
docstrings say of them.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from trec_qcomm.config import Config
from trec_qcomm.config.section import At
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.fields import LISTS, UNIONS, Range, default_of, hints_of, stored_fields, write
from trec_qcomm.core.registry import codec_names, codec_type
from trec_qcomm.lab.command_line import parser_of
from trec_qcomm.lab.reference import filled

_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}


def config_schema() -> dict[str, Any]:
    """Return the JSON schema of a config, Draft 2020-12."""
    classes: dict[str, Any] = {}
    top = _schema(Config, classes)
    classes["Config"]["patternProperties"] = {"^x-": {}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | top | {"$defs": classes}


def _schema(hint: Any, classes: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a hint. Args: classes: schemas of dataclasses by name, to be filled."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, rule = arguments
        if isinstance(rule, At):
            return _schema(rule.section_type(), classes)
        return _schema(kind, classes) | (_limits(rule) if isinstance(rule, Range) else {})
    if origin in UNIONS:
        return {"anyOf": [_schema(part, classes) for part in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in LISTS:
        items = {"type": "array", "items": _schema(arguments[0], classes)}
        return {"anyOf": [{"type": "string"}, items]} if hint == Sequence[str] else items
    if hint is Codec:
        return _one_of("codec", {name: codec_type(name) for name in codec_names()}, classes)
    if kinds := getattr(hint, "kinds", None):
        return _one_of("kind", kinds, classes)
    if is_dataclass(hint):
        return _reference(hint, {}, classes)
    return {"type": _TYPES[hint]} if hint in _TYPES else {}


def _one_of(key: str, kinds: Mapping[str, Any], classes: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object of one of several classes, or of the name of one alone."""
    objects = [_reference(kind, {key: {"const": n}}, classes) for n, kind in kinds.items()]
    needs_more = [classes[kind.__name__]["required"] != [key] for kind in kinds.values()]
    short = [name for name, needs in zip(kinds, needs_more, strict=True) if not needs]
    return {"anyOf": [{"enum": short}, *objects]}


def _reference(kind: Any, head: dict[str, Any], classes: dict[str, Any]) -> dict[str, Any]:
    """Return the reference to a class, whose schema is made at first."""
    if kind.__name__ not in classes:
        schema = {"type": "object", "description": inspect.getdoc(kind) or ""}
        classes[kind.__name__] = schema | {"additionalProperties": False}
        properties, required = dict(head), list(head)
        for field in stored_fields(kind):
            properties[field.name] = _schema(hints_of(kind)[field.name], classes)
            if (value := default_of(field)) is MISSING:
                required.append(field.name)
            elif value is not None:
                properties[field.name] |= {"default": write(value)}
        for key, name in getattr(kind, "other_keys", {}).items():
            properties[key] = properties[name]
            required.remove(name)
        classes[kind.__name__] |= {"properties": properties, "required": required}
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _limits(limits: Range) -> dict[str, float]:
    names = ("exclusiveMinimum", "exclusiveMaximum") if limits.is_open else ("minimum", "maximum")
    pairs = zip(names, (limits.least, limits.most), strict=True)
    return {name: value for name, value in pairs if abs(value) != float("inf")}


def main(words: Sequence[str] | None = None) -> int:
    """Print the schema, or write the reference into a page."""
    parser = parser_of("schema", __doc__)
    parser.add_argument(
        "--markdown", metavar="PAGE", type=Path, help="write the reference into a page instead"
    )
    page: Path | None = parser.parse_args(words).markdown
    if page is not None:
        try:
            page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
        except (OSError, ValueError) as error:
            parser.error(f"{page}: {error}")
        return 0
    print(json.dumps(config_schema(), indent=1))
    return 0
