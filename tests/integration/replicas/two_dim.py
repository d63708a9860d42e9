"""TorchRec's 2D parallelism on CPU: two groups of two ranks, each with all tables.

DMPCollection is for CUDA only, and places shards on numbered devices; `run_on_cpu` leaves both out.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torchrec.distributed.model_parallel as model_parallel
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DMPCollection
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingPlan, ShardingType

from tests.integration.small_model import CPU, OPTIMIZERS, Model, batch, dense_optimizer
from trec_qcomm import QComm

Hook = Callable[[list[torch.Tensor]], None]


def run_on_cpu() -> None:
    """Let this process make a DMPCollection on CPU."""
    code = DMPCollection.__init__.__code__
    constants = tuple("cpu" if c == "mtia" else c for c in code.co_consts)
    DMPCollection.__init__.__code__ = code.replace(co_consts=constants)
    if not hasattr(model_parallel._remote_device, "is_on_cpu"):
        make = model_parallel._remote_device

        def without_number(place: str) -> Any:
            return make(re.sub(r"cpu:\d+$", "cpu", place))

        without_number.is_on_cpu = True
        model_parallel._remote_device = without_number


def collection(qcomm: QComm, optimizer: str = "adagrad") -> DMPCollection:
    """Shard the small model over the two ranks of each group. Weights differ between groups."""
    run_on_cpu()
    torch.manual_seed(dist.get_rank())
    model = Model()
    plan = {
        "tw_first": table_wise(rank=0),
        "tw_last": table_wise(rank=1),
        "cw": column_wise(ranks=[1, 0]),
        "cw_shared": row_wise(),
        "dp": data_parallel(),
    }
    module_plan = construct_module_sharding_plan(
        model.ebc, plan, sharder=EmbeddingBagCollectionSharder(), world_size=2, local_size=2,
        device_type="cpu",
    )  # fmt: skip
    for parameter in module_plan.values():
        if parameter.sharding_type != ShardingType.DATA_PARALLEL.value:
            parameter.compute_kernel = EmbeddingComputeKernel.FUSED.value
    fused_params = {"optimizer": OPTIMIZERS[optimizer], "learning_rate": 0.1}
    return DMPCollection(
        module=model,
        device=CPU,
        plan=ShardingPlan({"ebc": module_plan}),
        world_size=dist.get_world_size(),
        sharding_group_size=2,
        global_pg=dist.group.WORLD,
        sharders=qcomm.sharders(fused_params=fused_params),
    )


def stock_hook(dmp: DMPCollection, every: int = 1) -> Hook:
    """Return stock's average of whole tensors as gloo can take it: a sum, and a division."""
    pg, calls = dmp.device_mesh.get_group("replicate"), []

    def hook(tensors: list[torch.Tensor]) -> None:
        calls.append(len(tensors))
        if (len(calls) + 1) // 2 % every == 0:  # weights, then optimizer states
            for tensor in tensors:
                dist.all_reduce(tensor, group=pg)
                tensor /= pg.size()

    return hook


def tables(dmp: DMPCollection) -> list[torch.Tensor]:
    """Return copies of this rank's weights and optimizer states."""
    lists = (dmp._default_ctx.weights_by_dtype, dmp._default_ctx.optimizer_tensors_by_dtype)
    return [t.clone() for by_dtype in lists for ts in by_dtype.values() for t in ts]


def train(dmp: DMPCollection, steps: range) -> list[list[torch.Tensor]]:
    """Train with a sync after each step; return the tables after each step."""
    optimizer, history = dense_optimizer(dmp), []
    for step in steps:
        loss = ((dmp(batch(step, 6)) - 1) ** 2).sum() / 8
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dmp.sync()
        history.append(tables(dmp))
    return history
