"""The emulated exchange trains as two real ranks do, bit for bit."""

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.comm.test_emulate import (
    DIMS,
    NUM_IDS,
    Emulation,
    all_ids,
    exchange_of,
    ids_of,
    loss_of,
)
from trec_qcomm import (
    Config,
    ErrorBounded,
    ForwardMask,
    Identity,
    QComm,
    Rowwise,
    TableRule,
    TopK,
)
from trec_qcomm.testing import run_ranks

CPU = torch.device("cpu")
LR = 0.125  # a power of two: lr * gradient is exact, so a fused multiply-add makes no difference
NUM_STEPS = 6
FEATURES = [f"f{k}" for k in range(len(DIMS))]


def real_model() -> nn.Module:
    torch.manual_seed(3)
    tables = [
        EmbeddingBagConfig(
            name=f"t_{feature}", embedding_dim=dim, num_embeddings=NUM_IDS, feature_names=[feature]
        )
        for feature, dim in zip(FEATURES, DIMS, strict=True)
    ]
    return EmbeddingBagCollection(device=CPU, tables=tables)


def shard(model: nn.Module, qcomm: QComm) -> DistributedModelParallel:
    plan = construct_module_sharding_plan(
        model,
        {"t_f0": table_wise(rank=0), "t_f1": table_wise(rank=1), "t_f2": table_wise(rank=1)},
        sharder=EmbeddingBagCollectionSharder(),
        world_size=2,
        local_size=2,
        device_type="cpu",
    )
    for parameter in plan.values():
        parameter.compute_kernel = EmbeddingComputeKernel.FUSED.value
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LR}
    return DistributedModelParallel(
        module=model,
        device=CPU,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        plan=ShardingPlan({"": plan}),
        sharders=qcomm.sharders(fused_params=fused),
    )


def own_tables(dmp: DistributedModelParallel) -> dict[str, Tensor]:
    """Return {feature: table} of this rank."""
    shards = {name: value.local_shards() for name, value in dmp.state_dict().items()}
    named = {name.split(".")[1].removeprefix("t_"): local for name, local in shards.items()}
    return {feature: local[0].tensor.clone() for feature, local in named.items() if local}


def train_for_real(config: Config) -> tuple[dict[str, Tensor], list[Tensor], dict[str, Tensor]]:
    """Return this rank's tables, its outputs [B_r, W] of each step, and its tables afterwards."""
    dmp, outs = shard(real_model(), QComm(config)), []
    before = own_tables(dmp)
    for step in range(NUM_STEPS):
        ids = ids_of(step, dist.get_rank())
        lengths = torch.ones(ids.numel(), dtype=torch.int32)
        out = dmp(KeyedJaggedTensor(FEATURES, ids.reshape(-1), lengths=lengths)).to_dict()
        joined = torch.cat([out[feature] for feature in FEATURES], dim=1)
        loss_of(joined).backward()
        outs.append(joined.detach())
    return before, outs, own_tables(dmp)


def rules(share: float, **codecs) -> Config:
    return Config(embedding=(TableRule(tables=("*",), unique_bags=bool(share), **codecs),))


PAIRS = [
    (Identity(), Identity()),
    (ErrorBounded(0.03), Rowwise(4)),
    (Rowwise(2), ErrorBounded(0.05)),
    (TopK(density=0.25), ForwardMask()),
]


def train_all_for_real():
    return [
        train_for_real(rules(share, forward=forward, backward=backward))
        for forward, backward in PAIRS
        for share in (0.0, 1.0)
    ]


@pytest.mark.dist
def test_outputs_and_weights_equal_those_of_two_ranks():
    cases = [(*pair, share) for pair in PAIRS for share in (0.0, 1.0)]
    per_rank = run_ranks(train_all_for_real, 2)
    starts: list[Tensor] = []
    trained: list[Tensor] = []
    for number, (forward, backward, share) in enumerate(cases):
        real = [results[number] for results in per_rank]
        before, after = ({**real[0][k], **real[1][k]} for k in (0, 2))
        start = [before[feature] for feature in FEATURES]
        starts.append(torch.cat([table.view(-1) for table in start]))
        emulated = Emulation(start, exchange_of(forward, backward), share=share)
        for step in range(NUM_STEPS):
            out = emulated.step(all_ids(step), LR)
            assert torch.equal(out, torch.cat([outs[step] for _, outs, _ in real])), (number, step)
        for feature, table in zip(FEATURES, emulated.tables, strict=True):
            assert torch.equal(table.detach(), after[feature]), (number, feature)
            assert not torch.equal(table.detach(), before[feature]), (number, feature)
        trained.append(torch.cat([table.detach().view(-1) for table in emulated.tables]))
    assert all(torch.equal(tables, starts[0]) for tables in starts)
    # The codecs did something: what exact communication trains is another model.
    assert not any(torch.equal(tables, trained[0]) for tables in trained[2:])
