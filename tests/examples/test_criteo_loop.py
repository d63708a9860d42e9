"""The example's loop: pipelined losses, and those after a resume, are those of steps by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from data.dataset import Batches
from data.reader import BatchReader
from options import build_parser
from train import build_trainer, load_dataset
from trainer import Trainer

from trec_qcomm.testing import run_ranks

NUM_STEPS, SAVED = 7, 3
SMALL = "--config best --rows 2048 --batch-size 16 --dense-arch 8 --over-arch 8"
MODEL = "--model dcn --mixed-dims --cross-rank 8"  # dims of 8 to 16


class Training:
    """A small model of the example and its batches, on one rank. Args: words: options."""

    def __init__(self, *words: str) -> None:
        options = build_parser().parse_args([*SMALL.split(), *MODEL.split(), *words])
        dataset = load_dataset(options)
        where = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
        self.batches = Batches(dataset.train, options.batch_size, drop_last=True, **where)
        self.tests = Batches(dataset.test, options.batch_size, drop_last=False, **where)
        self.trainer: Trainer = build_trainer(options, dataset.num_embeddings)

    def run(self, *, save: Path | None = None) -> list[float]:
        """Train to the end; return the losses, and the sum of the predictions after them."""
        trainer = self.trainer
        with BatchReader(self.batches, trainer.step, NUM_STEPS) as feed:
            while trainer.step < NUM_STEPS:
                trainer.train_next(feed)
                if save is not None and trainer.step == SAVED:
                    trainer.save(save)
        predictions, _ = trainer.predict(self.tests, exact=False)
        return [*trainer.losses, float(predictions.sum())]

    def resumed(self, folder: Path) -> list[float]:
        """Train from the checkpoint to the end."""
        self.trainer.resume(folder, allow_changed_config=False)
        assert self.trainer.step == SAVED
        return self.run()


def everything(folder: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    by_hand, pipelined = (), ("--pipeline", "sparse_dist")
    saved = Path(folder)
    return {
        "by hand": Training(*by_hand).run(),
        "pipelined": Training(*pipelined).run(save=saved),
        "resumed": Training(*pipelined).resumed(saved),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(everything, 2, str(tmp_path_factory.mktemp("loop")))


@pytest.mark.dist
def test_a_pipeline_changes_no_bit_and_a_save_does_not_disturb_it(
    ranks: list[dict[str, Any]],
) -> None:
    for rank in ranks:
        assert len(set(rank["by hand"])) == NUM_STEPS + 1
        assert rank["pipelined"] == rank["by hand"]


@pytest.mark.dist
def test_a_resume_goes_on_after_the_last_batch_that_was_trained(
    ranks: list[dict[str, Any]],
) -> None:
    """The pipeline had read two more batches, and had sent the ids of one of them."""
    for rank in ranks:
        assert rank["resumed"] == rank["by hand"][SAVED:]
