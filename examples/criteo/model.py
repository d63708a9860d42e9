"""TorchRec's DLRM, or DLRM-DCNv2: its weights from a seed, its optimizers.

Knows: DLRM, DistributedModelParallel. Does not know: data, codecs (it takes whatever sharders it is
given). Initial weights depend on (seed, table, shape) alone, never on the plan or the rank, so that
paired runs are paired. Shapes: tables of [rows, D].
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from data.dataset import FEATURES
from data.malformed import NUM_DENSE
from dcn import DCN, dim_of_rows
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.tensor import DTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.clipping import GradientClipping, GradientClippingOptimizer
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

MODELS = ("dlrm", "dcn")
EMBEDDING_OPTIMIZERS = ("rowwise_adagrad", "sgd")
DENSE_OPTIMIZERS = ("adam", "adagrad", "sgd")
_EPS = 1e-8


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of a model and how it learns; two runs with equal fields start from equal weights."""

    model: str = "dlrm"  # one of MODELS
    embedding_dim: int
    dense_arch: tuple[int, ...]  # hidden layers; a last one of embedding_dim is added
    over_arch: tuple[int, ...]  # hidden layers; a last one of 1 is added
    embedding_optimizer: str
    dense_optimizer: str
    lr: float
    dense_lr: float
    init_scale: float  # embeddings start uniform in +-init_scale
    seed: int
    cross_layers: int = 3  # of a dcn, and the rank of their matrices
    cross_rank: int = 64
    clip_grad_norm: float | None = None  # largest norm of all gradients of the dense layers
    mixed_dims: bool = False  # embedding_dim is the largest dim, smaller tables have smaller ones

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> ModelConfig:
        """Return the model of options of train.py, by their names; --scale replaces its sizes."""
        values = {field.name: getattr(options, field.name) for field in fields(cls)}
        scaled = {} if options.scale is None else mlperf_sizes(options.scale)
        return cls(**values | scaled)

    def dim(self, num_rows: int) -> int:
        """Return the columns of a table of so many rows."""
        if self.mixed_dims:
            return dim_of_rows(num_rows, self.embedding_dim)
        return self.embedding_dim

    @property
    def fused_params(self) -> dict[str, Any]:
        """TorchRec's settings of the optimizer that runs inside the embedding kernels."""
        fused = {
            "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            "sgd": EmbOptimType.EXACT_SGD,
        }
        optimizer = fused[self.embedding_optimizer]
        return {"optimizer": optimizer, "learning_rate": self.lr, "eps": _EPS}


def mlperf_sizes(scale: float) -> dict[str, Any]:
    """Return the sizes of MLPerf's DLRMv2 times `scale`, in multiples of 4, by field."""

    def sizes(*numbers: int) -> tuple[int, ...]:
        return tuple(max(4, 4 * round(scale * number / 4)) for number in numbers)

    embedding_dim, cross_rank = sizes(128, 512)
    return {
        "embedding_dim": embedding_dim,
        "dense_arch": sizes(512, 256),  # then embedding_dim
        "over_arch": sizes(1024, 1024, 512, 256),  # then 1
        "cross_layers": 3,
        "cross_rank": cross_rank,
    }


def build_model(config: ModelConfig, num_embeddings: Sequence[int]) -> DLRMTrain:
    """Return the unsharded model: dense layers from the seed, tables on the device meta."""
    tables = [
        EmbeddingBagConfig(
            name=f"t_{feature}",
            embedding_dim=config.dim(rows),
            num_embeddings=rows,
            feature_names=[feature],
        )
        for feature, rows in zip(FEATURES, num_embeddings, strict=True)
    ]
    collection = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        return DLRMTrain(
            _build_dcn(collection, config)
            if config.model == "dcn"
            else _build_dlrm(collection, config)
        )


def _build_dlrm(collection: EmbeddingBagCollection, config: ModelConfig) -> DLRM:
    return DLRM(
        collection,
        dense_in_features=NUM_DENSE,
        dense_arch_layer_sizes=[*config.dense_arch, config.embedding_dim],
        over_arch_layer_sizes=[*config.over_arch, 1],
    )


