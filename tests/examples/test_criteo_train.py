"""train.py and compare.py as a user runs them: two ranks, plain TorchRec and the plugin."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data.synthetic import generate
from model import mlperf_sizes
from options import build_parser, check_options, setup_of

from tests.commands import run as run_command
from tests.examples.test_criteo_folder import write_tsv
from trec_qcomm import load_config, load_preset
from trec_qcomm.lab import records
from trec_qcomm.lab.records import TrainingRecord

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "criteo"
INT4 = ROOT / "configs" / "int4.yaml"
SMALL = ["--rows", "6000", "--batch-size", "64", "--dense-arch", "32", "--over-arch", "32"]

pytestmark = pytest.mark.dist


def command(script: str, *words: object) -> list[str]:
    return [sys.executable, str(EXAMPLE / script), *map(str, words), *SMALL]


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def run(script: str, *words: object, execute: Any = run_command) -> str:
    """Return what a run prints; it must succeed."""
    done = execute(command(script, *words), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fail(out: Path, *words: object) -> list[str]:
    """Return what a run of train.py writes to stderr; it must fail, and say so in one line."""
    words = ("--out", out, *words)
    done = run_command(
        command("train.py", *words), env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line]
    assert [line.startswith("error: ") for line in lines] == [False] * (len(lines) - 1) + [True]
    return lines


def train(
    out: Path, *words: object, config: object = "stock", execute: Any = run_command
) -> TrainingRecord:
    """Train with plain TorchRec, or with the config given; return the record of the training."""
    words = ("--config", config, "--name", "run", "--out", out, *words)
    run("train.py", *words, execute=execute)
    return last_record(out)


def last_record(out: Path) -> Any:
    return records.read(out / "run.jsonl")[-1]


@pytest.fixture(scope="module")
def deltas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the rows that changed, of the training in one go and of the resumed one."""
    return tmp_path_factory.mktemp("deltas")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, deltas: Path) -> TrainingRecord:
    """Twenty steps in one go, in an interpreter and ranks of their own."""
    words = ("--steps", 20, "--log-every", 5, "--deltas", deltas / "straight", "--delta-every", 5)
    return train(tmp_path_factory.mktemp("straight"), *words, execute=subprocess.run)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory, deltas: Path) -> tuple[Path, TrainingRecord]:
    """Ten steps of the same training, and the folder of their checkpoint."""
    out = tmp_path_factory.mktemp("half")
    words = ("--deltas", deltas / "half", "--delta-every", 5)
    return out, train(out, "--steps", 10, "--checkpoint-dir", out, *words)


def test_a_run_records_what_it_did(straight: TrainingRecord) -> None:
    assert len(straight.losses) == straight.steps == 20
    assert straight.metrics["num_rows"] == 858  # a seventh of 6000, each row once
    assert 0 < straight.metrics["auc"] < 1
    assert straight.metrics_exact == {}
    assert straight.traffic is None
    assert straight.step_s is not None
    assert straight.step_s.p20 <= straight.step_s.p50 <= straight.step_s.p80
    assert (straight.configuration, straight.config, straight.seed) == ("stock", None, 0)
    assert straight.setup["dense_arch"] == "32"
    assert straight.environment is not None
    assert straight.environment.versions["torchrec"]


def test_a_resumed_run_repeats_the_losses_bit_for_bit(
    straight: TrainingRecord, half: tuple[Path, TrainingRecord], deltas: Path
) -> None:
    folder, first = half
    words = ("--pipeline", "sparse_dist", "--deltas", deltas / "half", "--delta-every", 5)
    second = train(folder, "--steps", 20, "--checkpoint-dir", folder, "--resume", *words)
    assert first.losses + second.losses == straight.losses
    assert second.setup["pipeline"] == "sparse_dist"
    assert second.metrics == straight.metrics
    whole, resumed = (
        {path.name: path.read_bytes() for path in (deltas / name).iterdir()}
        for name in ("straight", "half")
    )
    assert resumed == whole
    assert len(whole) == 4 * 2  # exports of two ranks


