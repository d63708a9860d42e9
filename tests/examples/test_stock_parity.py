"""The Criteo example trains bit for bit alike with our identity codec and with stock TorchRec."""

from pathlib import Path

import pytest
import torch
from options import build_parser
from stock import FIRST_STEP, POWERSGD
from train import batches_of, build_trainer, load_dataset

from tests.integration.small_model import same_weights, weights
from trec_qcomm.testing import run_ranks

ROOT = Path(__file__).parents[2]
NUM_STEPS = 8
OPTIONS = ["--plan", "mixed", "--rows", "8192", "--batch-size", "32"]


def train_steps(config: str, num_steps: int = NUM_STEPS):
    """Return losses and this rank's weights after some steps: TW, CW and DP tables in one plan."""
    options = build_parser().parse_args(["--config", config, *OPTIONS])
    dataset = load_dataset(options)
    trainer = build_trainer(options, dataset.num_embeddings)
    before = weights(trainer.dmp)
    batches = batches_of(dataset, options)
    for _ in range(num_steps):
        trainer.train_step(batches)
    (module_plan,) = trainer.dmp.plan.plan.values()
    kinds = {how.sharding_type for how in module_plan.values()}
    return trainer.losses, before, weights(trainer.dmp), kinds


def both():
    return (
        train_steps("stock"),
        train_steps(str(ROOT / "configs" / "fp32.yaml")),
        train_steps(POWERSGD, FIRST_STEP + 3),
    )


@pytest.mark.dist
@pytest.mark.slow
def test_losses_and_weights_are_bit_identical():
    results = run_ranks(both, 2, timeout_s=240)
    for stock, ours, _ in results:
        assert stock[3] == ours[3] == {"table_wise", "column_wise", "data_parallel"}
        assert len(stock[0]) == NUM_STEPS
        assert ours[0] == stock[0]
        assert same_weights(ours[1], stock[1])
        assert same_weights(ours[2], stock[2])
        tables = [name for name in ours[2] if ".embedding_bags." in name]
        assert len(tables) == 26
        for name in tables:
            for a, b in zip(ours[1][name], ours[2][name], strict=True):
                assert not torch.equal(a, b), name
    dense = []
    for stock, _, powersgd in results:
        first = FIRST_STEP + 1  # losses before the first update that is compressed
        assert powersgd[0][:first] == stock[0][:first]
        assert all(a != b for a, b in zip(powersgd[0][first:], stock[0][first:], strict=False))
        dense.append({n: w for n, w in powersgd[2].items() if ".embedding_bags." not in n})
    assert all(same_weights(weights, dense[0]) for weights in dense)
