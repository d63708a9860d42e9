"""Small sharded model of every shape that we support, and functions to train it on ranks."""

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    table_wise,
)
from torchrec.distributed.types import ShardingEnv, ShardingPlan, ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.integration.sharded_models.training import dense_optimizer as dense_optimizer
from tests.integration.sharded_models.training import qcomm_of as qcomm_of

CPU = torch.device("cpu")
NUM_IDS = 10
# (name, dim, features, pooling): a shared feature, two features, mean pooling, odd dim for DP.
TABLES = [
    ("tw_first", 16, ["f0"], PoolingType.SUM),
    ("tw_last", 8, ["f1", "f2"], PoolingType.MEAN),
    ("cw", 16, ["f3"], PoolingType.SUM),
    ("cw_shared", 8, ["f0"], PoolingType.MEAN),
    ("dp", 7, ["f4"], PoolingType.SUM),
]
FEATURES = ["f0", "f1", "f2", "f3", "f4"]
OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "dense": EmbOptimType.EXACT_SGD,  # not fused: an optimizer outside of the lookup
}


class Model(nn.Module):
    """Model of bags and one linear layer."""

    def __init__(self, tables=TABLES, num_ids=NUM_IDS) -> None:
        super().__init__()
        configs = [
            EmbeddingBagConfig(
                name=name,
                embedding_dim=dim,
                num_embeddings=num_ids,
                feature_names=list(features),
                pooling=pooling,
            )
            for name, dim, features, pooling in tables
        ]
        self.ebc = EmbeddingBagCollection(device=CPU, tables=configs)
        self.over = nn.Linear(sum(dim * len(features) for _, dim, features, _ in tables), 1)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return self.over(self.ebc(features).values())


def default_plan() -> dict:
    """Return a plan: TW on the first and the last rank, CW over both, DP."""
    last = dist.get_world_size() - 1
    return {
        "tw_first": table_wise(rank=0),
        "tw_last": table_wise(rank=last),
        "cw": column_wise(ranks=[last, 0]),
        "cw_shared": column_wise(ranks=[0, last]),
        "dp": data_parallel(),
    }


def shard(
    qcomm, *, optimizer="sgd", plan=None, sharders=None, wrapper=None, more_plans=None, **fused
) -> DistributedModelParallel:
    """Shard the model with our sharders, or with stock ones where qcomm is None."""
    torch.manual_seed(0)
    model = Model()
    world_size = dist.get_world_size()
    stock = EmbeddingBagCollectionSharder()
    module_plan = construct_module_sharding_plan(
        model.ebc,
        plan or default_plan(),
        sharder=stock,
        world_size=world_size,
        local_size=world_size,
        device_type="cpu",
    )
    if optimizer != "dense":  # on CPU torchrec would choose the dense kernel, trained from outside
        for parameter in module_plan.values():
            if parameter.sharding_type != ShardingType.DATA_PARALLEL.value:
                parameter.compute_kernel = EmbeddingComputeKernel.FUSED.value
    fused_params = {"optimizer": OPTIMIZERS[optimizer], "learning_rate": 0.1, **fused}
    options = {"data_parallel_wrapper": wrapper}
    if sharders is None and qcomm is None:
        sharders = [EmbeddingBagCollectionSharder(fused_params=fused_params)]
    elif sharders is None:
        sharders = qcomm.sharders(fused_params=fused_params)
        options = {"data_parallel_wrapper": qcomm.data_parallel_wrapper()}
    return DistributedModelParallel(
        module=model,
        device=CPU,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        plan=ShardingPlan({"ebc": module_plan} | (more_plans or {})),
        sharders=sharders,
        **options,
    )


def batch(step: int, num_samples: int) -> KeyedJaggedTensor:
    """Make bags of up to three ids; in every third step the table tw_last gets no id."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    lengths = torch.randint(0, 4, (len(FEATURES), num_samples), generator=generator)
    if step % 3 == 0:
        lengths[1:3] = 0
    values = torch.randint(NUM_IDS, (int(lengths.sum()),), generator=generator)
    return KeyedJaggedTensor(FEATURES, values, lengths=lengths.view(-1).to(torch.int32))


def batch_size(step: int) -> int:
    """Return an uneven batch size: less on the last rank, and 0 in every fourth step."""
    last = dist.get_rank() == dist.get_world_size() - 1 and dist.get_world_size() > 1
    return (0 if step % 4 == 3 else 2) if last else 6


def train(dmp, optimizer, steps: range) -> list[float]:
    """Train and return the losses of this rank."""
    losses = []
    for step in steps:
        out = dmp(batch(step, batch_size(step)))
        loss = ((out - 1) ** 2).sum() / 8
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def weights(dmp: DistributedModelParallel) -> dict[str, list[Tensor]]:
    """Return this rank's part of every parameter."""
    return {
        name: [shard.tensor.clone() for shard in value.local_shards()]
        if hasattr(value, "local_shards")
        else [value.clone()]
        for name, value in dmp.state_dict().items()
    }


def same_weights(a: dict[str, list[Tensor]], b: dict[str, list[Tensor]]) -> bool:
    return a.keys() == b.keys() and all(
        len(a[name]) == len(b[name]) and all(map(torch.equal, a[name], b[name])) for name in a
    )
