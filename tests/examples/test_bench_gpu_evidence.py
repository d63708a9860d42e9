"""gpu_evidence without a GPU: parts, records and limits, and the stress on two ranks of gloo."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from examples.bench.gpu_evidence import __main__ as gpu_evidence
from examples.bench.gpu_evidence import collectives, ranks
from examples.bench.gpu_evidence.__main__ import Part
from trec_qcomm.lab import records
from trec_qcomm.lab.records import Environment
from trec_qcomm.testing import run_ranks

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="is about other machines")
CPU = torch.device("cpu")


@without_gpu
def test_each_part_says_that_there_is_no_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu_evidence.main(["--out", str(tmp_path)]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert all(line.endswith(": not run, no CUDA device") for line in lines)
    assert last.startswith(f"gpu-evidence: 0 passed, 0 failed, 0 stopped, {len(lines)} not run; ")
    written = records.read(tmp_path / "records.jsonl")
    assert [record.configuration for record in written] == [line.split(":")[0] for line in lines]
    assert {record.figures["reason"] for record in written} == {"no CUDA device"}


def test_a_dry_run_prints_the_commands_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, nccl = tmp_path / "out", tmp_path / "libnccl.so.2"
    nccl.touch()
    assert gpu_evidence.main(["--out", str(out), "--nccl", str(nccl), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"LD_PRELOAD={nccl} {sys.executable} -m torch.distributed.run" in said
    assert "compute-sanitizer --tool racecheck" in said
    assert not out.exists()
    assert gpu_evidence.main(["--out", str(out), "--list"]) == 0
    assert all("not run" in line for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "tabel"], "--only: tabel: --list has the names"),
        (["--nccl", "missing.so"], "--nccl: missing.so is no file"),
    ],
)
def test_mistakes_are_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu_evidence.main(words)
    assert message in capsys.readouterr().err


def test_all_parts_fit_half_an_hour(tmp_path: Path) -> None:
    parts = gpu_evidence.all_parts(tmp_path, nccl=None, workers=1, steps=1)
    assert sum(part.budget_s for part in parts) <= 27 * 60  # a machine takes minutes to start
    assert max(part.budget_s for part in parts) <= 9 * 60
    assert {part.name: part.needs for part in parts if part.needs} == dict.fromkeys(
        ("stress", "trace"), "--nccl: a libnccl.so.2 of 2.30.3 or newer"
    )


@pytest.fixture
def small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the parts by some of every end, on a machine that seems to have a GPU.

    Return the file to which each part writes its name when it runs.
    """
    ran = tmp_path / "ran"

    def part(name: str, then: str, **options: object) -> Part:
        code = f"open({str(ran)!r}, 'a').write({name + ' '!r}); {then}"
        command = (sys.executable, "-c", code)
        fields = {"budget_s": 30, "command": command, **options}
        return Part(name=name, about="", **fields)

    parts = [
        part("good", "print('all is well')"),
        part("bad", "raise SystemExit(3)"),
        part("slow", "import time; time.sleep(60)", budget_s=1),
        part("no tool", "", command=("no-such-tool",), modules={"no_such_module": "no-such"}),
    ]
    monkeypatch.setattr(gpu_evidence, "all_parts", lambda *_, **options: parts)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    there = Environment(hardware={"gpu": "a GPU"})
    monkeypatch.setattr(gpu_evidence, "device_environment", lambda *_: there)
    return ran


def test_finished_parts_are_not_run_again(
    small_parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--out", str(tmp_path), "--commit", "one"]
    assert gpu_evidence.main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    log = tmp_path / "log.txt"
    assert lines[:4] == [
        "good: passed",
        f"bad: failed, exit status 3, see {log}",
        "slow: stopped, after 1 s, its budget",
        "no tool: not run, missing: no-such-tool, the Python package no-such",
    ]
    assert lines[4].startswith("gpu-evidence: 1 passed, 1 failed, 1 stopped, 1 not run; ")
    assert "all is well" in log.read_text()
    assert small_parts.read_text() == "good bad slow "

    gpu_evidence.main([*words, "--minutes", "0"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "good: passed before",
        "bad: failed before",
        "slow: not run, 0 s left of 1",
    ]
    assert small_parts.read_text() == "good bad slow "

    assert gpu_evidence.main([*words, "--only", "good"]) == 0
    gpu_evidence.main([*words[:-1], "two", "--only", "bad"])
    assert small_parts.read_text() == "good bad slow good bad "
    capsys.readouterr()
    gpu_evidence.main([*words[:-1], "two", "--list"])
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["bad", "30", "s", "failed"]


def stressed(options: Namespace) -> tuple[dict[str, dict], dict[str, dict]]:
    """Return the lines of a stress, and of one in which a value of rows and gradients differs."""
    collectives.ROW_CODECS = {n: collectives.ROW_CODECS[n] for n in ("identity", "int8")}
    collectives.SUMMED = ("int8",)
    lines = dict(ranks.stress(options, CPU))
    for kind in (collectives.Rows, collectives.Dense):
        finish = kind.finish

        def damaged(self, finish=finish):
            results = finish(self)
            (results[0] if isinstance(results, tuple) else results).view(-1)[-1:].add_(1)
            return results

        kind.finish = damaged
    return lines, dict(ranks.stress(options, CPU))


@pytest.mark.dist
def test_a_stress_of_two_ranks_compares_all_collectives() -> None:
    options = Namespace(seed=0, steps=6, seconds=0, chunk=64)
    lines, damaged = run_ranks(stressed, 2, options)[0]
    assert len(lines) == 3 + 3 + 2  # rows, gradients, offsets
    assert all(line["right"] and not line["wrong"] for line in lines.values())
    # One column of a rank may be empty, but not of all batches.
    assert all(line["wrong"] for line in list(damaged.values())[:6])


def test_covered_time_is_that_of_the_union() -> None:
    assert ranks.covered([(0, 4), (1, 2), (3, 6), (8, 9)]) == 7
