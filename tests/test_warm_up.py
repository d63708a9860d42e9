"""The command python -m trec_qcomm.warm_up."""

import pytest

from trec_qcomm import warm_up
from trec_qcomm.kernels import cache
from trec_qcomm.kernels.once import Job


@pytest.fixture
def two_jobs(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    runs = []
    jobs = [Job(name, lambda name=name: runs.append(name), 2.0) for name in ("encode", "decode")]
    monkeypatch.setattr(warm_up, "jobs", lambda _config, **_dtypes: jobs)
    return runs


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit, match="0"):
        warm_up.main(["--help"])
    assert "python -m trec_qcomm.warm_up best" in capsys.readouterr().out


def test_a_job_is_compiled_once_for_all_configs(two_jobs, tmp_path, capsys):
    assert warm_up.main(["best", "int4"]) == 0
    assert two_jobs == ["encode", "decode"]
    shown = capsys.readouterr()
    assert shown.err == "1 of 2: encode, about 2 s\n2 of 2: decode, about 2 s\n"
    assert shown.out == f"compiled 2 of 2 jobs in 0 s: {tmp_path}\n"
    assert warm_up.main(["best"]) == 0
    assert two_jobs == ["encode", "decode"]
    assert capsys.readouterr().out == f"compiled 0 of 2 jobs in 0 s (2 were there): {tmp_path}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bst"], "config: 'bst' is neither a file nor a preset"),
        (["best", "--ids", "int8"], "argument --ids: invalid choice: 'int8'"),
        ([], "the following arguments are required: CONFIG"),
    ],
)
def test_mistakes_end_with_2_and_say_what_is_allowed(words, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        warm_up.main(words)
    assert message in capsys.readouterr().err


def test_kernels_that_would_be_lost_are_an_error(monkeypatch, capsys):
    monkeypatch.setattr(cache, "folder", lambda: None)
    monkeypatch.setattr(warm_up, "jobs", lambda _config, **_dtypes: [])
    with pytest.raises(SystemExit, match="2"):
        warm_up.main(["best"])
    assert "NUMBA_CACHE_DIR" in capsys.readouterr().err
