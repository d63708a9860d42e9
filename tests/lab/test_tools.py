"""One command runs every tool: `trec-qcomm TOOL`, or `python -m trec_qcomm TOOL`."""

import pytest

from trec_qcomm.lab.tools import TOOLS, main


@pytest.mark.parametrize(("words", "status"), [([], 2), (["--help"], 0), (["-h"], 0)])
def test_help_names_every_tool(words, status, capsys):
    assert main(words) == status
    said = capsys.readouterr().out
    for name, (_, what) in TOOLS.items():
        assert f"{name} " in said
        assert what in said


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_shows_examples_under_its_name(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: python -m trec_qcomm {name} ")
    assert f" -m trec_qcomm {name}" in said.partition("\n")[2]


def test_an_unknown_tool_is_named(capsys):
    assert main(["prewiev"]) == 2
    assert "'prewiev' is not one of choose, preview, " in capsys.readouterr().err
