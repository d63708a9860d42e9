"""The example's loop: pipelined losses, and those after a resume, are those of steps by hand."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from data.dataset import Batches
from data.reader import BatchReader
from dcn import JoinedRows
from options import build_parser
from torch.distributed.checkpoint import FileSystemWriter
from train import build_trainer, load_dataset
from trainer import Trainer

from trec_qcomm.testing import run_ranks

NUM_STEPS, SAVED, WARM_UP, MAX_NORM = 7, 3, 5, 0.01
SMALL = "--config best --rows 1024 --batch-size 16 --dense-arch 8 --over-arch 8"
MODEL = "--model dcn --mixed-dims --cross-rank 8"  # dims of 8 to 16
LEARNING = f"--dense-precision bf16 --clip-grad-norm {MAX_NORM} --warmup-steps {WARM_UP}"


class Training:
    """A small model of the example and its batches, on one rank."""

    def __init__(self, words: str) -> None:
        options = build_parser().parse_args(f"{SMALL} {MODEL} {LEARNING} {words}".split())
        dataset = load_dataset(options)
        where = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
        self.batches = Batches(dataset.train, options.batch_size, drop_last=True, **where)
        self.tests = Batches(dataset.test, options.batch_size, drop_last=False, **where)
        self.rates: list[list[float]] = []  # of each step
        self.trainer: Trainer = build_trainer(options, dataset.num_embeddings)

    def run(self, *, save: Path | None = None) -> list[float]:
        """Train to the end; return the losses, and the sum of the predictions after them."""
        trainer = self.trainer
        with BatchReader(self.batches, trainer.step, NUM_STEPS) as feed:
            while trainer.step < NUM_STEPS:
                trainer.train_next(feed)
                self.rates.append(self._rates())
                if save is not None and trainer.step == SAVED:
                    trainer.save(save)
        predictions, _ = trainer.predict(self.tests, exact=False)
        return [*trainer.losses, float(predictions.sum())]

    def rows(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Return logits and what was looked up for them, by the dense layers' precision."""
        seen: list[torch.Tensor] = []
        (arch,) = (m for m in self.trainer.dmp.modules() if isinstance(m, JoinedRows))
        handle = arch.register_forward_hook(lambda *call: seen.append(call[-1]))
        results = {}
        with torch.no_grad():
            for name, forward in (("bf16", self.trainer.forward), ("float32", self.trainer.dmp)):
                results[name] = (forward(self.batches[0])[1][1], seen.pop())
        handle.remove()
        return results

    def _rates(self) -> list[float]:
        """Return the rates with which the tables' kernels and the dense layers learned last."""
        tables, dense = self.trainer.optimizer.optimizers
        kernels = [part for _, fused in tables[1].optimizers for _, part in fused.optimizers]
        rates = [kernel._emb_module.get_learning_rate() for kernel in kernels]
        return [*rates, *(group["lr"] for group in dense[1].param_groups)]

    def norm(self) -> float:
        """Return the norm of the dense layers' gradients of the last step."""
        _, dense = self.trainer.optimizer.optimizers[-1]
        grads = [parameter.grad for parameter in dense.params.values()]
        return float(torch.linalg.vector_norm(torch.cat([grad.flatten() for grad in grads])))

    def resumed(self, folder: Path) -> list[float]:
        """Train from the checkpoint to the end."""
        self.trainer.resume(folder, allow_changed_config=False)
        assert self.trainer.step == SAVED
        return self.run()


def everything(folder: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    first, second = Training(""), Training("--pipeline sparse_dist --checkpoint-async")
    results: dict[str, Any] = {"rows": first.rows(), "by hand": first.run()}
    with held_back(Path(folder)) as seen:
        results |= {"pipelined": second.run(save=Path(folder)), "saves": seen}
        results["norm"] = second.norm()
    second.trainer.finish_saving()
    third = Training("--pipeline sparse_dist")
    results["resumed"] = third.resumed(Path(folder))
    return results | {"rates": second.rates, "rates resumed": third.rates}


@contextmanager
def held_back(folder: Path) -> Iterator[list[int]]:
    """Let no file of a checkpoint be written within; yield how many were whole until the end."""
    leave, seen = threading.Event(), []
    write = FileSystemWriter.write_data

    def wait(*words: Any) -> Any:
        leave.wait(60)
        return write(*words)

    FileSystemWriter.write_data = wait
    try:
        yield seen
        seen.append(len([*folder.glob("*/digests.json")]))
    finally:
        leave.set()
        FileSystemWriter.write_data = write


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
    """The pipeline had read two more batches, and had sent the ids of one of them.

    The files were written when the training was over, so they hold a copy.
    """
    for rank in ranks:
        assert rank["saves"] == [0]
        assert rank["resumed"] == rank["by hand"][SAVED:]


@pytest.mark.dist
def test_precision_changes_the_dense_layers_alone(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        (bf16, rows), (exact, exact_rows) = rank["rows"]["bf16"], rank["rows"]["float32"]
        assert rows.dtype == torch.float32
        assert torch.equal(rows, exact_rows)
        assert bf16.dtype == torch.bfloat16
        assert not torch.equal(bf16.float(), exact)


@pytest.mark.dist
def test_all_ranks_clip_by_the_same_norm(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["norm"] for rank in ranks)
    assert first == second == pytest.approx(MAX_NORM, rel=1e-3)


@pytest.mark.dist
def test_rates_rise_in_kernels_and_dense_layers(ranks: list[dict[str, Any]]) -> None:
    shares = [min(1.0, (step + 1) / WARM_UP) for step in range(NUM_STEPS)]
    for rank in ranks:
        assert rank["rates"][SAVED:] == rank["rates resumed"]
        for share, (*tables, dense) in zip(shares, rank["rates"], strict=True):
            assert tables == pytest.approx([0.02 * share] * len(tables), rel=1e-6)
            assert len(tables) > 0
            assert dense == pytest.approx(0.001 * share)
