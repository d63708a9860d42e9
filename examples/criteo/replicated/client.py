"""Trainings of TorchRec's 2D parallelism on played ranks, for quality.study.

Knows: DMPCollection, train.py's model. Does not know: seeds of a study, its records.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torchrec.distributed.model_parallel as model_parallel
from data.dataset import Batches
from emulation.client import EmulatedModel, EmulatedTrainer
from model import ModelConfig, build_model, build_optimizer, init_embeddings
from plans.files import build_plan, load_plan
from torch import Tensor
from torchrec.distributed.model_parallel import DMPCollection
from trainer import Trainer

from trec_qcomm import Config, QComm


def run_on_cpu() -> None:
    """Let this process make a DMPCollection on CPU.

    TorchRec refuses that, and numbers the devices of shards, which a CPU does not have.
    """
    code = DMPCollection.__init__.__code__
    constants = tuple("cpu" if c == "mtia" else c for c in code.co_consts)
    DMPCollection.__init__.__code__ = code.replace(co_consts=constants)
    make = model_parallel._remote_device
    if not hasattr(make, "is_on_cpu"):

        def without_number(place: str) -> Any:
            return make(re.sub(r"cpu:\d+$", "cpu", place))

        without_number.is_on_cpu = True  # type: ignore[attr-defined]
        model_parallel._remote_device = without_number


def synced_steps(trainer: Trainer, rows: Batches, num_steps: int) -> None:
    """Take so many steps with a sync after each; at the end all replicas are equal."""
    sync = trainer.dmp.coded_sync
    for _ in range(num_steps):
        trainer.train_step(rows)
        trainer.dmp.sync()
    if sync is not None:
        sync.average()
        sync.check()


@dataclass(frozen=True)
class ReplicatedTrainer(EmulatedTrainer):
    """Callback of a study: train on so many replicas of all tables.

    A config without `sync` averages as stock does.
    """

    replicas: int = 2

    @property
    def setup(self) -> dict[str, Any]:
        """All that must be equal for two trainings to be compared."""
        return super().setup | {"replicas": self.replicas}

    def check(self, configs: Any) -> None:
        """Raise ValueError where ranks do not divide, or a config does not fit."""
        if self.options.ranks % self.replicas or self.options.ranks == self.replicas:
            ranks = self.options.ranks
            raise ValueError(f"ranks: {ranks} are not {self.replicas} groups of 2 ranks or more")
        super().check(configs)

    def __call__(self, config: Config, seed: int, perturbation: float) -> EmulatedModel:
        """Return the model that a config gives from a seed."""
        run_on_cpu()
        return self.run(config, seed, perturbation, program=synced_steps)

    def shard(
        self, options: argparse.Namespace, num_embeddings: list[int], config: Config
    ) -> Trainer:
        """Return this rank's part of its replica. Collective."""
        settings, device = ModelConfig.from_options(options), torch.device("cpu")
        model, qcomm = build_model(settings, num_embeddings), QComm(config)
        size = dist.get_world_size() // self.replicas
        place = {"world_size": size, "ranks_per_node": size, "device_type": "cpu"}
        dmp = DMPCollection(
            module=model,
            device=device,
            plan=build_plan(model, load_plan(options.plan), **place),
            world_size=dist.get_world_size(),
            sharding_group_size=size,
            global_pg=dist.group.WORLD,
            **qcomm.dmp_arguments(fused_params=settings.fused_params),
        )
        init_embeddings(dmp, settings)
        dmp.coded_sync = None if config.sync is None else qcomm.sync(dmp)
        hook = _stock_hook(dmp) if dmp.coded_sync is None else dmp.coded_sync.hook
        dmp.set_all_reduce_hook(hook)
        return Trainer(dmp, build_optimizer(dmp, settings), device, qcomm)


def _stock_hook(dmp: DMPCollection) -> Any:
    """Return stock's average of whole tensors as CPUs can take it: a sum, and a division."""
    pg = dmp.device_mesh.get_group("replicate")

    def hook(tensors: list[Tensor]) -> None:
        for tensor in tensors:
            dist.all_reduce(tensor, group=pg)
            tensor.div_(pg.size())

    return hook
