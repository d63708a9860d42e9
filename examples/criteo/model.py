"""TorchRec's DLRM, or its DLRM-DCNv2: weights from a seed, optimizers.

Knows: DLRM, DistributedModelParallel. Does not know: data, codecs (it takes whatever sharders it is
given). Initial weights depend on (seed, table, shape) alone, never on the plan or the rank, so that
paired runs are paired. Shapes: tables of [rows, D].
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from data.dataset import FEATURES
from data.tsv import NUM_DENSE
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

MODELS = ("dlrm", "dcn")
_EPS = 1e-8
EMBEDDING_OPTIMIZERS: dict[str, Any] = {
    "rowwise_adagrad": partial(RowWiseAdagrad, eps=_EPS),
    "sgd": torch.optim.SGD,
}
DENSE_OPTIMIZERS: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adagrad": partial(torch.optim.Adagrad, eps=_EPS),
    "sgd": torch.optim.SGD,
}


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

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> ModelConfig:
        """Return the model of options of train.py, by their names; --scale replaces its sizes."""
        names = {field.name for field in fields(cls)}
        values = {name: value for name, value in vars(options).items() if name in names}
        return cls(**values | ({} if options.scale is None else mlperf_sizes(options.scale)))

    @property
    def fused_params(self) -> dict[str, Any]:
        """TorchRec's settings of the optimizer that runs inside the embedding kernels."""
        is_sgd = self.embedding_optimizer == "sgd"
        optimizer = EmbOptimType.EXACT_SGD if is_sgd else EmbOptimType.EXACT_ROWWISE_ADAGRAD
        return {"optimizer": optimizer, "learning_rate": self.lr, "eps": _EPS}


def mlperf_sizes(scale: float) -> dict[str, Any]:
    """Return the sizes of MLPerf's DLRMv2 times `scale`, in multiples of 4, by field."""

    def sizes(*numbers: int) -> tuple[int, ...]:
        return tuple(max(4, 4 * round(scale * number / 4)) for number in numbers)

    embedding_dim, cross_rank = sizes(128, 512)
    dense_arch, over_arch = sizes(512, 256), sizes(1024, 1024, 512, 256)
    return {
        "embedding_dim": embedding_dim, "cross_rank": cross_rank,
        "dense_arch": dense_arch, "over_arch": over_arch,
    }  # fmt: skip


def build_model(config: ModelConfig, num_embeddings: Sequence[int]) -> DLRMTrain:
    """Return the unsharded model: dense layers from the seed, tables on the device meta."""
    tables = [
        EmbeddingBagConfig(
            name=f"t_{feature}",
            embedding_dim=config.embedding_dim,
            num_embeddings=rows,
            feature_names=[feature],
        )
        for feature, rows in zip(FEATURES, num_embeddings, strict=True)
    ]
    sizes: dict[str, Any] = {
        "dense_in_features": NUM_DENSE,
        "dense_arch_layer_sizes": [*config.dense_arch, config.embedding_dim],
        "over_arch_layer_sizes": [*config.over_arch, 1],
    }
    if config.model == "dcn":
        sizes |= {"dcn_num_layers": config.cross_layers, "dcn_low_rank_dim": config.cross_rank}
    make = DLRM_DCN if config.model == "dcn" else DLRM
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        collection = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        return DLRMTrain(make(collection, **sizes))


def init_embeddings(dmp: DistributedModelParallel, config: ModelConfig) -> None:
    """Fill every shard on this rank with its part of the table that the seed defines."""
    weights = {k: v for k, v in dmp.state_dict().items() if ".embedding_bags." in k}
    for index, name in enumerate(sorted(weights)):
        weight = weights[name]
        if not isinstance(weight, ShardedTensor):  # data parallel
            weight.detach().copy_(initial_table(*weight.shape, config, index))
            continue
        for shard in weight.local_shards():
            table = initial_table(*weight.metadata().size, config, index)
            row, column = shard.metadata.shard_offsets
            rows, columns = shard.tensor.shape
            shard.tensor.detach().copy_(table[row : row + rows, column : column + columns])


def initial_table(num_rows: int, dim: int, config: ModelConfig, index: int) -> Tensor:
    """Return [num_rows, dim] uniform in +-init_scale, the same on every rank."""
    generator = torch.Generator().manual_seed(config.seed * len(FEATURES) + index)
    unit = torch.rand((num_rows, dim), generator=generator)
    return (2 * unit - 1) * config.init_scale


def build_optimizer(dmp: DistributedModelParallel, config: ModelConfig) -> CombinedOptimizer:
    """Join the optimizers of fused tables, of DATA_PARALLEL tables and of the dense layers."""
    loose = dict(in_backward_optimizer_filter(dmp.named_parameters()))
    tables = {name: p for name, p in loose.items() if ".embedding_bags." in name}
    dense = {name: p for name, p in loose.items() if name not in tables}
    of_tables = partial(EMBEDDING_OPTIMIZERS[config.embedding_optimizer], lr=config.lr)
    of_dense = partial(DENSE_OPTIMIZERS[config.dense_optimizer], lr=config.dense_lr)
    parts: list[KeyedOptimizer] = [dmp.fused_optimizer]
    if tables:
        parts.append(KeyedOptimizerWrapper(tables, of_tables))
    parts.append(KeyedOptimizerWrapper(dense, of_dense))
    return CombinedOptimizer(parts)
