"""Sharders and sharded modules of EmbeddingBagCollection and FusedEmbeddingBagCollection."""

from typing import Any, ClassVar

import torch

from trec_qcomm.integration.compat import (
    Awaitable,
    EmbeddingBagCollection,
    EmbeddingBagCollectionSharder,
    EmbeddingSharding,
    EmbeddingShardingInfo,
    FusedEmbeddingBagCollection,
    FusedEmbeddingBagCollectionSharder,
    ParameterSharding,
    QuantizedCommCodecs,
    ShardedEmbeddingBagCollection,
    ShardedFusedEmbeddingBagCollection,
    ShardingEnv,
    ShardingType,
)
from trec_qcomm.integration.compat.private import input_dists, output_dists, sharding_order
from trec_qcomm.integration.embedding.libraries import (
    ExtensibleSharder,
    Shardings,
    check_order,
    coded_sharding,
    overrides,
)
from trec_qcomm.integration.embedding.row_wise import CodedRowWiseDist
from trec_qcomm.integration.embedding.session_registry import SessionRegistry, register_module
from trec_qcomm.integration.embedding.shardings import POOLED
from trec_qcomm.integration.ids.batch_notes import hand_over_notes, note_received
from trec_qcomm.integration.session import Session

_PERMUTED = (ShardingType.COLUMN_WISE.value, ShardingType.TABLE_COLUMN_WISE.value)


class CodedShardedEmbeddingBagCollection(ShardedEmbeddingBagCollection):
    """ShardedEmbeddingBagCollection whose rows are coded and whose equal bags may be merged.

    Class attributes:
        coded_shardings: classes by sharding type, in the place of our own; for libraries
    """

    coded_shardings: ClassVar[Shardings] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_order(cls, CodedShardedEmbeddingBagCollection, "create_embedding_bag_sharding")

    @property
    def _registry(self) -> SessionRegistry:
        registry: SessionRegistry = self.qcomm_codecs_registry
        return registry

    def input_dist(self, ctx: Any, features: Any) -> Awaitable[Awaitable[Any]]:
        """Send the ids, and note for the output dist what was sent.

        Raises: ValueError: training without the wrapper that the config needs, which matters to
            DATA_PARALLEL tables, too, that send no rows.
        """
        self._registry.session.check_wrapped()
        self._registry.session.is_training = torch.is_grad_enabled()  # off within super()
        awaitable = super().input_dist(ctx, features)
        hand_over_notes(ctx.sharding_contexts, input_dists(self))
        return awaitable

    def compute(self, ctx: Any, dist_input: Any) -> list[torch.Tensor]:
        """Look up the rows, and note for the output dist what was received."""
        self._note_received(ctx, dist_input)
        rows: list[torch.Tensor] = super().compute(ctx, dist_input)
        return rows

    def compute_and_output_dist(self, ctx: Any, input: Any) -> Any:
        """Note what was received, then look up the rows and send them."""
        self._note_received(ctx, input)
        return super().compute_and_output_dist(ctx, input)

    def _note_received(self, ctx: Any, dist_input: Any) -> None:
        """Note the ids, and begin to choose the rows that row-wise shardings send."""
        note_received(ctx.sharding_contexts, dist_input)
        for output_dist, context in zip(output_dists(self), ctx.sharding_contexts, strict=True):
            if isinstance(output_dist, CodedRowWiseDist):
                output_dist.begin_choice(context)

    @classmethod
    def create_embedding_bag_sharding(
        cls,
        sharding_infos: list[EmbeddingShardingInfo],
        env: ShardingEnv,
        device: torch.device | None = None,
        permute_embeddings: bool = False,
        qcomm_codecs_registry: dict[str, QuantizedCommCodecs] | None = None,
    ) -> EmbeddingSharding[Any, Any, Any, Any]:
        """Make a coded sharding, or TorchRec's where no rows are sent (DATA_PARALLEL).

        Raises: ValueError: a sharding type that TorchRec does not have; one that a library makes
            by itself, and that `coded_shardings` lacks; `unique_bags: true` where merging is
            impossible or not exact.
        """

        def theirs() -> EmbeddingSharding[Any, Any, Any, Any]:
            return super(CodedShardedEmbeddingBagCollection, cls).create_embedding_bag_sharding(
                sharding_infos, env, device, permute_embeddings, qcomm_codecs_registry
            )

        kind = sharding_infos[0].param_sharding.sharding_type
        is_librarys = overrides(
            cls, "create_embedding_bag_sharding", CodedShardedEmbeddingBagCollection
        )
        sharding = coded_sharding(cls, kind, POOLED, theirs if is_librarys else None)
        if sharding is None:
            return theirs()
        options: dict[str, Any] = {"qcomm_codecs_registry": qcomm_codecs_registry}
        if sharding.sharding_name in _PERMUTED:
            options["permute_embeddings"] = permute_embeddings
        coded: EmbeddingSharding[Any, Any, Any, Any] = sharding(
            sharding_infos, env, device, **options
        )
        return coded


class CodedEmbeddingBagCollectionSharder(ExtensibleSharder, EmbeddingBagCollectionSharder):
    """Drop-in for TorchRec's EmbeddingBagCollectionSharder."""

    sharded_class: ClassVar[type[Any]] = CodedShardedEmbeddingBagCollection

    def __init__(self, session: Session, *, is_nested: bool = False, **options: Any) -> None:
        """Make one sharder for any number of collections.

        Args:
            is_nested: whether the collections are inside modules that do more with ids than look
                them up
            options: options of TorchRec's sharder, without its qcomm_codecs_registry
        """
        super().__init__(**options)
        self._session, self._is_nested = session, is_nested
        self.parent_fqn: str | None = None  # path of the module around the next collection

    def shard(
        self,
        module: EmbeddingBagCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> CodedShardedEmbeddingBagCollection:
        """Shard as planned. Raises ValueError as `session_registry.register_module` does."""
        name = module_fqn or self.parent_fqn
        registry = register_module(
            self._session,
            params,
            env,
            device,
            name,
            self.fused_params,
            is_nested=self._is_nested or not self._may_merge,
        )
        sharded: CodedShardedEmbeddingBagCollection = self.sharded_class(
            module=module,
            table_name_to_parameter_sharding=params,
            env=env,
            fused_params=self.fused_params,
            device=device,
            qcomm_codecs_registry=registry,
            module_fqn=module_fqn,
            sharded_module_order_overwrite=sharding_order(self),
            **self.module_options(params),
        )
        return sharded


class CodedShardedFusedEmbeddingBagCollection(
    ShardedFusedEmbeddingBagCollection, CodedShardedEmbeddingBagCollection
):
    """ShardedFusedEmbeddingBagCollection whose rows are coded."""


class CodedFusedEmbeddingBagCollectionSharder(FusedEmbeddingBagCollectionSharder):
    """Drop-in for TorchRec's FusedEmbeddingBagCollectionSharder."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def shard(
        self,
        module: FusedEmbeddingBagCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> CodedShardedFusedEmbeddingBagCollection:
        """Shard as planned. Raises ValueError as `session_registry.register_module` does."""
        registry = register_module(self._session, params, env, device, module_fqn, None)
        return CodedShardedFusedEmbeddingBagCollection(
            module, params, env, device, qcomm_codecs_registry=registry
        )
