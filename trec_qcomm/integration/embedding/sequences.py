"""Sharder and sharded module of EmbeddingCollection (unpooled rows)."""

from typing import Any

import torch

from trec_qcomm.integration.compat import (
    Awaitable,
    EmbeddingCollection,
    EmbeddingCollectionSharder,
    EmbeddingSharding,
    EmbeddingShardingInfo,
    ParameterSharding,
    QuantizedCommCodecs,
    ShardedEmbeddingCollection,
    ShardingEnv,
)
from trec_qcomm.integration.embedding.ids import hand_over_ids
from trec_qcomm.integration.embedding.shardings import SEQUENCE
from trec_qcomm.integration.embedding.wiring import wire
from trec_qcomm.integration.session import Session


class CodedShardedEmbeddingCollection(ShardedEmbeddingCollection):
    """ShardedEmbeddingCollection whose rows are coded."""

    @classmethod
    def create_embedding_sharding(
        cls,
        sharding_type: str,
        sharding_infos: list[EmbeddingShardingInfo],
        env: ShardingEnv,
        device: torch.device | None = None,
        qcomm_codecs_registry: dict[str, QuantizedCommCodecs] | None = None,
    ) -> EmbeddingSharding[Any, Any, Any, Any]:
        """Ours for all sharding types that communicate rows, TorchRec's for DATA_PARALLEL.

        Raises: ValueError: a sharding type that TorchRec does not have for sequences.
        """
        sharding = SEQUENCE.get(sharding_type)
        if sharding is None:
            return super().create_embedding_sharding(
                sharding_type, sharding_infos, env, device, qcomm_codecs_registry
            )
        made: EmbeddingSharding[Any, Any, Any, Any] = sharding(
            sharding_infos, env, device, qcomm_codecs_registry=qcomm_codecs_registry
        )
        return made

    def input_dist(self, ctx: Any, features: Any) -> Awaitable[Awaitable[Any]]:
        """As the base class; the output dist will want to know how many ids went where."""
        awaitable = super().input_dist(ctx, features)
        hand_over_ids(ctx.sharding_contexts, self._input_dists)
        return awaitable


class CodedEmbeddingCollectionSharder(EmbeddingCollectionSharder):
    """Drop-in for TorchRec's EmbeddingCollectionSharder."""

    def __init__(self, session: Session, **options: Any) -> None:
        """options: those of TorchRec's sharder, without its qcomm_codecs_registry."""
        super().__init__(**options)
        self._session = session
        self.name_of_holder: str | None = None  # of the module that the next collection is in

    def shard(
        self,
        module: EmbeddingCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> CodedShardedEmbeddingCollection:
        """Shard as planned. Raises ValueError: see embedding.wiring.wire."""
        return CodedShardedEmbeddingCollection(
            module,
            params,
            env,
            self.fused_params,
            device,
            qcomm_codecs_registry=wire(
                self._session,
                params,
                env,
                device,
                module_fqn or self.name_of_holder,
                self.fused_params,
            ),
            use_index_dedup=self._use_index_dedup,
            module_fqn=module_fqn,
        )

    @property
    def sharded_module_type(self) -> type[CodedShardedEmbeddingCollection]:
        """For TorchRec's lookup of sharders by module."""
        return CodedShardedEmbeddingCollection
