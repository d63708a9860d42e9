"""Towers: tables of one node under an interaction module.

TorchRec tells the DDP around an interaction its device as if it were a GPU, which on CPU is an
error; `run_on_cpu` leaves that out, for stock sharders and ours alike.
"""

from dataclasses import replace
from typing import Any

import torch
import torchrec.distributed.embedding_tower_sharding as tower_sharding
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from tests.integration.sharded_models.cases import MODULES, Case

WIDTH = 8  # numbers that a tower makes of a sample


class Interaction(nn.Module):
    """Module from embeddings to WIDTH numbers a sample."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.over = nn.Linear(sum(t.dim * len(t.features) for t in case.tables), WIDTH)

    def forward(self, embeddings: KeyedTensor) -> Tensor:
        return self.over(embeddings.values())


class TowerModel(nn.Module):
    """Model of one tower with all tables, or of two with every other table, for the two nodes."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        if case.module == "tower":
            self.sparse, num_towers = tower(case), 1
        else:
            halves = [replace(case, tables=case.tables[n::2]) for n in range(2)]
            self.sparse, num_towers = EmbeddingTowerCollection([tower(h) for h in halves]), 2
        self.scale = nn.Parameter(torch.ones(num_towers * WIDTH))

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        return {"all": self.sparse(features) * self.scale}


def tower(case: Case) -> EmbeddingTower:
    return EmbeddingTower(MODULES["ebc"](case), Interaction(case))


def run_on_cpu() -> None:
    """Leave the device out in this process."""
    tower_sharding.DistributedDataParallel = _without_device


def _without_device(*args: Any, device_ids: Any = None, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(*args, **options)
