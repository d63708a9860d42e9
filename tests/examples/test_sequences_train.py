"""The sequence example on two ranks: equal bits with and without the plugin, records, resuming."""

import argparse
import os
import re
import sys
from pathlib import Path

import pytest

from examples.sequences import accuracy
from examples.sequences.options import build_parser, check_options, load_sequences
from examples.sequences.trainer import Trainer
from tests.commands import run as run_command
from tests.rank_programs import results_of, run_programs
from trec_qcomm import QComm, load_preset
from trec_qcomm.config import preset_path
from trec_qcomm.lab import records

ROOT = Path(__file__).parents[2]
SMALL = [
    *("--users", "40", "--items", "100", "--batch-size", "8", "--length", "10"),
    *("--dim", "8", "--blocks", "1", "--seed", "2"),
]


def options_of(*words: object) -> argparse.Namespace:
    options = build_parser().parse_args([*SMALL, *map(str, words)])
    check_options(options)
    return options


def train(words: tuple[object, ...]) -> tuple[list[float], dict[str, float]]:
    """Return the losses of this rank, and the metrics."""
    options = options_of(*words)
    config = None if options.config == "stock" else QComm.from_yaml(options.config)
    trainer = Trainer.build(options, load_sequences(options), config)
    if options.resume:
        trainer.resume(options.checkpoint_dir)
    trainer.train()
    lookups = [] if trainer._pipeline is None else trainer._pipeline._pipelined_modules
    assert len(lookups) == (options.pipeline == "sparse_dist")
    return trainer.losses, trainer.score()


PLANS = ("row_wise", "column_wise", "table_wise")


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    words = {
        (plan, c): ("--config", c, "--plan", plan) for plan in PLANS for c in ("stock", "fp32")
    }
    kept = ("--config", "int4", "--checkpoint-dir", folder)
    programs = {name: (*given, "--steps", 5) for name, given in words.items()}
    programs |= {
        "straight": ("--config", "int4", "--steps", 5),
        "pipelined": ("--config", "int4", "--steps", 5, "--pipeline", "sparse_dist"),
        "first part": (*kept, "--steps", 3),
        "resumed": (*kept, "--steps", 5, "--resume"),
        "another": (*kept, "--steps", 5, "--resume", "--lr", "0.2"),
    }
    return run_programs(train, 2, programs)


@pytest.mark.dist
@pytest.mark.parametrize("plan", PLANS)
def test_identity_codecs_give_the_bits_of_torchrec(trainings, plan):
    stock, fp32 = (results_of(trainings[plan, config]) for config in ("stock", "fp32"))
    assert stock == fp32
    (losses, metrics), (others, same) = stock
    assert len(losses) == 5
    assert losses != others
    assert metrics == same
    assert metrics["num_users"] == 40
    first = [rank_losses[0] for rank_losses, _ in results_of(trainings["row_wise", "stock"])]
    assert [losses[0], others[0]] == first  # initial weights do not depend on the plan


@pytest.mark.dist
def test_a_resumed_training_repeats_the_losses(trainings):
    ranks = (results_of(trainings[name]) for name in ("straight", "first part", "resumed"))
    for straight, first, resumed in zip(*ranks, strict=True):
        assert first[0] + resumed[0] == straight[0]
        assert resumed[1] == straight[1]
    assert "of {'data': 'synthetic'" in trainings["another"].reason


@pytest.mark.dist
def test_a_pipelined_training_has_the_losses_of_one_by_hand(trainings):
    assert results_of(trainings["pipelined"]) == results_of(trainings["straight"])


@pytest.mark.dist
def test_a_run_writes_a_record_and_says_so_last(tmp_path):
    words = ("--config", "unique_int4", "--epochs", "1", "--out", str(tmp_path))
    command = [sys.executable, "-m", "examples.sequences.train", *SMALL, *words]
    done = run_command(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (record,) = records.read(tmp_path / "unique_int4-row_wise-seed2.jsonl")
    assert (record.steps, record.num_ranks, record.seed) == (2, 2, 2)
    assert len(record.losses) == 2
    assert record.progressive_logloss == sum(record.losses) / 2
    assert record.metrics.keys() == record.metrics_exact.keys()
    assert record.metrics["loss"] != record.metrics_exact["loss"]
    sent = record.traffic["embedding_forward"]
    assert 0 < sent.wire_nbytes < sent.distinct_nbytes < sent.raw_nbytes
    assert record.setup["data"] == "synthetic"
    ndcg = f"{record.metrics['ndcg_10']:.4f}"
    distinct, *_, last = done.stdout.splitlines()
    assert re.fullmatch(r"  distinct ids         \d+ of \d+ a step", distinct)
    assert last.startswith(f"unique_int4: ndcg_10 {ndcg} (popularity 0.")
    assert last.endswith(f"of 40 users after 2 steps; {tmp_path}/unique_int4-row_wise-seed2.jsonl")


def test_a_study_s_training_is_that_of_the_ranks(trainings, monkeypatch):
    monkeypatch.setattr(accuracy, "EVERY", 2)
    study = accuracy.EmulatedTrainer.from_words([*SMALL[:-2], "--steps", "5"])
    metrics = study(load_preset("int4"), 2, 0.0)
    ranks = results_of(trainings["straight"])
    losses = [sum(step) / 2 for step in zip(*(losses for losses, _ in ranks), strict=True)]
    means = {f"loss_at_{end}": sum(losses[end - 2 : end]) / 2 for end in (2, 4)}
    assert metrics == ranks[0][1] | means | {"progressive_loss": sum(losses) / 5}
    moved = study(load_preset("fp32"), 2, 1e-6)["loss"] / study(load_preset("fp32"), 2, 0)["loss"]
    assert 0 < abs(moved - 1) < 1e-3
    with pytest.raises(ValueError, match=r"seed: an option that accuracy\.py does not have"):
        accuracy.EmulatedTrainer.from_words(["--seed", "1"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--config bset", "config bset: neither a file nor one of stock, stock_fp16, stock_int8"),
        ("--config stock --heads 3", "heads 3: does not divide dim 8"),
        ("--config stock --steps 0", "steps 0: must be positive"),
        ("--config stock --resume", "resume needs checkpoint_dir"),
        ("--config stock --resume --checkpoint-dir absent", "absent: no checkpoint to resume from"),
        ("--config mixed_tables", "matches no table"),
    ],
)
def test_what_makes_no_sense_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        options_of(*words.split())


def test_a_folder_of_another_training_is_refused(tmp_path):
    whole = tmp_path / "step_000000003"
    whole.mkdir()
    words = ("--config", "stock", "--checkpoint-dir", tmp_path)
    assert options_of(*words).checkpoint_dir == tmp_path  # a save that did not come to its end
    (whole / ".metadata").touch()
    with pytest.raises(ValueError, match="a training is here; --resume it"):
        options_of(*words)


def test_too_few_users_are_refused():
    with pytest.raises(ValueError, match="batch_size: 40 users are less than one of 2 x 21"):
        load_sequences(options_of("--config", preset_path("int8"), "--batch-size", 21))
