"""python -m trec_qcomm search: what it is given, what it writes, what it says at the end."""

import pytest

from tests.lab.search import planted
from trec_qcomm import load_config
from trec_qcomm.lab.search.command import main

CANDIDATES = """
forward:
  - {codec: error_bounded, bound: 0.01}
  - {codec: error_bounded, bound: 0.05}
backward:
  - {codec: rowwise, bits: 4, rounding: stochastic}
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Return the path of a file with a training function and factories."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "codecs.yaml").write_text(CANDIDATES)
    path = tmp_path / "model_of_user.py"
    path.write_text(
        "from tests.lab.search.planted import train\n"
        "def make(words):\n"
        "    assert words == ['--data', 'rows'], words\n"
        "    return {'train': train, 'metrics': ['loss'], 'setup': {'data': words[1]}}\n"
        "nothing = 3\n"
    )
    return path


def run(model, name, *words):
    return main(["--train", f"{model}:{name}", "--codecs", "codecs.yaml", "--path", "runs", *words])


def test_a_factory_gets_the_words_and_the_plans_are_written(model, capsys):
    planted.CALLS.clear()
    words = ("--data", "rows", "--rounds", "1")
    assert run(model, "make", *words) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("4 tables, ")
    assert out.splitlines()[-1].endswith("Training: PASS; wrote plan.yaml")
    for name in ("plan", "plan-half", "plan-twice"):
        load_config(model.parent / f"{name}.yaml").check_patterns(planted.ROWS)
    calls = len(planted.CALLS)
    assert run(model, "make", *words) == 0
    assert len(planted.CALLS) == calls


def test_a_function_is_taken_as_it_is(model, capsys):
    assert run(model, "train", "--metrics", "loss", "--verification-seeds", "0") == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("not verified; wrote plan.yaml")


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("train", (), "--metrics: missing"),
        ("train", ("--metrics", "loss", "--rows", "3"), "--rows: no option of this program"),
        ("absent", (), "has no function absent"),
        ("nothing", (), "has no function nothing"),
        ("train", ("--metrics", "loss", "--budget-ne", "-1"), "budget: -1.0 is not a number above"),
        ("train", ("--metrics", "loss", "--codecs", "absent.yaml"), "absent.yaml"),
    ],
)
def test_mistakes_are_told(model, name, words, message, capsys):
    with pytest.raises(SystemExit) as error:
        run(model, name, *words)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_the_file_of_the_training_must_be_there(model, capsys):
    with pytest.raises(SystemExit):
        run("absent.py", "train")
    assert "--train absent.py:train: expected FILE.py:NAME" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(model, capsys, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("trec_qcomm.lab.search.command.search", interrupted)
    assert run(model, "train", "--metrics", "loss") == 130
    assert "the same command goes on with runs" in capsys.readouterr().err
