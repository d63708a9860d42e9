"""Training steps, the evaluation, what a checkpoint holds: what a user would write by hand.

Knows: a sharded model, batches, TorchRec's train pipelines, QComm's public methods. Does not know:
options, records, how ranks were started. Every rank calls the functions marked "Collective".
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
from checkpoints import has_checkpoint, newest_sound, read_json, save, write_json
from data.dataset import Batches
from ranks import EveryRankError, agreed, gather
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper

from trec_qcomm import DeltaExport

# TorchRec's pipeline reads batches ahead: `sparse_dist` sends the ids of the next batch while this
# one is trained. Each batch is looked up only after the step before has updated the tables, so
# losses stay as they are; a resumed training reads again what was read ahead.
PIPELINES = ("none", "sparse_dist")


@dataclass
class Trainer:
    """A sharded model and how far it has come.

    A step is over, for the host of a GPU, when all of it is launched. Losses are read, together,
    when they are asked for, as each read waits for the GPU.

    Args:
        qcomm: the communication; None is plain TorchRec's.
        pipeline: one of PIPELINES.
        export: export of changed rows; None: there is none.
    """

    dmp: DistributedModelParallel
    optimizer: CombinedOptimizer
    device: torch.device
    qcomm: Any = None
    pipeline: str = "none"
    export: DeltaExport | None = None
    step: int = 0  # steps done
    _losses: list[float] = field(default_factory=list)
    _step_s: list[float] = field(default_factory=list)
    _unread: list[Tensor] = field(default_factory=list)  # losses of the last steps
    _unread_since: float = 0.0
    _steps: Any = None

    def __post_init__(self) -> None:
        if self.pipeline == "sparse_dist":
            self._steps = TrainPipelineSparseDist(self.dmp, self.optimizer, self.device)

    @property
    def losses(self) -> list[float]:
        """Losses of this rank, since the start or the resume. Waits for a GPU."""
        self._read_losses()
        return self._losses

    @property
    def step_s(self) -> list[float]:
        """Seconds of the same steps; on a GPU the mean of those whose losses are read together."""
        self._read_losses()
        return self._step_s

    def _read_losses(self) -> None:
        if self._unread:
            self._losses += torch.stack(self._unread).tolist()
            num_steps, seconds = len(self._unread), time.perf_counter() - self._unread_since
            if self.device.type != "cpu":
                self._step_s += [seconds / num_steps] * num_steps
            self._unread.clear()

    def train_next(self, feed: Iterator[Batch]) -> None:
        """Take one step on the next batch of `feed`; a pipeline reads more of them. Collective."""
        begin = time.perf_counter()
        if not self._unread:
            self._unread_since = begin
        self._unread.append(self._take_step(feed))
        if self.device.type == "cpu":
            self._step_s.append(time.perf_counter() - begin)
        self.step += 1

    def _take_step(self, feed: Iterator[Batch]) -> Tensor:
        """Return the loss of a step, on the device."""
        if self._steps is not None:
            loss: Tensor = self._steps.progress(feed)[0]
            return loss
        batch = next(feed).to(self.device)
        self.optimizer.zero_grad()
        loss, output = self.dmp(batch)
        loss.backward()
        self.optimizer.step()
        return output[0]

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
        if self._steps is not None:
            self._steps.detach()
        self.dmp.eval()
        with torch.no_grad(), self.qcomm.bypass() if self.qcomm and exact else nullcontext():
            for index in range(len(batches)):
                _, (_, logits, labels) = self.dmp(batches[index].to(self.device))
                outputs.append((logits.cpu(), labels.cpu()))
        self.dmp.train()
        columns = [torch.cat(column).numpy() for column in zip(*outputs, strict=True)]
        by_column = zip(*gather(columns), strict=True)  # joined in rank order; lengths may differ
        logits, labels = (torch.from_numpy(np.concatenate(parts)) for parts in by_column)
        return torch.sigmoid(logits.double()), labels.double()

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint holds."""
        state = {"model": self.dmp, "optimizer": self.optimizer, "step": torch.tensor(self.step)}
        state |= {} if self.export is None else {"delta": self.export}
        return state if self.qcomm is None else state | {"trec_qcomm": self.qcomm}

    def save(self, directory: Path) -> None:
        """Write directory/step_N. Collective; the directory is one that all ranks see."""
        save(self.state(), directory, self.step)

    def resume(self, directory: Path, *, allow_changed_config: bool) -> None:
        """Continue from the last checkpoint that is whole. Collective.

        Raises: ValueError: there is none, or it is of another config and that is not allowed.
        """
        folder = newest_sound(directory)
        for _, part in self.optimizer.optimizers:
            if isinstance(part, KeyedOptimizerWrapper):  # Adam has no state before a step, and
                part.init_state()  # state is loaded in place
        state = self.state()
        if allow_changed_config and self.qcomm is not None:
            state.pop("trec_qcomm")
            self.qcomm.load_resized(folder, allow_changed_config=True)
        load(state, checkpoint_id=folder)
        self.step = int(state["step"])


def choose_pipeline(name: str | None, device: str) -> str:
    """Return the pipeline that --pipeline and --device ask for: without a name the usual one.

    On a CPU that is `none`: the ids' exchange and the training run on the same cores.
    """
    return name or ("sparse_dist" if device == "cuda" else "none")


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
