"""A training on one rank: steps, checkpoints, the test. What a user would write by hand.

Knows: a sharded model, QComm's public methods. Does not know: records, how ranks were started.
Every rank calls the functions that are marked "Collective".
"""

from __future__ import annotations

import argparse
import logging
import os
import time
import warnings
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
from torchrec.distributed.fbgemm_qcomm_codec import QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from tqdm import tqdm

from examples.sequences.data import Batches, HeldOutBatches, Sequences
from examples.sequences.metrics import metrics_of, ranks_of
from examples.sequences.model import ModelConfig, build_optimizer, shard, stock_arguments
from examples.sequences.options import (
    NOT_OF_A_CHECKPOINT,
    STOCK,
    checkpoints,
    is_pipelined,
    setup_of,
)
from trec_qcomm import QComm


@dataclass
class Trainer:
    """A sharded model on this rank, and how far it has come. `qcomm` is None for plain TorchRec."""

    options: argparse.Namespace
    dmp: DistributedModelParallel
    optimizer: Any
    qcomm: QComm | None
    device: torch.device
    batches: Batches
    tests: HeldOutBatches
    step: int = 0  # steps done
    losses: list[float] = field(default_factory=list)  # since the start or the resume
    step_s: list[float] = field(default_factory=list)

    _pipeline: Any = None

    def _forward(self, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        loss = self.dmp(features)
        return loss, loss.detach()

    @classmethod
    def build(
        cls, options: argparse.Namespace, sequences: Sequences, qcomm: QComm | None
    ) -> Trainer:
        """Shard the model over the ranks of the process group. Collective."""
        values = vars(options)
        config = ModelConfig(**{f.name: values[f.name] for f in fields(ModelConfig)})
        device = torch.device(options.device)
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            torch.cuda.set_device(device)
        if qcomm is None:
            arguments = stock_arguments(_stock_codecs(options.config), config.fused_params)
        else:
            arguments = qcomm.dmp_arguments(fused_params=config.fused_params)
        dmp = shard(config, sequences.num_items, options.plan, device, arguments)
        ranks = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
        sizes = {"batch_size": options.batch_size, "length": options.length}
        random = {"negatives": options.negatives, "seed": options.seed}
        batches = Batches(sequences, **sizes, **random, **ranks)
        tests = HeldOutBatches(sequences, **sizes, part=options.part, **ranks)
        return cls(options, dmp, build_optimizer(dmp, config), qcomm, device, batches, tests)

    def train(self, *, show_progress: bool = False) -> None:
        """Take the steps that are left, with a checkpoint after each epoch. Collective."""
        num_steps = self.options.steps or self.options.epochs * len(self.batches)
        steps = range(self.step, num_steps)
        bar = tqdm(
            steps, initial=self.step, total=num_steps, unit="step", disable=not show_progress
        )
        feed = (self.batches[step] for step in steps)  # a pipeline reads some of them ahead
        for step in bar:
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
        if is_pipelined(self.options):
            if self._pipeline is None:
                parts = (self.dmp, self.optimizer, self.device)
                self._pipeline = TrainPipelineSparseDist(*parts, custom_model_fwd=self._forward)
            loss = self._pipeline.progress(feed)
        else:
            self.optimizer.zero_grad()
            loss = self.dmp(next(feed).to(self.device))
            loss.backward()
            self.optimizer.step()
        self.losses.append(loss.item())
        self.step_s.append(time.perf_counter() - begin)
        self.step += 1

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
                scores = self.dmp(test.features.to(self.device)).cpu()
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


def _stock_codecs(config: str) -> dict[str, Any] | None:
    precision = STOCK[config]
    if precision is None:
        return None
    comms = QCommsConfig(forward_precision=precision, backward_precision=precision)
    codecs: dict[str, Any] = get_qcomm_codecs_registry(comms)
    return codecs


def gather(value: Any) -> list[Any]:
    """Return the value of every rank, in rank order. Collective."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def silence_start() -> None:
    """Hide what torch says about its deprecated names because TorchRec uses them."""
    for name in ("torch.fx", *(f"torchrec.distributed.{m}" for m in ("planner", "comm", "utils"))):
        logging.getLogger(name).setLevel("ERROR")
    for message in ("`broadcast_buffers` is deprecated", "Please use DTensor instead"):
        warnings.filterwarnings("ignore", message, FutureWarning)
