"""Digests of what a short training leaves: all weights of all ranks and the losses, bit by bit.

Knows: the emulated trainings of examples/criteo. Does not know: which configs, verdicts.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence

import torch
from emulation.client import EmulatedModel, EmulatedTrainer
from stock import STOCK
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from train import shard
from trainer import Trainer

from trec_qcomm import Config
from trec_qcomm.config import load_preset

MODEL = (
    "--rows", "2048", "--steps", "3", "--batch-size", "32", "--embedding-dim", "48",
    "--dense-arch", "16", "--over-arch", "16",
)  # fmt: skip


class StockTrainer(EmulatedTrainer):
    """Callback of a study: the same DLRM by TorchRec alone, whatever the config."""

    def shard(
        self, options: argparse.Namespace, num_embeddings: list[int], config: Config
    ) -> Trainer:
        options = argparse.Namespace(**vars(options) | {"config": STOCK})
        return shard(options, num_embeddings, None)


def digest(words: Sequence[str], config: Config, seed: int = 0) -> str:
    """Train three steps on played ranks, and return the digest. Args: words: of train.py."""
    return _digest(EmulatedTrainer.from_words([*MODEL, *words])(config, seed, 0.0))


def stock_digest(words: Sequence[str], seed: int = 0) -> str:
    """Return the digest of the same training by TorchRec alone."""
    return _digest(StockTrainer.from_words([*MODEL, *words])(load_preset("fp32"), seed, 0.0))


def _digest(model: EmulatedModel) -> str:
    """Return the SHA-256 of the losses and of all weights of all ranks, in the order of names."""
    sha = hashlib.sha256(torch.tensor(model.losses, dtype=torch.float64).numpy().tobytes())
    for trainer in model.trainers:
        for name, weight in sorted(trainer.dmp.state_dict().items()):
            sha.update(name.encode())
            for part in _local(weight):
                sha.update(part.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def _local(weight: torch.Tensor | ShardedTensor) -> list[torch.Tensor]:
    """Return the parts of a weight that a rank holds."""
    if isinstance(weight, ShardedTensor):
        return [part.tensor for part in weight.local_shards()]
    return [weight]
