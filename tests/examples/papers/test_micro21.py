"""micro21.py: claims of the committed records, and its commands at toy size."""

import sys

import pytest

from examples.papers import micro21
from examples.papers.claims import HOLDS, OPEN
from examples.papers.pages import write_page
from examples.papers.parts import Request
from examples.papers.tool_chain import commands, figures, recorded
from trec_qcomm.lab import records

SMALL = ["--rows", "1200", "--batch-size", "32", "--ranks", "2", "--embedding-dim", "4"]
SMALL += ["--dense-arch", "4", "--over-arch", "1"]


def test_committed_records_decide():
    see, trained, served, shift, shrink, spike, *none = micro21.PAPER.claims()
    assert [c.verdict for c in (see, trained, served, shift, shrink, spike, *none)] == [HOLDS] * 8
    assert "0.54 [0.20, 0.77]" in see.result  # as examples/criteo/README.md has it
    assert "+0.010 [-0.006, +0.026]" in trained.result
    assert "moved `t_C14` in 16 of 16 trainings" in shift.result
    assert all("moved nothing in any of 16 trainings" in c.result for c in (shrink, spike))
    assert [c.result for c in none] == ["0 false alarms"] * 2
    assert ["200 steps" in c.setting for c in none] == [True, False]


def test_commands_run_one_after_the_other(monkeypatch, tmp_path):
    """A plan that the search has left is judged and guarded; one table stands for all 26."""
    write_tables = commands.attribution.write_tables

    def one_table(config, folder):
        write_tables(config, folder)
        for path in sorted(folder.glob("*.yaml"))[1:]:
            path.unlink()

    monkeypatch.setattr(commands.attribution, "write_tables", one_table)
    request = Request(seeds=1, words=[*SMALL, "--init-scale", "1"])
    see, choose, guard = micro21.PAPER.parts
    plan = tmp_path / "choose" / commands.PLAN
    plan.parent.mkdir()
    plan.write_text(commands.COARSE)
    for part in (choose, guard):
        part.run(tmp_path / f"{part.name}.jsonl", request)
    see.measure(_made(tmp_path / "see"), request)
    (judged,) = choose.claims(tmp_path / "choose.jsonl")
    assert judged.verdict == OPEN
    assert len(list(records.read(tmp_path / "see" / "trainings.jsonl"))) == 3
    drifts = {claim.setting for claim in guard.claims(tmp_path / "guard.jsonl")}
    assert any("`none`" in setting for setting in drifts)
    drawing = figures.draw(
        {part.name: tmp_path / f"{part.name}.jsonl" for part in (see, choose, guard)}
    )
    keys = [figure.key for figure in drawing.figures]
    assert keys[0] == "attribution"
    assert "quality" in keys
    assert "guard" in keys  # and no plans: the toy run has none of a search
    assert write_page("Toy", drawing, tmp_path / "report.html").startswith(str(tmp_path))


def test_the_page_of_the_records_has_all_three():
    paths = {part.name: part.committed for part in micro21.PAPER.parts}
    drawing = figures.draw(paths)
    keys = [figure.key for figure in drawing.figures]
    assert keys[:4] == ["attribution", "search", "quality", "guard"]
    assert "0.54 [0.20, 0.77]" in drawing.figures[0].caption
    assert {type(record).__name__ for record in drawing.records} >= {
        "BenchRecord", "StudyRecord", "SearchRecord", "GuardProbeRecord",
    }  # fmt: skip


def _made(folder):
    folder.mkdir()
    return folder


def test_an_error_of_a_command_is_one_of_the_part():
    def fails():
        assert sys.argv[1:] == ["--a", "1"]
        raise SystemExit(2)

    before = sys.argv
    with pytest.raises(ValueError, match="--a 1: exit status 2"):
        recorded.call(fails, ["--a", "1"])
    assert sys.argv is before

    def interrupted():
        return 130

    with pytest.raises(KeyboardInterrupt):
        recorded.call(interrupted, [])