@pytest.mark.slow
def test_a_resumed_run_may_not_be_another_training(half: tuple[Path, TrainingRecord]) -> None:
    words = ("--config", "stock", "--checkpoint-dir", half[0])
    assert (
        "resumed with other options: seed 0 -> 1"
        in fail(half[0], *words, "--resume", "--seed", 1)[-1]
    )
    assert "a training is here" in fail(half[0], *words)[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "config", "optimizer"),
    [("two_level", INT4, "sgd"), ("planned", "stock", "adam"), ("mixed", "stock", "sgd")],
)
def test_plans_train_and_resume_exactly(
    tmp_path: Path, straight: TrainingRecord, plan: str, config: object, optimizer: str
) -> None:
    """Rows and two levels on two nodes of one rank each."""
    words = ("--plan", plan, "--ranks-per-node", 1, "--dense-optimizer", optimizer)
    checkpoints = (*words, "--checkpoint-dir", tmp_path)
    whole = train(tmp_path, "--steps", 20, *words, config=config)
    first = train(tmp_path, "--steps", 10, *checkpoints, config=config)
    second = train(tmp_path, "--steps", 20, *checkpoints, "--resume", config=config)
    if config == "stock":
        error = 0 if plan == "mixed" else 1e-6
        assert whole.losses[0] == pytest.approx(straight.losses[0], rel=error, abs=0)
    assert first.losses + second.losses == whole.losses
    assert sum(whole.shardings.values()) == 26
    if plan == "planned":
        again = ("--config", "stock", *checkpoints, "--resume")
        assert "with other options: plan " in fail(tmp_path, *again, "--plan", "mixed")[-1]
        assert "ranks_per_node 1 -> 2" in fail(tmp_path, *again, "--ranks-per-node", 2)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "group"])
