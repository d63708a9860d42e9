"""A library of the tests' own that extends TorchRec's row-wise shardings, as dynamicemb does.

Row i lies on rank i modulo the world size, its lookups count ids, and its module of sequences sends
the ids by itself. Tables have a multiple of the world size of rows.
"""

from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.dist_data import KJTAllToAll
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embedding_sharding import (
    BaseSparseFeaturesDist,
    KJTListSplitsAwaitable,
    bucketize_kjt_before_all2all,
)
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionSharder,
    ShardedEmbeddingBagCollection,
)
from torchrec.distributed.sharding.rw_sequence_sharding import RwSequenceEmbeddingSharding
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingSharding
from torchrec.distributed.sharding.sequence_sharding import SequenceShardingContext
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

ROW_WISE = "row_wise"
num_looked_up = torch.zeros((), dtype=torch.int64)  # ids, on this rank


class RoundRobinDist(BaseSparseFeaturesDist[KeyedJaggedTensor]):
    """Sends each id to the rank of its row. Args: blocks: [F], rows of each feature on a rank."""

    def __init__(self, pg: Any, blocks: Tensor, *, is_sequence: bool) -> None:
        super().__init__()
        self.world_size, self.blocks, self.is_sequence = pg.size(), blocks, is_sequence
        self._dist = KJTAllToAll(pg=pg, splits=[len(blocks)] * pg.size())
        self.unbucketize_permute_tensor = None

    def forward(self, features: KeyedJaggedTensor) -> Any:
        ids, blocks = features.values(), self.blocks.repeat_interleave(
            torch.tensor(features.length_per_key())
        )  # fmt: skip
        moved = KeyedJaggedTensor(
            keys=features.keys(),
            values=ids % self.world_size * blocks + ids // self.world_size,
            weights=features.weights_or_none(),
            lengths=features.lengths(),
            stride=features.stride(),
        )
        bucketized, self.unbucketize_permute_tensor = bucketize_kjt_before_all2all(
            moved, self.world_size, self.blocks, output_permute=self.is_sequence
        )
        return self._dist(bucketized)


class _RoundRobin:
    def create_input_dist(self, device: torch.device | None = None) -> RoundRobinDist:
        sizes, is_sequence = torch.tensor(self._get_feature_hash_sizes()), "Sequence" in self.name
        return RoundRobinDist(self._pg, sizes // self._pg.size(), is_sequence=is_sequence)

    def create_lookup(self, *args: Any, **options: Any) -> Any:
        lookup = super().create_lookup(*args, **options)
        lookup.register_forward_hook(count_ids)
        return lookup


def count_ids(_lookup: Any, args: tuple[Any, ...], _rows: Any) -> None:
    num_looked_up.add_(args[0].values().numel())


class RoundRobinBagSharding(_RoundRobin, RwPooledEmbeddingSharding):
    name = "Bag"


class RoundRobinSequenceSharding(_RoundRobin, RwSequenceEmbeddingSharding):
    name = "Sequence"


class CodesItself(RoundRobinSequenceSharding):
    """Sharding with an output dist of its own."""

    def create_output_dist(self, device=None):
        return super().create_output_dist(device)


class ShardedRoundRobinBags(ShardedEmbeddingBagCollection):
    @classmethod
    def create_embedding_bag_sharding(
        cls, sharding_infos, env, device=None, permute_embeddings=False, qcomm_codecs_registry=None
    ):
        if sharding_infos[0].param_sharding.sharding_type != ROW_WISE:
            return super().create_embedding_bag_sharding(
                sharding_infos, env, device, permute_embeddings, qcomm_codecs_registry
            )
        options = {"qcomm_codecs_registry": qcomm_codecs_registry}
        return RoundRobinBagSharding(sharding_infos, env, device, **options)


class ShardedRoundRobinSequences(ShardedEmbeddingCollection):
    def __init__(self, *args: Any, label: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.label = label

    @classmethod
    def create_embedding_sharding(
        cls, sharding_type, sharding_infos, env, device=None, qcomm_codecs_registry=None
    ):
        if sharding_type != ROW_WISE:
            return super().create_embedding_sharding(
                sharding_type, sharding_infos, env, device, qcomm_codecs_registry
            )
        options = {"qcomm_codecs_registry": qcomm_codecs_registry}
        return RoundRobinSequenceSharding(sharding_infos, env, device, **options)

    def input_dist(self, ctx, features):
        if self._has_uninitialized_input_dist:
            self._create_input_dist(input_feature_names=features.keys())
            self._has_uninitialized_input_dist = False
        with torch.no_grad():
            if self._features_order:
                features = features.permute(self._features_order, self._features_order_tensor)
            awaitables = []
            parts = features.split(self._feature_splits)
            for input_dist, part in zip(self._input_dists, parts, strict=True):
                awaitables.append(input_dist(part))
                order = getattr(input_dist, "unbucketize_permute_tensor", None)
                ctx.sharding_contexts.append(
                    SequenceShardingContext(
                        features_before_input_dist=part, unbucketize_permute_tensor=order
                    )
                )
        return KJTListSplitsAwaitable(awaitables, ctx)


class RoundRobinBagSharder(EmbeddingBagCollectionSharder):
    def shard(self, module, params, env, device=None, module_fqn=None):
        options = {"qcomm_codecs_registry": self.qcomm_codecs_registry, "module_fqn": module_fqn}
        return ShardedRoundRobinBags(module, params, env, self.fused_params, device, **options)


class RoundRobinSequenceSharder(EmbeddingCollectionSharder):
    def shard(self, module, params, env, device=None, module_fqn=None):
        options = {"qcomm_codecs_registry": self.qcomm_codecs_registry, "label": "row modulo rank"}
        return ShardedRoundRobinSequences(module, params, env, self.fused_params, device, **options)
