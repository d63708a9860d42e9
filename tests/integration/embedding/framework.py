"""Stand-in for the main module of TorchEasyRec: it plans, shards and trains by itself.

The order of its calls is that of tzrec/main.py and tzrec/utils/dist_util.py in November 2026; the
model and the rows are made up. It is no part of TorchEasyRec, which no package registry has.
"""

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torchrec.distributed import DistributedModelParallel as _DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.sharding_plan import get_default_sharders as _get_default_sharders
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from tests.integration import small_model

CPU = torch.device("cpu")


class TrainWrapper(small_model.Model):
    """Model whose output is a loss and its predictions."""

    def forward(self, batch):
        predictions = super().forward(batch)
        return (predictions - 1).square().mean(), predictions


def get_default_sharders():
    return [s for s in _get_default_sharders() if "EmbeddingCollection" not in str(s)]


def DistributedModelParallel(module, **arguments):
    model = _DistributedModelParallel(module, **arguments)
    for _, m in model.named_modules():
        if hasattr(m, "_has_uninitialized_input_dist"):
            m._has_uninitialized_input_dist = True
    return model


def train_and_evaluate(pipeline_config_path):
    """Train by a config file, and return the losses of this rank."""
    config = json.loads(Path(pipeline_config_path).read_text())
    torch.manual_seed(0)
    model = TrainWrapper()
    sparse = list(model.ebc.parameters())
    apply_optimizer_in_backward(torch.optim.SGD, sparse, {"lr": 0.1})
    topology = Topology(dist.get_world_size(), "cpu")
    planner = EmbeddingShardingPlanner(topology=topology, batch_size=config["batch_size"])
    sharders = get_default_sharders()
    plan = planner.collective_plan(model, sharders, dist.GroupMember.WORLD)
    model = DistributedModelParallel(module=model, device=CPU, sharders=sharders, plan=plan)
    dense = dict(in_backward_optimizer_filter(model.named_parameters()))
    dense = KeyedOptimizerWrapper(dense, lambda p: torch.optim.SGD(p, lr=0.1))
    optimizer = CombinedOptimizer([model.fused_optimizer, dense])
    pipeline = TrainPipelineSparseDist(model, optimizer, CPU, execute_all_batches=True)
    steps = range(config["num_steps"])
    rows = iter([small_model.batch(step, config["batch_size"]) for step in steps])
    return [pipeline.progress(rows)[0].item() for _ in steps]
