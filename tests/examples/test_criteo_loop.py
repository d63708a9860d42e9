"""The example's loop: pipelined losses, and those after a resume, are those of steps by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from data.dataset import BatchReader
from options import build_parser
from train import batches_of, build_trainer, load_dataset
from trainer import Trainer

from tests.ops.fake_gpu import HostReads
from trec_qcomm.testing import run_ranks

NUM_STEPS, SAVED = 7, 3
SMALL = "--config unique_int4 --rows 1024 --batch-size 16 --dense-arch 8 --over-arch 8"
LOSSES = [0.5, 0.25, 0.125]


def trained(words: str, *, save: Path | None = None, resume: Path | None = None) -> list[float]:
    """Train a small DCN to the end; return the losses, and the sum of the predictions."""
    options = build_parser().parse_args(f"{SMALL} --model dcn {words}".split())
    dataset = load_dataset(options)
    trainer = build_trainer(options, dataset.num_embeddings)
    if resume is not None:
        trainer.resume(resume, allow_changed_config=False)
        assert trainer.step == SAVED
    with BatchReader(batches_of(dataset, options), trainer.step, NUM_STEPS) as feed:
        while trainer.step < NUM_STEPS:
            trainer.train_next(feed)
            if save is not None and trainer.step == SAVED:
                trainer.save(save)
    predictions, _ = trainer.predict(batches_of(dataset, options, is_test=True), exact=False)
    return [*trainer.losses, float(predictions.sum())]


def everything(folder: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    pipelined = "--pipeline sparse_dist"
    return {
        "by hand": trained(""),
        "pipelined": trained(pipelined, save=Path(folder)),
        "resumed": trained(pipelined, resume=Path(folder)),
    }


@pytest.mark.dist
def test_a_pipeline_changes_no_bit_and_a_resumed_training_goes_on(tmp_path: Path) -> None:
    for rank in run_ranks(everything, 2, str(tmp_path), timeout_s=240):
        assert len(set(rank["by hand"])) == NUM_STEPS + 1
        assert rank["pipelined"] == rank["by hand"]
        assert rank["resumed"] == rank["by hand"][SAVED:]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_losses_are_read_when_somebody_asks(device: str) -> None:
    """The host of a GPU launches a step and does not wait for its loss."""
    batches: Any = [SimpleNamespace(to=lambda device: None)]
    losses = torch.tensor(LOSSES, requires_grad=True)
    steps = iter(losses.unbind())

    def dmp(_batch: object) -> tuple[torch.Tensor, tuple[torch.Tensor]]:
        loss = next(steps)
        return loss, (loss.detach(),)

    with HostReads(losses) as reads:
        trainer = Trainer(dmp, mock.Mock(), torch.device(device))
        for _ in LOSSES:
            trainer.train_step(batches)
    assert len(reads.calls) == 0
    assert trainer.losses == LOSSES
    assert trainer.step == len(trainer.step_s) == len(LOSSES)
    assert min(trainer.step_s) > 0
