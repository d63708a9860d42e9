"""A training on one rank: steps, checkpoints, the test. What a user would write by hand.

Knows: a sharded model, QComm's public methods. Does not know: records, how ranks were started.
Every rank calls the functions that are marked "Collective". Shapes: B users, U of all ranks, I
items.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torchrec import KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from tqdm import tqdm

from examples.criteo.ranks import gather
from examples.criteo.ranks import silence_start as silence_start  # for those who build a Trainer
from examples.sequences.data import Batches, HeldOutBatches, Sequences
from examples.sequences.model import ModelConfig, build_optimizer, shard
from examples.sequences.options import NOT_OF_A_CHECKPOINT, STOCK, checkpoints, setup_of
from trec_qcomm import QComm

TOP = 10


@dataclass
class Trainer:
    """A sharded model on this rank, and how far it has come. `qcomm` is None for plain TorchRec."""

    options: argparse.Namespace
    dmp: DistributedModelParallel
    optimizer: Any
    qcomm: QComm | None
    batches: Batches
    tests: HeldOutBatches
    step: int = 0  # steps done
    losses: list[float] = field(default_factory=list)  # since the start or the resume
    step_s: list[float] = field(default_factory=list)
    _pipeline: Any = None

    @classmethod
    def build(
        cls, options: argparse.Namespace, sequences: Sequences, qcomm: QComm | None
    ) -> Trainer:
        """Shard the model over the ranks of the process group. Collective."""
        values = vars(options)
        config = ModelConfig(**{f.name: values[f.name] for f in fields(ModelConfig)})
        if qcomm is None:
            codecs = None
            if STOCK[options.config] is not None:
                comms = QCommsConfig(*2 * [STOCK[options.config]])
                codecs = get_qcomm_codecs_registry(comms)
            arguments = {"sharders": [EmbeddingCollectionSharder(config.fused_params, codecs)]}
        else:
            arguments = qcomm.dmp_arguments(fused_params=config.fused_params)
        dmp = shard(config, sequences.num_items, options.plan, arguments)
        ranks = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
        sizes = {"batch_size": options.batch_size, "length": options.length}
        random = {"negatives": options.negatives, "seed": options.seed}
        batches = Batches(sequences, **sizes, **random, **ranks)
        tests = HeldOutBatches(sequences, **sizes, part=options.part, **ranks)
        return cls(options, dmp, build_optimizer(dmp, config), qcomm, batches, tests)

    def train(self, *, show_progress: bool = False) -> None:
        """Take the steps that are left, with a checkpoint after each epoch. Collective."""
        num_steps = self.options.steps or self.options.epochs * len(self.batches)
        steps, counts = range(self.step, num_steps), {"initial": self.step, "total": num_steps}
        feed = (self.batches[step] for step in steps)  # a pipeline reads some of them ahead
        for step in (bar := tqdm(steps, **counts, unit="step", disable=not show_progress)):
            self.train_next(feed)
            if step % 20 == 0:
                bar.set_postfix_str(f"loss {self.losses[-1]:.4f}")
            is_due = self.step % len(self.batches) == 0 or self.step == num_steps
            if self.options.checkpoint_dir and is_due:
                folder = self.options.checkpoint_dir / f"step_{self.step:09d}"
                dcp.save(self.state(), checkpoint_id=folder)

    def train_next(self, feed: Iterator[KeyedJaggedTensor]) -> None:
        """Take one step on the next batch of `feed`; a pipeline reads more of them. Collective."""
        begin = time.perf_counter()
        if self.options.pipeline == "sparse_dist":
            if self._pipeline is None:
                parts = (self.dmp, self.optimizer, torch.device("cpu"))
                self._pipeline = TrainPipelineSparseDist(*parts, custom_model_fwd=self._forward)
            loss = self._pipeline.progress(feed)
        else:
            self.optimizer.zero_grad()
            loss = self.dmp(next(feed))
            loss.backward()
            self.optimizer.step()
        self.losses.append(loss.item())
        self.step_s.append(time.perf_counter() - begin)
        self.step += 1

    def _forward(self, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        loss = self.dmp(features)
        return loss, loss.detach()

    @torch.no_grad()
    def score(self, *, exact: bool = False) -> dict[str, float]:
        """Return the metrics of all users of all ranks. Collective.

        A pipeline ends here, and what it has read ahead is not trained: plain TorchRec loses the
        sizes of unpooled rows that it expects when a detached pipeline goes on.

        Args: exact: whether rows travel as float32, whatever the codecs.
        """
        if self._pipeline is not None:
            self._pipeline.detach()
            self._pipeline = None
        self.dmp.eval()
        ranks, losses = [], []
        with self.qcomm.bypass() if self.qcomm and exact else nullcontext():
            for index in range(len(self.tests)):
                test = self.tests[index]
                scores = self.dmp(test.features)
                right = scores.gather(1, test.targets[:, None])[:, 0]
                ranks.append(ranks_of(scores, test.targets, test.seen))
                losses.append(scores.logsumexp(dim=1) - right)
        self.dmp.train()
        gathered = gather((torch.cat(ranks).numpy(), torch.cat(losses).numpy()))
        columns = zip(*gathered, strict=True)
        return metrics_of(*(torch.from_numpy(np.concatenate(column)) for column in columns))

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint holds."""
        what = {k: v for k, v in setup_of(self.options).items() if k not in NOT_OF_A_CHECKPOINT}
        state = {"model": self.dmp, "optimizer": self.optimizer, "trec_qcomm": self.qcomm}
        state |= {"step": torch.tensor(self.step), "setup": str(what | {"seed": self.options.seed})}
        return {name: value for name, value in state.items() if value is not None}

    def resume(self, directory: Path) -> None:
        """Continue from the last checkpoint that is whole. Collective.

        Raises: ValueError: it is of another training.
        """
        folder, state = checkpoints(directory)[-1], self.state()
        expected = state["setup"]
        dcp.load(state, checkpoint_id=folder)
        if state["setup"] != expected:
            raise ValueError(f"{folder}: of {state['setup']}; resumed with {expected}")
        self.step = int(state["step"])

    def mean_losses(self) -> list[float]:
        """Return the loss of each step, the mean over ranks. Collective."""
        by_rank = gather(self.losses)
        return [sum(losses) / len(losses) for losses in zip(*by_rank, strict=True)]


def ranks_of(scores: Tensor, targets: Tensor, seen: tuple[Tensor, Tensor]) -> Tensor:
    """Return [B] int64, the rank of each target among the items that its user has not seen.

    The best rank is 1. Equal scores, and those that are NaN, count against the target.
    Args:
        scores: [B, I] float.
        targets: [B] int64.
        seen: users (0 to B - 1) and items that are not ranked; targets always are.
    """
    users = torch.arange(len(targets))
    is_ahead = ~(scores < scores[users, targets][:, None])
    is_ahead[seen] = False
    is_ahead[users, targets] = True  # itself, for the first rank is 1
    return is_ahead.sum(dim=1)


def metrics_of(ranks: Tensor, losses: Tensor) -> dict[str, float]:
    """Return the metrics of a test.

    Args:
        ranks: [U] int64, the rank of the item that came next, from 1.
        losses: [U] float, minus the logarithm of its softmax over all items.
    """
    is_hit = ranks <= TOP
    gains = is_hit / torch.log2(ranks.double() + 1)
    return {
        "loss": float(losses.double().mean()),
        f"ndcg_{TOP}": float(gains.mean()),
        f"hit_rate_{TOP}": float(is_hit.double().mean()),
        "num_users": len(ranks),
    }
