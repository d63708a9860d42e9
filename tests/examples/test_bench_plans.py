"""The planning bench runs without a GPU, says what it is, and its figures hang together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import run as run_command
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord

ROOT = Path(__file__).parents[2]


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return run_command(
        [sys.executable, "-m", "examples.bench.plans", *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_small_cluster_is_planned(tmp_path: Path) -> None:
    file = tmp_path / "plans.jsonl"
    done = run("--gpus", 16, "--max-tables", 4, "--out", file)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| 16 |")]
    assert [row.split(" | ")[1] for row in rows] == ["fp32", "int8", "int4", "16x"]
    assert done.stdout.splitlines()[-1].startswith("done: predictions of TorchRec ")
    assert done.stdout.splitlines()[-1].endswith("not measurements")
    made = [record for record in records.read(file) if isinstance(record, BenchRecord)]
    steps = [record.figures["predicted_step_ms"] for record in made]
    assert [record.configuration for record in made] == ["fp32", "int8", "int4", "16x"]
    assert steps == sorted(steps, reverse=True)
    for record in made:
        assert record.setup["kind"] == "prediction of TorchRec's performance model"
        assert sum(n for k, n in record.case.items() if k != "num_gpus") == 4
        assert 0 < record.figures["comms_share"] < 1
    kept = [record.figures["predicted_step_ms_with_the_plan_of_fp32"] for record in made]
    assert kept[0] == pytest.approx(steps[0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--gpus", 12), "gpus 12: not a multiple of 8"),
        (("--batch-size", 0), "batch_size 0: must be positive"),
        (("--encode-gb-s", -1), "throughput.encode_gb_s: -1.0 is not a number > 0"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[object, ...], message: str) -> None:
    done = run(*words)
    assert done.returncode != 0
    assert message in done.stderr
