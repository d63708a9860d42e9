"""A training step from an iterator of batches: one after another, or by a pipeline of TorchRec.

Knows: TorchRec's train pipelines. Does not know: options, checkpoints, what a model is.
`sparse_dist` reads two batches ahead, and sends the ids of the next one while this one is trained.
Each batch is looked up only after the step before has updated the tables, so losses stay as they
are. A training that goes on reads again what the pipeline had read ahead: the batches that count
are those that were trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.train_pipeline import (
    PrefetchTrainPipelineSparseDist,
    TrainPipelineSparseDist,
)
from torchrec.distributed.types import ShardingPlan

PIPELINES = ("none", "sparse_dist", "prefetch")
KERNEL_TO_PREFETCH = "fused_uvm_caching"  # tables in host memory, their hot rows in a GPU's

Forward = Callable[[Any], tuple[Tensor, Any]]  # a batch on the device -> (loss, output)


class Pipeline(Protocol):
    """What takes training steps: TorchRec's pipelines, or ByHand."""

    def progress(self, feed: Iterator[Batch]) -> Any:
        """Train the next batch; return the output of the model. Raises StopIteration: no more."""

    def detach(self) -> Any:
        """Let the model be called by hand until the next `progress`."""


@dataclass
class ByHand:
    """One step after another: what a pipeline does, without reading ahead."""

    optimizer: Any
    device: torch.device
    forward: Forward

    def progress(self, feed: Iterator[Batch]) -> Any:
        batch = next(feed).to(self.device)
        self.optimizer.zero_grad()
        loss, output = self.forward(batch)
        loss.backward()
        self.optimizer.step()
        return output

    def detach(self) -> None:
        """Do nothing: the model stays as it is."""


def build_pipeline(
    name: str, dmp: DistributedModelParallel, optimizer: Any, device: torch.device, forward: Forward
) -> Pipeline:
    """Return one of PIPELINES.

    Args:
        dmp: the sharded model, whose lookups the pipeline takes over.
        forward: how a batch goes through that model.
    """
    if name == "none":
        return ByHand(optimizer, device, forward)
    kind = {"sparse_dist": TrainPipelineSparseDist, "prefetch": PrefetchTrainPipelineSparseDist}
    pipeline: Pipeline = kind[name](dmp, optimizer, device, custom_model_fwd=forward)
    return pipeline


def choose_pipeline(name: str | None, device: str) -> str:
    """Return the pipeline that --pipeline and --device ask for: without a name the usual one.

    On a CPU that is `none`: the ids' exchange and the training run on the same cores.
    Raises: ValueError: the device has no such pipeline.
    """
    if name is None:
        return "sparse_dist" if device == "cuda" else "none"
    if name == "prefetch" and device != "cuda":
        raise ValueError("pipeline prefetch: needs --device cuda; on cpu take sparse_dist or none")
    return name


def keep_in_host_memory(plan: ShardingPlan) -> None:
    """Let fused tables lie in the host's memory with a cache on the GPU, which `prefetch` fills."""
    for tables in plan.plan.values():
        for sharding in tables.values():  # type: ignore[attr-defined]
            if sharding.compute_kernel == "fused":
                sharding.compute_kernel = KERNEL_TO_PREFETCH
