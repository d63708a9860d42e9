"""TorchRec's 2D parallelism on CPU: two groups of two ranks, each with all tables.

DMPCollection is for CUDA only, and places shards on numbered devices; `run_on_cpu` leaves both out.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torchrec.distributed.model_parallel as model_parallel
from torch import Tensor
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DMPCollection
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.integration.small_model import CPU, OPTIMIZERS, Model, dense_optimizer
from trec_qcomm import QComm

Hook = Callable[[list[Tensor]], None]
NUM_IDS, NUM_SAMPLES = 20, 4
DIMS = {"a": 8, "b": 8, "c": 4, "rows": 8}  # a, b and c on the first rank, in one kernel
FEATURES = list(DIMS)


def batch(step: int) -> KeyedJaggedTensor:
    """Make bags of up to two ids, others on each rank."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    lengths = torch.randint(0, 3, (len(FEATURES) * NUM_SAMPLES,), generator=generator)
    values = torch.randint(NUM_IDS, (int(lengths.sum()),), generator=generator)
    return KeyedJaggedTensor(FEATURES, values, lengths=lengths.to(torch.int32))


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
    tables = [(name, dim, [name], PoolingType.SUM) for name, dim in DIMS.items()]
    model = Model(tables, NUM_IDS)
    plan = {name: table_wise(rank=0) for name in "abc"} | {"rows": row_wise()}
    module_plan = construct_module_sharding_plan(
        model.ebc, plan, sharder=EmbeddingBagCollectionSharder(), world_size=2, local_size=2,
        device_type="cpu",
    )  # fmt: skip
    for parameter in module_plan.values():
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


def stock_hook(dmp: DMPCollection) -> Hook:
    """Return stock's average of whole tensors as gloo can take it: a sum, and a division."""
    pg = dmp.device_mesh.get_group("replicate")

    def hook(tensors: list[Tensor]) -> None:
        for tensor in tensors:
            dist.all_reduce(tensor, group=pg)
            tensor /= pg.size()

    return hook


def live_tables(dmp: DMPCollection) -> list[Tensor]:
    """Return this rank's weights and optimizer states."""
    lists = (dmp._default_ctx.weights_by_dtype, dmp._default_ctx.optimizer_tensors_by_dtype)
    return [tensor for by_dtype in lists for ts in by_dtype.values() for tensor in ts]


def tables(dmp: DMPCollection) -> list[Tensor]:
    """Return copies of them."""
    return [tensor.clone() for tensor in live_tables(dmp)]


def train(dmp: DMPCollection, steps: range) -> list[list[Tensor]]:
    """Train with a sync after each step; return the tables after each step."""
    optimizer, history = dense_optimizer(dmp), []
    for step in steps:
        loss = ((dmp(batch(step)) - 1) ** 2).sum() / 8
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dmp.sync()
        history.append(tables(dmp))
    return history
