"""configs/REFERENCE.md is what the command writes, and its examples are configurations."""

import re
import subprocess
import sys
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
from trec_qcomm.lab.tools import main

PAGE = Path(__file__).parents[2] / "configs" / "REFERENCE.md"
REFERENCE = PAGE.read_text(encoding="utf-8")
NOT_IN_A_FILE = {"source"}
SECTIONS = {
    "Top level": Config, "embedding rules": TableRule, "intra": HopCodecs, "dense": GradientRule,
    "data_parallel": TableGradientRule, "low_rank": LowRank, "ids": IdRule, "sync": SyncRule,
    "debug": DebugRule, "guard": GuardRule, "error_feedback": RowFeedback,
    "classes": OnlineClasses, "refresh": ThresholdRefresh,
}  # fmt: skip
# Other tests, in the same process, register codecs of their own.
SHIPPED_CODECS = {
    name: codec_type(name)
    for name in codec_names()
    if codec_type(name).__module__.startswith("trec_qcomm.")
}


def section(title):
    """Return the generated section of a mapping or codec."""
    generated = REFERENCE.split("<!-- generated -->")[1]
    return re.split(rf"^##+ {title}\n", generated, flags=re.M)[1].split("\n#")[0]


def test_the_page_is_what_the_command_writes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(re.sub(r"(?s)(<!-- generated -->\n).*(<!-- end -->)", r"\1\2", REFERENCE))
    assert page.read_text() != REFERENCE
    # In a process that has no codecs of other tests.
    command = [sys.executable, "-m", "trec_qcomm", "schema", "--markdown", str(page)]
    subprocess.run(command, check=True, cwd=PAGE.parents[1])
    assert page.read_text(encoding="utf-8") == REFERENCE, f"run {' '.join(command[1:-1])} {PAGE}"


@pytest.mark.parametrize("text", ["", "<!-- end -->\n<!-- generated -->\n"])
def test_a_page_without_the_lines_is_an_error(tmp_path, capsys, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(SystemExit):
        main(["schema", "--markdown", str(page)])
    assert "page.md: has no lines <!-- generated --> and <!-- end -->" in capsys.readouterr().err
    assert page.read_text() == text


@pytest.mark.parametrize(("title", "kind"), [*SECTIONS.items(), *SHIPPED_CODECS.items()])
def test_every_field_has_a_row_with_a_meaning(title, kind):
    rows = dict(re.findall(r"^\| `(\w+)`.* \| (.*) \|$", section(title), re.M))
    assert rows.keys() == {field.name for field in fields(kind)} - NOT_IN_A_FILE
    assert all(rows.values())


def test_every_schedule_has_its_row():
    rows = re.findall(r"^\| `(\w+)`", section("schedule"), re.M)
    assert rows == [*Schedule.kinds, "start", "end_step", "num_stairs"]


@pytest.mark.parametrize("precision", LAYOUTS)
def test_dims_that_fbgemm_takes_are_told(precision):
    (row,) = re.findall(rf"^    ({precision} .* D .*)", section("fbgemm"), re.M)
    _, size, dims, *_ = re.split(" {2,}", row)
    multiple = LAYOUTS[precision].multiple
    assert dims == (f"multiple of {multiple}" if multiple > 1 else "any")
    for dim in (8, 48, 64, 128):
        group = next(g for g in (32, 16, 8) if dim % g == 0)
        told = eval(re.sub(r"(\d) D", r"\1 * D", size), {}, {"D": dim, "g": group})
        assert LAYOUTS[precision].row_nbytes(dim) == told


@pytest.mark.parametrize("text", REFERENCE.split("```yaml\n")[1:])
def test_the_examples_are_configurations(text):
    config = config_from_dict(parse_yaml(text.split("```")[0], name="REFERENCE.md"))
    assert len(config.embedding) == 2
