"""What TorchRec has for CUDA only: its prefetching pipeline and in-training embedding pruning.

Not run so far: no GPU could be had.
"""

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.itep_embeddingbag import ITEPEmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.train_pipeline import PrefetchTrainPipelineSparseDist
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.itep_embedding_modules import ITEPEmbeddingBagCollection
from torchrec.modules.itep_modules import GenericITEPModule
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trec_qcomm import Config, Identity, QComm, TableRule
from trec_qcomm.testing import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
NUM_ROWS, NUM_SAMPLES, NUM_STEPS = 100, 8, 6


def bags(device) -> EmbeddingBagCollection:
    config = EmbeddingBagConfig(
        name="t", embedding_dim=16, num_embeddings=NUM_ROWS, feature_names=["f"]
    )
    return EmbeddingBagCollection([config], device=device)


class Model(nn.Module):
    """(loss, loss), as pipelines want it."""

    def __init__(self, sparse: nn.Module) -> None:
        super().__init__()
        self.sparse, self.over = sparse, nn.Linear(16, 1)

    def forward(self, features):
        loss = self.over(self.sparse(features).values()).square().mean()
        return loss, loss.detach()


def losses(kind: str, *, coded: bool) -> list[float]:
    """Return the losses of a few steps on one GPU."""
    torch.manual_seed(0)
    device = torch.device("cuda:0")
    sparse: nn.Module = bags(device)
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.1}
    kernel = "fused"
    if kind == "prefetch":
        fused, kernel = {**fused, "prefetch_pipeline": True}, "fused_uvm_caching"
    else:
        pruning = GenericITEPModule(table_name_to_unpruned_hash_sizes={"t": 2 * NUM_ROWS})
        sparse = ITEPEmbeddingBagCollection(sparse, pruning)
    stock = EmbeddingBagCollectionSharder(fused_params=fused)
    rule = TableRule(tables=("*",), forward=Identity(), backward=Identity())
    ours = QComm(Config(embedding=(rule,))).sharders(fused_params=fused)
    where = construct_module_sharding_plan(
        bags(device),
        {"t": table_wise(rank=0, compute_kernel=kernel)},
        sharder=stock,
        world_size=1,
        local_size=1,
        device_type="cuda",
    )
    dmp = DistributedModelParallel(
        Model(sparse).to(device),
        device=device,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        plan=ShardingPlan({"sparse": where}),
        sharders=ours if coded else [stock, ITEPEmbeddingBagCollectionSharder(stock)],
    )
    optimizer = torch.optim.SGD(dmp.module.over.parameters(), lr=0.1)
    batches = [ids(step, device) for step in range(NUM_STEPS)]
    if kind == "prefetch":
        pipeline, feed = PrefetchTrainPipelineSparseDist(dmp, optimizer, device), iter(batches)
        return [float(pipeline.progress(feed)) for _ in batches]
    values = []
    for features in batches:
        optimizer.zero_grad()
        loss, _ = dmp(features)
        loss.backward()
        optimizer.step()
        values.append(float(loss))
    return values


def ids(step: int, device) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(step)
    values = torch.randint(NUM_ROWS, (NUM_SAMPLES,), generator=generator)
    lengths = torch.ones(NUM_SAMPLES, dtype=torch.int32)
    return KeyedJaggedTensor(["f"], values, lengths=lengths).to(device)


def both(kind: str):
    return losses(kind, coded=False), losses(kind, coded=True)


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["prefetch", "itep"])
def test_identity_equals_stock(kind):
    ((stock, ours),) = run_ranks(both, 1, kind)
    assert ours == stock
