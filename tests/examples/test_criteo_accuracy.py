"""accuracy.py: its trainings are those of train.py, its seeds pair them, its runs resume."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from data.dataset import FEATURES
from options import build_parser
from studies import accuracy, emulation
from train import batches_of, build_trainer, load_dataset
from trainer import Trainer

from tests.commands import run as run_command
from trec_qcomm import load_preset, quality
from trec_qcomm.lab import records
from trec_qcomm.testing import run_ranks

ROOT = Path(__file__).parents[2]

SMALL = [
    *("--rows", "2048", "--batch-size", "32", "--embedding-dim", "4"),
    *("--dense-arch", "8", "--over-arch", "8"),
]
RANKS = ["--ranks", "2"]
CODED = """
embedding:
  - tables: ["t_C1?"]
    forward: {codec: error_bounded, bound: 0.05, mode: rel, encoder: bitpack}
    backward: {codec: rowwise, bits: 4}
    unique_bags: true
    schedule: {kind: linear, start: 4, end_step: 5}
  - tables: ["t_C2?"]
    forward: {codec: error_bounded, bound: 0.05, mode: rel, encoder: bitpack}
    backward: {codec: rowwise, bits: 4}
    classes: {every: 3, tight: 0.001, base: 0.05, loose: 0.2, tight_below: 0.5, loose_from: 0.9}
  - tables: ["t_C3", "t_C4"]
    forward: {codec: topk, threshold: 0.5}
    backward: {codec: forward_mask}
    refresh: {every: 2, density: 0.25}
  - tables: ["*"]
    forward: {codec: rowwise, bits: 4}
    backward: {codec: rowwise, bits: 2}
dense:
  codec: {codec: rowwise, bits: 4}
  algorithm: ring
  block: 16
  min_numel: 20
  error_feedback: true
"""


def write_config(folder: Path, name: str = "coded", text: str = CODED) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def study_of(config: Path, *options: str, modes=accuracy.MODES, seeds: int = 1) -> quality.Study:
    arguments = argparse.Namespace(
        configs=[str(config)], seeds=seeds, stop_early=False, modes=modes
    )
    return quality.plan(**accuracy.study_arguments(arguments, [*SMALL, *RANKS, *options]))


# The trainings.

# A power of two: lr * gradient is exact, so it does not matter whether FBGEMM fuses the multiply
# and the add. Row-wise Adagrad sums the squares of a row in an order of the kernel's own.
EXACT = ["--embedding-optimizer", "sgd", "--lr", "0.125"]
NUM_STEPS = 8


def train_on_ranks(config: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return losses and this rank's tables after some steps of train.py."""
    options = build_parser().parse_args(["--config", config, "--min-count", "1", *SMALL, *EXACT])
    dataset = load_dataset(options)
    trainer = build_trainer(options, dataset.num_embeddings)
    batches = batches_of(dataset, options)
    for _ in range(NUM_STEPS):
        trainer.train_step(batches)
    return trainer.losses, tables_of(trainer)


def tables_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    tables = {}
    for name, value in trainer.dmp.state_dict().items():
        if ".embedding_bags." in name:
            (feature,) = (f for f in FEATURES if f".t_{f}." in name)
            for shard in value.local_shards():
                tables[feature] = shard.tensor.clone()
    return tables


@pytest.mark.dist
@pytest.mark.slow
def test_training_equals_that_of_two_ranks(tmp_path):
    coded = write_config(tmp_path)
    ranks = run_ranks(train_on_ranks, 2, str(coded), timeout_s=240)
    study = study_of(coded, *EXACT, "--steps", str(NUM_STEPS))
    model = study.train(study.config("coded"), 0, 0.0)
    expected = [sum(pair) / 2 for pair in zip(*(losses for losses, _ in ranks), strict=True)]
    assert len(expected) == NUM_STEPS
    assert model.losses == expected
    for trainer, (_, tables) in zip(model.trainers, ranks, strict=True):
        held = tables_of(trainer)
        assert held.keys() == tables.keys()
        assert all(torch.equal(held[feature], table) for feature, table in tables.items())