def _build_dcn(collection: EmbeddingBagCollection, config: ModelConfig) -> DCN:
    return DCN(
        collection,
        num_dense=NUM_DENSE,
        dense_arch=(*config.dense_arch, config.embedding_dim),
        over_arch=(*config.over_arch, 1),
        num_layers=config.cross_layers,
        low_rank=config.cross_rank,
    )


def init_embeddings(dmp: DistributedModelParallel, config: ModelConfig) -> None:
    """Fill every shard on this rank with its part of the table that the seed defines."""
    weights = {k: v for k, v in dmp.state_dict().items() if ".embedding_bags." in k}
    for index, name in enumerate(sorted(weights)):
        shape, shards = _local_shards(weights[name])
        if not shards:
            continue
        table = _initial_table(*shape, config, index)
        for shard, (row, column) in shards:
            rows, columns = shard.shape
            shard.detach().copy_(table[row : row + rows, column : column + columns])


def build_optimizer(dmp: DistributedModelParallel, config: ModelConfig) -> CombinedOptimizer:
    """Join the optimizers of fused tables, of DATA_PARALLEL tables and of the dense layers."""
    loose = dict(in_backward_optimizer_filter(dmp.named_parameters()))
    tables = {name: p for name, p in loose.items() if ".embedding_bags." in name}
    dense = {name: p for name, p in loose.items() if name not in tables}
    parts: list[KeyedOptimizer | tuple[str, KeyedOptimizer]] = [dmp.fused_optimizer]
    if tables:
        parts.append(KeyedOptimizerWrapper(tables, lambda p: _table_optimizer(p, config)))
    of_dense = KeyedOptimizerWrapper(dense, lambda p: dense_optimizer(p, config))
    parts.append(_clipped(of_dense, config.clip_grad_norm))
    return CombinedOptimizer(parts)


def _clipped(optimizer: KeyedOptimizer, max_norm: float | None) -> KeyedOptimizer:
    """Return an optimizer that clips first.

    Every rank has equal averages of the gradients then, so the norms are equal without a word.
    """
    if max_norm is None:
        return optimizer
    return GradientClippingOptimizer(optimizer, GradientClipping.NORM, max_norm)


def _table_optimizer(parameters: Any, config: ModelConfig) -> torch.optim.Optimizer:
    if config.embedding_optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=config.lr)
    optimizer: torch.optim.Optimizer = RowWiseAdagrad(parameters, lr=config.lr, eps=_EPS)
    return optimizer


def dense_optimizer(parameters: Any, config: ModelConfig) -> torch.optim.Optimizer:
    """Return the optimizer of the dense layers."""
    if config.dense_optimizer == "adagrad":
        return torch.optim.Adagrad(parameters, lr=config.dense_lr, eps=_EPS)
    if config.dense_optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=config.dense_lr)
    return torch.optim.Adam(parameters, lr=config.dense_lr)


def _initial_table(num_rows: int, dim: int, config: ModelConfig, index: int) -> Tensor:
    """Return [num_rows, dim] uniform in +-init_scale, the same on every rank."""
    generator = torch.Generator().manual_seed(config.seed * len(FEATURES) + index)
    unit = torch.rand((num_rows, dim), generator=generator)
    return (2 * unit - 1) * config.init_scale


def _local_shards(
    weight: Tensor | ShardedTensor,
) -> tuple[tuple[int, int], list[tuple[Tensor, tuple[int, int]]]]:
    """Return the shape of a table, and its shards here with the row and column they begin at."""
    if isinstance(weight, DTensor):  # 2D parallelism
        parts = weight.to_local()
        num_rows, dim = weight.shape
        places = zip(parts.local_shards(), parts.local_offsets(), strict=False)  # also of none
        return (num_rows, dim), [(shard, (row, column)) for shard, (row, column) in places]
    if not isinstance(weight, ShardedTensor):
        num_rows, dim = weight.shape
        return (num_rows, dim), [(weight, (0, 0))]
    local = []
    for shard in weight.local_shards():
        row, column = shard.metadata.shard_offsets
        local.append((shard.tensor, (row, column)))
    num_rows, dim = weight.metadata().size
    return (num_rows, dim), local
