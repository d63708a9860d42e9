"""study_command.py: how a study ends, and what it says then."""

import sys

import pytest
import study_command

from trec_qcomm.lab.study import TrainingFailedError


def run(tmp_path, monkeypatch, complete):
    """Return the exit status, and what was shown."""
    parser, shown = study_command.make_parser("A study."), []
    study_command.add_seeds(parser, seeds=3, out=str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["study.py", "--lr", "1"])
    status = study_command.run(
        parser, "runs.jsonl", complete, lambda result, arguments: shown.append((result, arguments))
    )
    return status, shown


def test_a_study_that_ends_is_shown(tmp_path, monkeypatch):
    def complete(arguments, rest, path):
        return arguments.seeds, rest, path

    status, [(result, arguments)] = run(tmp_path, monkeypatch, complete)
    assert (status, result) == (0, (3, ["--lr", "1"], tmp_path / "runs.jsonl"))
    assert arguments.out == tmp_path


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted; the same command goes on with "),
        (TrainingFailedError("seed 3 failed"), 1, "error: seed 3 failed"),
    ],
)
def test_a_study_that_stops_says_why(tmp_path, monkeypatch, capsys, error, status, said):
    def complete(*_):
        raise error

    assert run(tmp_path, monkeypatch, complete) == (status, [])
    assert said in capsys.readouterr().err


def test_a_wrong_option_ends_with_its_message(tmp_path, monkeypatch, capsys):
    def complete(*_):
        raise ValueError("lr: no")

    with pytest.raises(SystemExit) as ended:
        run(tmp_path, monkeypatch, complete)
    assert ended.value.code == 2
    assert "lr: no" in capsys.readouterr().err
