"""train.py --tensorboard: what it writes is read back by TensorBoard's own reader."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from options import build_parser, check_options
from report.scalars import Scalars, check_installed

from tests.commands import run
from trec_qcomm.lab import records
from trec_qcomm.lab.records import Percentiles, ProgressRecord, TrainingRecord

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "examples" / "criteo" / "train.py"
SMALL = ["--rows", "6000", "--batch-size", "64", "--dense-arch", "32", "--over-arch", "32"]

Points = dict[str, dict[int, float]]


def read(folder: Path) -> Points:
    """Return {tag: {step: value}} as TensorBoard shows it; no step may be there twice."""
    module = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed",
    )
    events = module.EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    points = {}
    for tag in events.Tags()["scalars"]:
        points[tag] = {event.step: event.value for event in events.Scalars(tag)}
        assert len(points[tag]) == len(events.Scalars(tag)), tag
    return points


def stats(raw: int, wire: int, *, error: float | None = None) -> dict[str, Any]:
    """Return the counters of one kind of traffic with one table."""
    counters = {"raw_nbytes": raw, "wire_nbytes": wire}
    return {**counters, "tables": {"t": counters | {"max_abs_err": error}}}


def test_counters_become_rates(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    scalars = Scalars(tmp_path, first_step=0)
    bags = {"bags": {"tables": {"t": {"num_bags": 10, "num_sent": 4}}}}
    more = {"bags": {"tables": {"t": {"num_bags": 30, "num_sent": 5}}}}
    step_s = Percentiles(p20=0.006, p50=0.007, p80=0.008)
    forward, traffic = stats(80, 20, error=0.25), {"dense": stats(0, 0)}
    scalars.add_progress(
        2, 0.5, step_s, traffic | {"forward": forward, "input": stats(8, 8) | bags}
    )
    scalars.add_progress(
        6, 0.25, step_s, traffic | {"forward": stats(100, 30), "input": stats(24, 16) | more}
    )
    scalars.add_metrics(7, {"on": {"auc": 0.75, "num_rows": 9}})
    scalars.close()
    assert read(tmp_path) == {
        "train/loss": {2: 0.5, 6: 0.25},
        "train/step_ms": {2: 7.0, 6: 7.0},
        "sent_nbytes/forward": {2: 10.0, 6: 2.5},
        "ratio/forward": {2: 4.0, 6: 2.0},
        "table_ratio/forward/t": {2: 4.0, 6: 2.0},
        "max_abs_err/forward/t": {2: 0.25},
        "sent_nbytes/input": {2: 4.0, 6: 2.0},
        "ratio/input": {2: 1.0, 6: 2.0},
        "table_ratio/input/t": {2: 1.0, 6: 2.0},
        "bags_sent/t": {2: pytest.approx(0.4), 6: pytest.approx(0.05)},
        "test_on/auc": {7: 0.75},
    }


def test_a_resumed_run_takes_the_place_of_later_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    for first, steps, loss in ((0, (2, 4, 6), 1.0), (4, (6, 8), 2.0)):
        scalars = Scalars(tmp_path, first_step=first)
        for step in steps:
            scalars.add_progress(step, loss, None, None)
        scalars.close()
    assert read(tmp_path)["train/loss"] == {2: 1.0, 4: 1.0, 6: 2.0, 8: 2.0}


def train(out: Path, *words: object) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    given = ["--config", ROOT / "configs" / "unique_int4.yaml", "--name", "run", "--out", out]
    given += ["--tensorboard", out / "events", "--log-every", 2, "--checkpoint-dir", out / "ckpt"]
    done = run(
        [sys.executable, str(TRAIN), *map(str, given), *map(str, words), *SMALL],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.dist
@pytest.mark.slow
def test_a_training_and_its_resumption_are_one_curve(tmp_path: Path) -> None:
    """After a crash the checkpoint may be older than what was last written."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    train(tmp_path, "--steps", 6, "--checkpoint-every", 4)
    first = read(tmp_path / "events" / "run")
    shutil.rmtree(tmp_path / "ckpt" / "step_000000006")
    train(tmp_path, "--steps", 8, "--resume")
    both = read(tmp_path / "events" / "run")
    assert list(first["train/loss"]) == [2, 4, 6]
    for tag in (
        "train/loss",
        "train/step_ms",
        "sent_nbytes/embedding_forward",
        "bags_sent/t_C2",
    ):
        assert list(both[tag]) == [2, 4, 6, 8], tag
    assert both["train/loss"][4] == first["train/loss"][4]
    assert both["train/loss"][6] == first["train/loss"][6]  # trained again, bit for bit
    written = records.read(tmp_path / "run.jsonl")
    resumed = [r for r in written if isinstance(r, ProgressRecord)][-2:]
    assert [r.step for r in resumed] == [6, 8]
    assert both["train/loss"][8] == pytest.approx(resumed[1].loss, rel=1e-6)
    sent = [r.traffic["embedding_backward"].wire_nbytes for r in resumed if r.traffic]
    measured = both["sent_nbytes/embedding_backward"]
    assert [measured[6], measured[8]] == pytest.approx([sent[0] / 2, (sent[1] - sent[0]) / 2])
    assert all(0 < value < 1 for value in both["bags_sent/t_C2"].values())
    assert both["ratio/embedding_forward"][8] > 4
    last = written[-1]
    assert isinstance(last, TrainingRecord)
    assert both["test_on/auc"] == {8: pytest.approx(last.metrics["auc"], rel=1e-6)}


def test_without_the_package_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    options = build_parser().parse_args(["--config", "stock", "--tensorboard"])
    assert options.tensorboard == Path("runs/tensorboard")
    with pytest.raises(ValueError, match=r"tensorboard: cannot be imported .*pip install tensorbo"):
        check_options(options)
    check_options(build_parser().parse_args(["--config", "stock"]))


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ["--config", "stock", "--tensorboard", str(tmp_path / "file")]
    with pytest.raises(ValueError, match="file: is a file; expected a folder"):
        check_options(build_parser().parse_args(words))


def test_what_is_installed_is_found() -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    check_installed()
