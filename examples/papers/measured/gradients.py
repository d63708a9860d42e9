"""Real gradients to code: those that a DLRM of the Criteo example has, a batch for each rank.

Knows: the trainings of examples/criteo, on synthetic rows that anybody can make again. Does not
know: codecs, papers. Shapes: B samples a batch, D values a row.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from trec_qcomm.config import load_preset

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "examples" / "criteo")]  # whose scripts import by name

NUM_STEPS = 30  # in float32, before gradients are looked at
WORDS = (
    *("--ranks", "1", "--batch-size", "128", "--rows", "16384"),
    *("--dense-arch", "256-64", "--over-arch", "256-128"),
)
SETTING = "DLRM, dense 256-64, over 256-128, dim 16, after 30 steps, synthetic rows, 128 a rank"


@dataclass(frozen=True)
class Backward:
    """What one batch gives.

    Args:
        dense: gradient of each parameter of the dense layers, float32.
        rows: [B, tables, D] float32, rows that the batch looks up.
        row_gradients: [B, tables, D] float32, gradients of the mean loss.
    """

    dense: dict[str, Tensor]
    rows: Tensor
    row_gradients: Tensor


@lru_cache(maxsize=8)
def backward_of_batches(num_batches: int, seed: int) -> list[Backward]:
    """Return what so many batches give, all with the weights that a short training ends with."""
    from emulation.client import EmulatedTrainer

    trainer = EmulatedTrainer.from_words(WORDS)
    made: list[Backward] = []

    def program(rank, rows, num_steps):
        for _ in range(NUM_STEPS):
            rank.train_step(rows)
        numbers = range(NUM_STEPS, NUM_STEPS + num_batches)
        made.extend(_backward(rank, rows[number].to(rank.device)) for number in numbers)

    trainer.run(load_preset("fp32"), seed, 0.0, program)
    return made


def _backward(trainer, batch) -> Backward:
    """Return what a batch gives, outside of DDP and of the fused optimizer: no weight changes."""
    from torchrec.models.dlrm import DLRM, DLRMTrain

    model, dlrm = (
        next(m for m in trainer.dmp.modules() if isinstance(m, kind)) for kind in (DLRMTrain, DLRM)
    )
    with torch.no_grad():
        rows = dlrm.sparse_arch(batch.sparse_features)
    rows.requires_grad_()
    layers = dict(dlrm.dense_arch.named_parameters(prefix="dense_arch"))
    layers |= dict(dlrm.over_arch.named_parameters(prefix="over_arch"))
    dense = dlrm.dense_arch(batch.dense_features)
    logits = dlrm.over_arch(dlrm.inter_arch(dense_features=dense, sparse_features=rows))
    loss = model.loss_fn(logits.squeeze(-1), batch.labels)
    row_gradients, *gradients = torch.autograd.grad(loss, [rows, *layers.values()])
    return Backward(dict(zip(layers, gradients, strict=True)), rows.detach(), row_gradients)
