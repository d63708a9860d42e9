"""The command python -m trec_qcomm warm-up."""

import time

import pytest

from trec_qcomm.jit import cache
from trec_qcomm.jit.once import Job
from trec_qcomm.lab import warm_up


@pytest.fixture
def two_jobs(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    monkeypatch.setattr(warm_up, "_num_cores", lambda: 2)
    runs = tmp_path / "runs"

    def run(name):
        with open(runs, "a") as file:
            file.write(f"{name}\n")

    jobs = [Job(name, lambda name=name: run(name)) for name in ("encode", "decode")]
    monkeypatch.setattr(warm_up, "jobs", lambda _config, **_dtypes: jobs)
    return runs


def test_a_job_is_compiled_once_for_all_configs(two_jobs, tmp_path, capfd):
    assert warm_up.main(["best", "int4"]) == 0
    assert sorted(two_jobs.read_text().split()) == ["decode", "encode"]
    shown = capfd.readouterr()
    first, second = (line.partition(": ") for line in shown.err.splitlines())
    assert [first[0], second[0]] == ["1 of 2", "2 of 2"]
    assert {first[2], second[2]} == {"encode", "decode"}
    assert shown.out.startswith("compiled 2 of 2 jobs in ")
    assert shown.out.endswith(f" s: {tmp_path}\n")
    assert warm_up.main(["best"]) == 0
    assert len(two_jobs.read_text().split()) == 2
    assert capfd.readouterr().out == f"compiled 0 of 2 jobs in 0 s (2 were there): {tmp_path}\n"


def test_two_cores_compile_at_the_same_time(two_jobs, tmp_path, monkeypatch):
    """Two jobs that wait for each other, so that one process alone would not end."""

    def run(ours, theirs):
        (tmp_path / ours).touch()
        deadline = time.monotonic() + 60
        while not (tmp_path / theirs).exists():
            assert time.monotonic() < deadline, "the other job has not begun"
            time.sleep(0.01)

    names = ("here", "there")
    jobs = [Job(a, lambda a=a, b=b: run(a, b)) for a, b in (names, names[::-1])]
    monkeypatch.setattr(warm_up, "jobs", lambda _config, **_dtypes: jobs)
    assert warm_up.main(["best"]) == 0


def test_what_cannot_be_compiled_is_told(two_jobs, monkeypatch):
    def fail():
        raise ZeroDivisionError("no such kernel")

    jobs = [Job("right", int), Job("wrong", fail)]
    monkeypatch.setattr(warm_up, "jobs", lambda _config, **_dtypes: jobs)
    with pytest.raises(ZeroDivisionError, match="no such kernel"):
        warm_up.main(["best"])


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