def test_a_seed_gives_paired_runs(tmp_path):
    study = study_of(write_config(tmp_path), "--steps", "12")
    missing = study.missing([])[0]
    first = {r.configuration: r for r in study.run_seed(4, missing)}
    assert list(first) == ["fp32", "null", "coded"]
    losses = {r.training.metrics["logloss"] for r in first.values()}
    assert len(losses) == 3
    fp32, coded = first["fp32"].training, first["coded"].evaluation
    assert fp32.metrics.pop("progressive_logloss") > 0
    assert fp32.metrics == fp32.metrics_exact == coded.metrics_exact
    assert coded.metrics != fp32.metrics
    again = {r.configuration: r for r in study.run_seed(4, missing)}
    assert again["fp32"].training.metrics.pop("progressive_logloss") > 0
    for name, record in first.items():
        fields = ("training", "evaluation", "config", "setup", "num_ranks", "seed")
        assert all(getattr(record, f) == getattr(again[name], f) for f in fields), name


def test_eval_only_trains_fp32_and_null_alone(tmp_path):
    study = study_of(write_config(tmp_path), "--steps", "2", modes=("eval-only",))
    made = list(study.run_seed(0, study.missing([])[0]))
    assert [(r.training is not None, r.evaluation is not None) for r in made] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    both = study_of(write_config(tmp_path), "--steps", "2")
    assert both.missing(made) == {0: {"coded": {"training"}}}


@pytest.mark.slow
def test_command_resumes_where_it_stopped(tmp_path):
    config, out = write_config(tmp_path), tmp_path / "out"
    command = [
        *(sys.executable, accuracy.__file__, "--configs", str(config), *RANKS),
        *("--seeds", "2", "--jobs", "2", "--steps", "2", "--out", str(out), *SMALL),
    ]

    def run(*more: str) -> subprocess.CompletedProcess:
        return run_command([*command, *more], capture_output=True, text=True)

    done = run()
    assert done.returncode == 0, done.stderr
    runs = out / "runs.jsonl"
    lines = runs.read_text().splitlines()
    assert len(lines) == 6
    table = (out / "table.md").read_text()
    assert "| null | 2 |" in table
    assert "| coded | 2 |" in table
    assert table in done.stdout

    cut = next(k for k, line in enumerate(lines) if '"configuration": "coded"' in line)
    before = records.read(runs)[cut]
    kept = "".join(line + "\n" for k, line in enumerate(lines) if k != cut)
    runs.write_text(kept + lines[cut][:100])  # a lost machine leaves it so
    refused = run()
    assert refused.returncode == 2
    assert "runs.jsonl, line 6: " in refused.stderr
    runs.write_text(kept)
    assert run().returncode == 0
    again = records.read(runs)
    assert len(again) == 6
    assert again[-1].training == before.training
    assert again[-1].evaluation == before.evaluation
    assert (again[-1].configuration, again[-1].seed) == (before.configuration, before.seed)
    assert (out / "table.md").read_text() == table

    other = run("--lr", "0.5")
    assert other.returncode == 2
    assert "runs with other lr; give another path" in other.stderr


def test_bad_options_are_named(tmp_path):
    config = write_config(tmp_path)
    with pytest.raises(ValueError, match="pipeline: an option that accuracy"):
        study_of(config, "--pipeline", "sparse_dist")
    with pytest.raises(ValueError, match="plan 'none': "):
        study_of(config, "--plan", "none")
    with pytest.raises(ValueError, match="configs: fp32 is run anyway"):
        study_of(ROOT / "configs" / "fp32.yaml")
    with pytest.raises(ValueError, match="'t_X' matches no table"):
        study_of(write_config(tmp_path, "x", CODED.replace("t_C1?", "t_X")))


def test_plans_are_played_and_are_part_of_the_setup():
    plans = {
        "table_wise": (),
        "row_wise": ("--plan", "row_wise"),
        "two_level": ("--plan", "two_level", "--ranks-per-node", "2"),
    }
    losses, setups = {}, {}
    for name, words in plans.items():
        trainer = emulation.EmulatedTrainer.from_words([*SMALL, *words, "--steps", "3"])
        model = trainer(load_preset("fp32"), 0, 0.0)
        losses[name] = model.losses
        setups[name] = trainer.setup
    assert losses["row_wise"] == losses["two_level"] == losses["table_wise"]
    assert "plan" not in setups["table_wise"]
    assert setups["row_wise"] == setups["table_wise"] | {"plan": "row_wise"}
    two_level = {"plan": "two_level", "ranks_per_node": 2}
    assert setups["two_level"] == setups["table_wise"] | two_level


def test_rows_of_other_options_are_loaded_anew():
    datasets = [
        emulation.loaded(emulation.EmulatedTrainer.from_words(["--rows", rows]).options)
        for rows in ("256", "512", "256")
    ]
    assert [len(dataset.rows) for dataset in datasets] == [256, 512, 256]
