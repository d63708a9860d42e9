"""Training steps, the evaluation, what a checkpoint holds: what a user would write by hand.

Knows: a sharded model, batches, pipelines, QComm's public methods. Does not know: options, records,
how ranks were started. Every rank calls the functions that are marked "Collective".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from checkpoints import Saver, has_checkpoint, newest_sound, read_json, save, write_json
from data.dataset import Batches
from failures import EveryRankError, agreed
from loop.pipelines import build_pipeline
from loop.warm_up import WarmUp
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper, OptimizerWrapper

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class Trainer:
    """A sharded model and how far it has come.

    A step is over, for the host of a GPU, when all of it is launched. Losses are read, together,
    when they are asked for, as each read waits for the GPU.

    Args:
        qcomm: the communication; None is plain TorchRec's.
        pipeline: one of loop.pipelines.PIPELINES.
        precision: dtype of the dense layers' products, by autocast; parameters stay float32.
        warm_up_steps: number of steps in which the learning rates rise.
        saver: a writer of checkpoints beside the training; None: the training waits for them.
    """

    dmp: DistributedModelParallel
    optimizer: CombinedOptimizer
    device: torch.device
    qcomm: Any = None
    pipeline: str = "none"
    precision: torch.dtype = torch.float32
    warm_up_steps: int = 0
    saver: Saver | None = None
    step: int = 0  # steps done
    _losses: list[float] = field(default_factory=list)
    _step_s: list[float] = field(default_factory=list)
    _unread: list[Tensor] = field(default_factory=list)  # losses of the last steps
    _unread_since: float = 0.0

    def __post_init__(self) -> None:
        parts = (self.dmp, self.optimizer, self.device, self.forward)
        self._steps = build_pipeline(self.pipeline, *parts)
        self._warm_up = WarmUp(self.optimizer, self.warm_up_steps)

    @property
    def losses(self) -> list[float]:
        """Losses of this rank, since the start or the resume. Waits for a GPU."""
        self._read_losses()
        return self._losses

    @property
    def step_s(self) -> list[float]:
        """Seconds of the same steps. On a GPU steps whose losses are read together took equally
        long."""
        self._read_losses()
        return self._step_s

    def _read_losses(self) -> None:
        if self._unread:
            self._losses += torch.stack(self._unread).tolist()
            num_steps, seconds = len(self._unread), time.perf_counter() - self._unread_since
            if self.device.type != "cpu":
                self._step_s += [seconds / num_steps] * num_steps
            self._unread.clear()

    def forward(self, batch: Batch) -> tuple[Tensor, Any]:
        """Return loss and (loss, logits, labels) of a batch on the device. Collective."""
        if self.precision is torch.float32:
            return self.dmp(batch)
        with torch.autocast(self.device.type, self.precision):
            return self.dmp(batch)

    def train_next(self, feed: Iterator[Batch]) -> None:
        """Take one step on the next batch of `feed`; a pipeline reads more of them. Collective."""
        begin = time.perf_counter()
        if not self._unread:
            self._unread_since = begin
        self._warm_up.set_rates(self.step)
        loss = self._steps.progress(feed)[0]
        self._unread.append(loss)
        if self.device.type == "cpu":
            self._step_s.append(time.perf_counter() - begin)
        self.step += 1

    def train_step(self, batches: Batches) -> None:
        """Take one step on the batch of its number, without reading ahead. Collective.

        Epochs follow one another in the same order of rows.
        """
        self.train_next(iter((batches[self.step % len(batches)],)))

    def predict(self, batches: Batches, *, exact: bool) -> tuple[Tensor, Tensor]:
        """Return probabilities [N] and labels [N], float64, of all rows of all ranks. Collective.

        With `exact` the codec is bypassed: float32 on the wire.
        """
        outputs: list[tuple[Tensor, Tensor]] = []
        self._steps.detach()
        self.dmp.eval()
        with torch.no_grad(), self.qcomm.bypass() if self.qcomm and exact else nullcontext():
            for index in range(len(batches)):
                _, (_, logits, labels) = self.forward(batches[index].to(self.device))
                outputs.append((logits.float().cpu(), labels.cpu()))
        self.dmp.train()
        logits, labels = _gather([torch.cat(column) for column in zip(*outputs, strict=True)])
        return torch.sigmoid(logits.double()), labels.double()

    def go_on_from(self, other: Trainer) -> None:
        """Continue where the trainer of an equal model has come, whatever its codecs. Collective.

        Args: other: a trainer with a qcomm; it must not train on.
        """
        self._init_optimizers()
        self.dmp.load_state_dict(other.dmp.state_dict())
        self.optimizer.load_state_dict(other.optimizer.state_dict())
        steps = other.qcomm.state_dict()["steps"]
        self.qcomm.load_state_dict(self.qcomm.state_dict() | {"steps": steps})
        self.step, self._losses = other.step, list(other.losses)
        self._step_s = list(other.step_s)

    def _init_optimizers(self) -> None:
        """Let Adam have its state, which is loaded in place, before its first step."""
        for _, part in self.optimizer.optimizers:
            if isinstance(part, (KeyedOptimizerWrapper, OptimizerWrapper)):
                part.init_state()

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint holds."""
        state = {"model": self.dmp, "optimizer": self.optimizer, "step": torch.tensor(self.step)}
        return state if self.qcomm is None else state | {"trec_qcomm": self.qcomm}

    def save(self, directory: Path) -> None:
        """Write directory/step_N. Collective; the directory is one that all ranks see."""
        write = save if self.saver is None else self.saver.save
        write(self.state(), directory, self.step)

    def finish_saving(self) -> None:
        """Return when the last checkpoint is whole. Collective."""
        if self.saver is not None:
            self.saver.wait()

    def resume(self, directory: Path, *, allow_changed_config: bool) -> None:
        """Continue from the last checkpoint that is whole. Collective.

        Raises: ValueError: there is none, or it is of another config and that is not allowed.
        """
        folder = newest_sound(directory)
        self._init_optimizers()
        state = self.state()
        if allow_changed_config and self.qcomm is not None:
            state.pop("trec_qcomm")
            self.qcomm.load_resized(folder, allow_changed_config=True)
        load(state, checkpoint_id=folder)
        self.step = int(state["step"])


def open_checkpoints(
    trainer: Trainer,
    directory: Path,
    identity: dict[str, str],
    *,
    resume: bool,
    allow_changed_config: bool = False,
) -> None:
    """Resume from the folder, or claim it for the training that `identity` describes. Collective.

    Raises: ValueError: the folder holds another training, or has no checkpoint to resume from.
    """
    file = directory / "options.json"
    if not resume:
        if has_checkpoint(directory):
            raise EveryRankError(f"{directory}: a training is here; --resume it or take another")
        dist.barrier()  # all have looked before one writes
        if dist.get_rank() == 0:
            write_json(file, identity)
        return
    saved = agreed(lambda: read_json(file))
    changed = [f"{k} {saved.get(k)} -> {v}" for k, v in identity.items() if saved.get(k) != v]
    if changed:
        raise EveryRankError(f"{file}: resumed with other options: {', '.join(changed)}")
    trainer.resume(directory, allow_changed_config=allow_changed_config)


def _gather(columns: list[Tensor]) -> list[Tensor]:
    """Join each rank's [n, ...] in rank order; n may differ."""
    per_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(per_rank, [column.numpy() for column in columns])
    return [torch.from_numpy(np.concatenate(parts)) for parts in zip(*per_rank, strict=True)]
