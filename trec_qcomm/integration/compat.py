"""Every name of TorchRec that the package uses, in one place. Version differences live here.

Written against torchrec 1.8.0, and run with no other version so far.
"""

from typing import Any

from torch import Tensor
from torchrec.distributed.comm_ops import get_gradient_division, get_use_sync_collectives
from torchrec.distributed.embedding_sharding import (
    BaseEmbeddingDist,
    BaseSparseFeaturesDist,
    EmbeddingSharding,
    EmbeddingShardingContext,
    EmbeddingShardingInfo,
)
from torchrec.distributed.embedding_types import GroupedEmbeddingConfig
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionSharder,
    ShardedEmbeddingBagCollection,
)
from torchrec.distributed.model_parallel import (
    DefaultDataParallelWrapper,
    DistributedModelParallel,
)
from torchrec.distributed.sharding.cw_sharding import CwPooledEmbeddingSharding
from torchrec.distributed.sharding.tw_sharding import (
    TwPooledEmbeddingDist,
    TwPooledEmbeddingSharding,
    TwSparseFeaturesDist,
)
from torchrec.distributed.types import (
    Awaitable,
    CommOp,
    ModuleSharder,
    ParameterSharding,
    QuantizedCommCodec,
    QuantizedCommCodecs,
    ShardingEnv,
    ShardingType,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = [
    "Awaitable",
    "BaseEmbeddingDist",
    "BaseSparseFeaturesDist",
    "CommOp",
    "CwPooledEmbeddingSharding",
    "DefaultDataParallelWrapper",
    "DistributedModelParallel",
    "EmbeddingBagCollection",
    "EmbeddingBagCollectionSharder",
    "EmbeddingSharding",
    "EmbeddingShardingContext",
    "EmbeddingShardingInfo",
    "GroupedEmbeddingConfig",
    "KeyedJaggedTensor",
    "ModuleSharder",
    "ParameterSharding",
    "QuantizedCommCodec",
    "QuantizedCommCodecs",
    "ShardedEmbeddingBagCollection",
    "ShardingEnv",
    "ShardingType",
    "TwPooledEmbeddingDist",
    "TwPooledEmbeddingSharding",
    "TwSparseFeaturesDist",
    "get_gradient_division",
    "get_use_sync_collectives",
    "input_dist_tensors",
]


def input_dist_tensors(awaitable: Any) -> list[tuple[list[int], Tensor]]:
    """What an input dist sends: each tensor with its split over the ranks.

    TrainPipelineSparseDist replaces the awaitable by a dataclass with public names.
    """
    splits = getattr(awaitable, "input_splits", None)
    if splits is not None:
        return list(zip(splits, awaitable.input_tensors, strict=True))
    return list(zip(awaitable._input_splits, awaitable._input_tensors, strict=True))
