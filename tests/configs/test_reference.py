"""configs/REFERENCE.md names every field that a configuration can have, and its example is one."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from trec_qcomm import Config, GradientRule, HopCodecs, TableGradientRule, TableRule
from trec_qcomm.config import IdRule, LowRank, config_from_dict, parse_yaml
from trec_qcomm.core.registry import codec_names, codec_type
from trec_qcomm.ext.dct.refresh import ThresholdRefresh
from trec_qcomm.ext.dual_level.error_bound import OnlineClasses
from trec_qcomm.ext.dual_level.schedule import Schedule
from trec_qcomm.ext.fbgemm import LAYOUTS
from trec_qcomm.ext.feedback.rule import RowFeedback
from trec_qcomm.ext.replicas.rule import SyncRule
from trec_qcomm.lab.debug.rule import DebugRule
from trec_qcomm.lab.guard.rule import GuardRule

REFERENCE = (Path(__file__).parents[2] / "configs" / "REFERENCE.md").read_text(encoding="utf-8")
NOT_IN_A_FILE = {"source"}
RULES = (
    Config, TableRule, HopCodecs, GradientRule, TableGradientRule, DebugRule, GuardRule, IdRule,
    LowRank, RowFeedback, SyncRule,
)  # fmt: skip
CONTROL = (OnlineClasses, ThresholdRefresh, *Schedule.kinds.values())
# Other tests, in the same process, register codecs of their own.
SHIPPED_CODECS = [
    name for name in codec_names() if codec_type(name).__module__.startswith("trec_qcomm.")
]


@pytest.mark.parametrize("kind", [*RULES, *CONTROL], ids=lambda kind: kind.__name__)
def test_every_field_is_named(kind):
    names = {field.name for field in fields(kind)} - NOT_IN_A_FILE
    assert [name for name in sorted(names) if f"`{name}`" not in REFERENCE] == []


@pytest.mark.parametrize("name", SHIPPED_CODECS)
def test_every_codec_has_its_row_and_its_fields(name):
    rows = REFERENCE.split("## Codecs\n")[1].splitlines()
    start = next(n for n, row in enumerate(rows) if row.startswith(f"| `{name}` |"))
    section = [rows[start]]
    for row in rows[start + 1 :]:
        if not row.startswith("| | "):
            break
        section.append(row)
    for field in fields(codec_type(name)):
        assert any(f"| `{field.name}` |" in row for row in section)


@pytest.mark.parametrize("precision", LAYOUTS)
def test_dims_that_fbgemm_takes_are_told(precision):
    (row,) = (line for line in REFERENCE.splitlines() if line.startswith(f"| `{precision}` |"))
    _, _, size, dims, *_ = (cell.strip() for cell in row.split("|"))
    multiple = LAYOUTS[precision].multiple
    assert dims == (f"multiples of {multiple}" if multiple > 1 else "any")
    for dim in (8, 48, 64, 128):
        group = next(g for g in (32, 16, 8) if dim % g == 0)
        told = eval(re.sub(r"(\d) D", r"\1 * D", size), {}, {"D": dim, "g": group})
        assert LAYOUTS[precision].row_nbytes(dim) == told


def test_every_schedule_is_named():
    assert all(f"`{kind}`" in REFERENCE for kind in Schedule.kinds)


@pytest.mark.parametrize("text", REFERENCE.split("```yaml\n")[1:])
def test_the_examples_are_configurations(text):
    config = config_from_dict(parse_yaml(text.split("```")[0], name="REFERENCE.md"))
    assert len(config.embedding) == 2
