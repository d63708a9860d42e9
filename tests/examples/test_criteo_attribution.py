"""attribution.py: effects by table, a config for each table, and their rank correlation."""

import sys
from pathlib import Path
from subprocess import CompletedProcess

import attribution
import pytest

from tests.commands import run as run_command
from trec_qcomm.config import read_config
from trec_qcomm.lab import records
from trec_qcomm.lab.records import SeedTraining, StudyRecord

PROGRAM = Path(__file__).parents[2] / "examples" / "criteo" / "attribution.py"
CONFIG = """
embedding:
  - tables: ["t_C1", "t_C7"]
    forward: {codec: rowwise, bits: 2}
    backward: {codec: identity}
  - tables: ["*"]
    forward: {codec: identity}
    backward: {codec: identity}
"""
SMALL = [
    *("--rows", "256", "--batch-size", "32", "--embedding-dim", "4", "--ranks", "2"),
    *(
        "--dense-arch",
        "4",
        "--over-arch",
        "1",
        "--init-scale",
        "1",
        "--seeds",
        "1",
        "--batches",
        "1",
    ),
]


def run(folder: Path, *more: str) -> CompletedProcess[str]:
    (folder / "coded.yaml").write_text(CONFIG)
    command = [sys.executable, str(PROGRAM), "--config", str(folder / "coded.yaml"), *SMALL]
    command += ["--out", str(folder / "out"), *more]
    return run_command(command, capture_output=True, text=True)


def test_coded_tables_are_attributed_once_and_compared(tmp_path: Path) -> None:
    path = tmp_path / "out" / "attribution.jsonl"
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    cases = [(r.case["trained"], r.case["table"]) for r in records.read(path)]
    assert sorted(cases) == [(t, n) for t in ("coded", "float32") for n in ("t_C1", "t_C7")]
    assert all(r.figures["added_loss"] != 0 for r in records.read(path))

    truth = tmp_path / "truth.jsonl"
    for name, ne in (("fp32", 1.0), ("t_C1", 1.01), ("t_C7", 1.02)):
        training = SeedTraining(
            steps=1, progressive_logloss=1.0, metrics={"ne": ne}, metrics_exact={"ne": ne}
        )
        records.append(truth, StudyRecord(configuration=name, num_ranks=2, training=training))
    again = run(tmp_path, "--truth", str(truth))
    assert again.returncode == 0, again.stderr
    assert len(list(records.read(path))) == len(cases)  # nothing was run again
    assert "| +1.000 |" in again.stdout
    assert "| +2.000 |" in again.stdout
    assert "Rank correlation with the trainings, coded:" in again.stdout

    other = run(tmp_path, "--batches", "2")
    assert other.returncode == 2
    assert "of another setup or config" in other.stderr


def test_a_table_is_coded_alone(tmp_path: Path) -> None:
    (tmp_path / "coded.yaml").write_text(CONFIG)
    config = read_config(tmp_path / "coded.yaml")
    attribution.write_tables(config, tmp_path / "tables")
    assert sorted(p.stem for p in (tmp_path / "tables").iterdir()) == ["t_C1", "t_C7"]
    alone = read_config(tmp_path / "tables" / "t_C7.yaml")
    assert attribution.coded_tables(alone) == ["t_C7"]
    assert alone.rule_for("t_C7").forward == config.rule_for("t_C7").forward
    with pytest.raises(ValueError, match="all forward codecs are exact"):
        attribution.write_tables(read_config("fp32"), tmp_path)


def test_rank_correlation_is_of_the_order() -> None:
    rising = {f"t_C{i}": float(i**3) for i in range(1, 11)}
    falling = {table: -value for table, value in rising.items()} | {"t_C26": 0.0}
    swapped = dict(rising, t_C1=8.0, t_C2=1.0)
    assert attribution.rank_correlation(rising, falling)[0] == pytest.approx(-1)
    rho, low, high = attribution.rank_correlation(rising, swapped)
    assert rho == pytest.approx(1 - 6 * 2 / (10 * 99))
    assert low < rho < high < 1