def test_a_signal_leaves_a_checkpoint_to_resume_from(tmp_path: Path, number: int) -> None:
    """Ctrl-C, to train.py alone; SIGTERM to all its processes, as a scheduler sends it."""
    words = ("--checkpoint-dir", tmp_path, "--epochs", 1000, "--log-every", 5)
    words += ("--pipeline", "sparse_dist")  # which holds batches that are not trained yet
    process = subprocess.Popen(
        command("train.py", "--config", "stock", "--name", "run", "--out", tmp_path, *words),
        env=environment(),
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    records = tmp_path / "run.jsonl"
    while process.poll() is None and not (records.exists() and records.read_text()):
        time.sleep(0.1)
    send = os.kill if number == signal.SIGINT else os.killpg
    send(process.pid, number)
    assert process.wait(timeout=60) == 130
    stopped = last_record(tmp_path)  # it is there when train.py ends, not later
    process.communicate(timeout=60)
    assert stopped.is_interrupted
    if number == signal.SIGINT:
        assert list(tmp_path.glob(f"step_*{stopped.step}/digests.json"))
        return  # to resume from it is the same as after the other signal
    resumed = train(tmp_path, *words, "--resume", "--steps", stopped.step + 3)
    assert len(resumed.losses) == 3


@pytest.mark.slow
def test_a_file_is_scored_to_its_last_row(tmp_path: Path) -> None:
    """129 test rows over 2 ranks of 64: one rank has none of the last batch."""
    write_tsv(generate(903, seed=1), tmp_path / "rows.tsv.gz")
    record = train(tmp_path, "--data", tmp_path / "rows.tsv.gz", "--hash-buckets", 40)
    assert record.metrics["num_rows"] == 129


def test_errors_of_all_ranks_are_told_once_and_warnings_are_those_of_rank_0(tmp_path: Path) -> None:
    """A folder of two days: one with a header, one that was cut short."""
    days = [tmp_path / "data" / name for name in ("day_0", "day_1.gz")]
    days[0].parent.mkdir()
    for day in days:
        write_tsv(generate(200, seed=1), day)
    days[0].write_text("label,I1\n" + days[0].read_text())
    days[1].write_bytes(days[1].read_bytes()[:3000])
    *said, error = fail(tmp_path, "--config", "stock", "--data", days[0].parent)
    assert error.startswith(f"error: {days[1]}: cannot be read to its end: Compressed file ended")
    log = tmp_path / "errors.log"
    assert error.endswith(f"(traceback: {log})")
    assert "in read_file" in log.read_text()
    warning = f"{days[0]}: 1 of 201 lines malformed; line 1: 1 fields parted by tabs, expected 40"
    assert said.count(warning) == 1


@pytest.mark.slow
def test_compare_shows_configs_side_by_side(tmp_path: Path) -> None:
    configs = [ROOT / "configs" / name for name in ("fp32.yaml", "int8.yaml")]
    printed = run("compare.py", "--configs", "stock", *configs, "--out", tmp_path).splitlines()
    table = [line.split() for line in printed[:-1] if "->" in line or " - " in line]
    assert [line[0] for line in table] == ["stock", "fp32", "int8"]
    assert table[0][1:3] == table[1][1:3]  # fp32 is TorchRec to the last digit shown
    assert printed[-1].startswith("3 configs in ")
    assert "int8 sends" in printed[-1]
    check_tables(*(next(tmp_path.glob(f"*{name}.jsonl")) for name in ("int8", "fp32")))


def check_tables(int8: Path, fp32: Path) -> None:
    """Check rows that cross: of 64 bytes 16, and 4 of scale and low in fp16, are sent as int8."""
    for path, fewest, most in ((int8, 3.1, 3.3), (fp32, 1.0, 1.0)):
        record = records.read(path)[-1]
        assert isinstance(record, TrainingRecord)
        assert record.traffic is not None
        assert record.tables is not None
        assert len(record.tables) == 26
        for direction in ("forward", "backward"):
            sent = record.traffic[f"embedding_{direction}"]
            of_tables = [getattr(table, direction) for table in record.tables.values()]
            raw = sum(table.raw_nbytes for table in of_tables)
            wire = sum(table.wire_nbytes for table in of_tables)
            assert raw == pytest.approx(sent.raw_nbytes)
            assert 0.98 * sent.wire_nbytes < wire <= sent.wire_nbytes  # without headers
            assert (wire == sent.wire_nbytes) == (path == fp32)  # which has no frames
            assert fewest <= raw / wire <= most
        assert not any(table.tolerances for table in record.tables.values())
        assert all(table.num_sent == table.num_bags for table in record.tables.values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--config absent.yaml",
            "nor one of stock, stock_fp16, stock_int8, stock_powersgd, auto, best",
        ),
        ("--config stock_powersgd --checkpoint-dir a", "checkpoint_dir: stock_powersgd has state"),
        ("--config bset", "config bset: neither a file nor one of"),
        ("--config stock --hash-buckets 9 --min-count 2", "exclude one another"),
        ("--config stock --resume", "resume: needs checkpoint_dir"),
        ("--config stock --allow-changed-config", "allow_changed_config needs resume"),
        ("--config stock --steps 0", "steps 0: must be positive"),
        ("--config stock --plan rows", "plan 'rows': neither a file nor one of"),
        ("--config stock --data absent.tsv", "absent.tsv: no such file, or a directory without"),
        ("--config stock --ranks 4 --ranks-per-node 3", "ranks_per_node 3: 4 ranks do not fill"),
        ("--config stock --scale 1", "scale: only for --model dcn"),
        ("--config stock --model dcn --scale 2", r"scale 2\.0: expected a number above 0, at most"),
        ("--config stock --model dcn --scale 1 --over-arch 8", "over_arch: scale sets it; give"),
        ("--config stock --dump-rows .", r"dump_rows .*: is a folder; expected a file"),
    ],
)
def test_what_makes_no_sense_is_refused(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_options(build_parser().parse_args(words.split()))


def test_a_config_that_ships_goes_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in ("--config int8", f"--config {ROOT / 'configs' / 'int8.yaml'}"):
        options = build_parser().parse_args(words.split())
        check_options(options)
        assert load_config(options.config) == replace(load_preset("int8"), source=options.config)
        assert Path(options.config).stem == "int8"  # in the names of records
    (tmp_path / "int8").write_text("dense: {codec: float6}")
    assert build_parser().parse_args(["--config", "int8"]).config == "int8"  # a file comes first


def test_one_number_scales_mlperfs_sizes_and_records_have_them() -> None:
    sizes = {"embedding_dim": 128, "dense_arch": (512, 256), "over_arch": (1024, 1024, 512, 256)}
    assert mlperf_sizes(1.0) == sizes | {"cross_rank": 512}
    assert mlperf_sizes(1e-9)["over_arch"] == (4,) * 4
    words = "--config stock --model dcn --scale 0.125"
    scaled = setup_of(build_parser().parse_args(words.split()))
    assert (scaled["dense_arch"], scaled["embedding_dim"], scaled["scale"]) == ("64,32", 16, 0.125)
    plain = setup_of(build_parser().parse_args(["--config", "stock"]))
    assert {"model", "scale", "pipeline"}.isdisjoint(plain)  # older records lack them


def test_tensorboard_shows_a_training(tmp_path: Path, straight: TrainingRecord) -> None:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    words = ("--steps", 4, "--log-every", 2, "--tensorboard", tmp_path / "events")
    record = train(tmp_path, *words, config=ROOT / "configs" / "int8.yaml")
    events = module.EventAccumulator(str(tmp_path / "events" / "run")).Reload()
    points = {t: {e.step: e.value for e in events.Scalars(t)} for t in events.Tags()["scalars"]}
    assert list(points["train/loss"]) == list(points["train/step_ms"]) == [2, 4]
    sent = points["sent_nbytes/embedding_forward"]
    assert 0 < 2 * sent[2] == sent[4]
    assert points["ratio/embedding_forward"][4] > 2
    assert points["test_on/auc"] == {4: pytest.approx(record.metrics["auc"], rel=1e-6)}
