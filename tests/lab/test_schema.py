"""The schema that editors read takes what the reader takes, and refuses what it refuses."""

import json
import re
from typing import Any

import pytest

from trec_qcomm.__main__ import main
from trec_qcomm.config import config_from_dict, preset_path, presets, read_yaml
from trec_qcomm.lab.schema import config_schema

SCHEMA = config_schema()
RULE = {"tables": "*", "forward": "identity", "backward": "identity"}
TYPES = {"object": dict, "array": list, "integer": int, "number": (int, float), "string": str}


def fits(data: Any, schema: dict[str, Any]) -> bool:
    """Return whether data fits a schema, as far as the words that ours has."""
    if "$ref" in schema:
        return fits(data, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    if "anyOf" in schema:
        return any(fits(data, part) for part in schema["anyOf"])
    if "enum" in schema:
        return any(type(data) is type(item) and data == item for item in schema["enum"])
    if "const" in schema:
        return bool(data == schema["const"])
    if schema["type"] in ("null", "boolean"):
        return data is None if schema["type"] == "null" else isinstance(data, bool)
    if not isinstance(data, TYPES[schema["type"]]) or isinstance(data, bool):
        return False
    if schema["type"] == "array":
        return all(fits(item, schema["items"]) for item in data)
    if schema["type"] == "object":
        unread = [*schema.get("patternProperties", {})]
        keys = [key for key in data if not any(re.match(pattern, key) for pattern in unread)]
        return {*schema["required"]} <= data.keys() and all(
            key in schema["properties"] and fits(data[key], schema["properties"][key])
            for key in keys
        )
    return schema["type"] == "string" or (
        schema.get("minimum", data) <= data <= schema.get("maximum", data)
        and not schema.get("exclusiveMinimum", data - 1) >= data
        and not schema.get("exclusiveMaximum", data + 1) <= data
    )


@pytest.mark.parametrize("name", presets())
def test_every_preset_fits(name: str) -> None:
    assert fits(read_yaml(preset_path(name)), SCHEMA)


@pytest.mark.parametrize(
    ("data", "is_right"),
    [
        ({"embedding": [RULE], "debug": {"shadow": ["float6"], "folder": None}, "x-mine": 3}, True),
        ({"dense": [{"codec": "float6", "low_rank": {"rank": 4}}]}, True),
        ({"dense": {"cross": "float6", "intra": "float6", "algorithm": "hierarchical"}}, True),
        ({"dense": {"codec": "float6", "low_rank": {"rank": 0}}}, False),
        ({"dense": {"codec": "float6", "block": 0}}, False),
        ({"dense": {"codec": "rowwise"}}, False),
        ({"dense": "float6"}, False),
        ({"sync": {"every": True}}, False),
        ({"sync": {}, "seeds": 3}, False),
        ({"embedding": [RULE | {"unique_bags": "no"}]}, False),
        ({"embedding": [RULE | {"tables": [3]}]}, False),
        ({"embedding": [RULE | {"forward": {"codec": "rowwise", "bits": 5}}]}, False),
        ({"embedding": [RULE | {"schedule": {"kind": "cosine"}}]}, False),
    ],
)
def test_the_reader_agrees(data: Any, is_right: bool) -> None:
    if is_right:
        config_from_dict(data)
    else:
        with pytest.raises(ValueError, match=":"):
            config_from_dict(data)
    assert fits(data, SCHEMA) == is_right


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(SCHEMA))
