"""The schema that editors read takes what the reader takes, and refuses what it refuses."""

import json
from typing import Any

import fastjsonschema
import pytest

from trec_qcomm.config import config_from_dict, preset_path, presets, read_yaml
from trec_qcomm.lab.schema import config_schema
from trec_qcomm.lab.tools import main

SCHEMA = config_schema()
RULE = {"tables": "*", "forward": "identity", "backward": "identity"}
VALIDATE = fastjsonschema.compile(SCHEMA)


@pytest.mark.parametrize("name", presets())
def test_every_preset_fits(name: str) -> None:
    VALIDATE(read_yaml(preset_path(name)))


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
        VALIDATE(data)
        return
    with pytest.raises(ValueError, match=":"):
        config_from_dict(data)
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        VALIDATE(data)


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(SCHEMA))
