"""SASRec, sharded: attention over the rows of a user's items, from an EmbeddingCollection.

Knows: TorchRec, torch. Does not know: data, codecs (it takes whatever arguments of
DistributedModelParallel it is given). Initial weights depend on the seed and the sizes alone, never
on plan or rank, so that paired runs are paired. After Kang & McAuley 2018; trained by a softmax
over each next item and the random items of a batch, as in Klenitskiy & Vasilev 2023.
Shapes: B users, L items of each at most, D dim, K candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

TABLE, FEATURES = "t_item", ["history", "candidates"]
SHARDINGS = ("row_wise", "column_wise", "table_wise")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of a model and how it learns; two runs with equal fields start from equal weights."""

    dim: int
    blocks: int
    heads: int
    length: int
    lr: float  # of the items
    dense_lr: float
    init_scale: float  # items start uniform in +-init_scale
    seed: int

    @property
    def fused_params(self) -> dict[str, Any]:
        """TorchRec's settings of the optimizer that runs inside the embedding kernels."""
        optimizer = EmbOptimType.EXACT_ROWWISE_ADAGRAD
        return {"optimizer": optimizer, "learning_rate": self.lr, "eps": 1e-8}


class SASRec(nn.Module):
    """Predicts each user's next item. In training it returns a loss, else scores [B, K].

    The rows of `history` are what the model looks at and, in training, also what it predicts: the
    next item at each place. Those of `candidates` are what it chooses from: random items in
    training, all items in a test. Args: num_items: rows of the table.
    """

    def __init__(self, config: ModelConfig, num_items: int) -> None:
        super().__init__()
        self.length = config.length
        table = EmbeddingConfig(
            name=TABLE, embedding_dim=config.dim, num_embeddings=num_items, feature_names=FEATURES
        )
        self.items = EmbeddingCollection(tables=[table], device=torch.device("meta"))
        self.positions = nn.Parameter(config.init_scale * torch.randn(config.length, config.dim))
        self.blocks = nn.Sequential(
            *(Block(config.dim, config.heads) for _ in range(config.blocks)),
            nn.LayerNorm(config.dim),
        )

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        rows = self.items(features)
        history, candidates = rows["history"], rows["candidates"].values()
        padded = history.to_padded_dense(self.length + 1)
        looked_at = padded[:, :-1]
        states = self.blocks(looked_at * looked_at.shape[-1] ** 0.5 + self.positions)
        scores = states @ candidates.T
        if not self.training:
            users = torch.arange(len(scores), device=scores.device)
            return scores[users, history.lengths().long() - 1]
        right = (states * padded[:, 1:]).sum(dim=2, keepdim=True)
        ids = features["history"].to_padded_dense(self.length + 1, -1)[:, 1:]
        is_right = ids[:, :, None] == features["candidates"].values()
        scores = torch.cat([right, scores.masked_fill(is_right, -torch.inf)], dim=2)
        losses, counts = scores.logsumexp(dim=2) - right[:, :, 0], ids >= 0
        return (losses * counts).sum() / counts.sum()


class Block(nn.Module):
    """Attention to what came before, and a layer for each place alone. Args: dim, heads: sizes."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.inputs, self.output = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.place = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        parts = self.inputs(self.norm(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).reshape(batch, length, dim))
        return x + self.place(x)


def shard(
    config: ModelConfig, num_items: int, plan: str, arguments: dict[str, Any]
) -> DistributedModelParallel:
    """Return the sharded model with weights from the seed. Collective.

    Args: plan: one of SHARDINGS.  arguments: sharders and the like.
    """
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        model = SASRec(config, num_items)
    world_size = torch.distributed.get_world_size()
    generators: dict[str, Callable[..., Any]] = {
        "row_wise": row_wise,
        "column_wise": partial(column_wise, ranks=list(range(world_size))),
        "table_wise": partial(table_wise, rank=0),
    }
    # The dense kernel, which is taken if nobody says fused, pools rows on a CPU.
    (sharder,) = [s for s in arguments["sharders"] if s.module_type is EmbeddingCollection]
    of_items = construct_module_sharding_plan(
        model.items,
        {TABLE: generators[plan](compute_kernel="fused")},
        sharder=sharder,
        world_size=world_size,
        local_size=world_size,
        device_type="cpu",
    )
    plans = {"device": torch.device("cpu"), "plan": ShardingPlan({"items": of_items})}
    dmp = DistributedModelParallel(module=model, **plans, **arguments)
    _init_items(dmp, config, num_items)
    return dmp


def _init_items(dmp: DistributedModelParallel, config: ModelConfig, num_items: int) -> None:
    """Fill every shard on this rank with its part of the table that the seed defines."""
    generator = torch.Generator().manual_seed(config.seed)
    table = (2 * torch.rand(num_items, config.dim, generator=generator) - 1) * config.init_scale
    (weight,) = [value for name, value in dmp.state_dict().items() if f".{TABLE}." in name]
    for shard in weight.local_shards():
        row, column = shard.metadata.shard_offsets
        rows, columns = shard.tensor.shape
        shard.tensor.detach().copy_(table[row : row + rows, column : column + columns])


def build_optimizer(dmp: DistributedModelParallel, config: ModelConfig) -> CombinedOptimizer:
    """Join the optimizer inside the embedding kernels with Adam for the dense layers."""
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(dmp.named_parameters())),
        lambda parameters: torch.optim.Adam(parameters, lr=config.dense_lr),
    )
    dense.init_state()  # Adam has no state before a step, and a checkpoint is loaded in place
    return CombinedOptimizer([dmp.fused_optimizer, dense])
