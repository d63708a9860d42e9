"""Sharded modules and sharders of collections: of bags, of fused bags, of sequences."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from trec_qcomm.integration.compat import (
    Awaitable,
    EmbeddingBagCollectionSharder,
    EmbeddingCollectionSharder,
    EmbeddingSharding,
    EmbeddingShardingInfo,
    FusedEmbeddingBagCollectionSharder,
    ParameterSharding,
    QuantizedCommCodecs,
    ShardedEmbeddingBagCollection,
    ShardedEmbeddingCollection,
    ShardedFusedEmbeddingBagCollection,
    ShardingEnv,
    ShardingType,
)
from trec_qcomm.integration.compat.private import (
    groups_per_rank,
    input_dists,
    is_prioritized,
    lacks_index_dedup,
    lookup_device,
    output_dists,
    set_index_dedup,
    sharding_order,
    shardings,
    uses_index_dedup,
)
from trec_qcomm.integration.embedding.bases import CodedModule, CodedSharder
from trec_qcomm.integration.embedding.dists import CodedRowWiseDist
from trec_qcomm.integration.embedding.output_dtype import rows_dtype
from trec_qcomm.integration.embedding.shardings import POOLED, SEQUENCE
from trec_qcomm.integration.ids.bag_merging import plan_merging
from trec_qcomm.integration.ids.batch_notes import (
    hand_over_notes,
    note_received,
    notes_on,
    repetition,
)
from trec_qcomm.integration.ids.unique_bags import distinct_ids

_PERMUTED = (ShardingType.COLUMN_WISE.value, ShardingType.TABLE_COLUMN_WISE.value)


class CodedShardedEmbeddingBagCollection(CodedModule, ShardedEmbeddingBagCollection):
    """ShardedEmbeddingBagCollection whose rows are coded and whose equal bags may be merged."""

    def input_dist(self, ctx: Any, features: Any) -> Awaitable[Awaitable[Any]]:
        """Send the ids, and note for the output dist what was sent.

        Raises: ValueError: training without the wrapper that the config needs. DATA_PARALLEL
            tables, which send no rows, need it, too.
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
        """Make a coded sharding, or TorchRec's sharding where no rows are sent (DATA_PARALLEL).

        Raises: ValueError: a sharding type that TorchRec does not have; a sharding that a library
            makes by itself and that `coded_shardings` lacks; `unique_bags: true` where merging is
            impossible or not exact.
        """
        stock = super().create_embedding_bag_sharding(
            sharding_infos, env, device, permute_embeddings, qcomm_codecs_registry
        )
        kind = sharding_infos[0].param_sharding.sharding_type
        sharding = cls._coded_class(kind, POOLED, stock)
        if sharding is None:
            return stock
        options: dict[str, Any] = {"qcomm_codecs_registry": qcomm_codecs_registry}
        if sharding.sharding_name in _PERMUTED:
            options["permute_embeddings"] = permute_embeddings
        return sharding(sharding_infos, env, device, **options)


class CodedEmbeddingBagCollectionSharder(CodedSharder, EmbeddingBagCollectionSharder):
    """Drop-in for TorchRec's EmbeddingBagCollectionSharder."""

    sharded_class: ClassVar[type[Any]] = CodedShardedEmbeddingBagCollection

    def _torchrec_options(self, module_fqn: str | None) -> dict[str, Any]:
        order = {"sharded_module_order_overwrite": sharding_order(self)}
        return super()._torchrec_options(module_fqn) | order


class CodedShardedFusedEmbeddingBagCollection(
    ShardedFusedEmbeddingBagCollection, CodedShardedEmbeddingBagCollection
):
    """ShardedFusedEmbeddingBagCollection whose rows are coded."""


class CodedFusedEmbeddingBagCollectionSharder(CodedSharder, FusedEmbeddingBagCollectionSharder):
    """Drop-in for TorchRec's FusedEmbeddingBagCollectionSharder."""

    sharded_class: ClassVar[type[Any]] = CodedShardedFusedEmbeddingBagCollection

    def _torchrec_options(self, module_fqn: str | None) -> dict[str, Any]:
        return {}


def refuse_prioritized(module_or_context: Any) -> None:
    """Raise ValueError for a PECEmbeddingCollection (TorchRec's prioritized exchanges).

    It cuts a batch in two and sends the gradients of both parts by itself, as float32. If our
    sharding sent a part, the receiver would not know how many rows each table has.
    """
    if is_prioritized(module_or_context):
        raise ValueError(
            "PECEmbeddingCollection is not supported around a sharder of trec_qcomm: TorchRec "
            "sends its gradients by itself. Shard the EmbeddingCollection inside, or give "
            "PECEmbeddingCollectionSharder TorchRec's own EmbeddingCollectionSharder"
        )


class CodedShardedEmbeddingCollection(CodedModule, ShardedEmbeddingCollection):
    """ShardedEmbeddingCollection whose rows are coded and whose equal ids may be merged.

    TorchRec's use_index_dedup has all that merging needs, except an operator for CPU and a choice
    by table. So this class turns use_index_dedup on and replaces the step that finds the distinct
    ids.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        """Shard the collection.

        Raises: ValueError: `unique_bags: true` where it is not exact; TorchRec's use_index_dedup
            on CPU, for which FBGEMM has no operator.
        """
        super().__init__(*args, **options)
        self._tables = [
            [table.name for table in sharding.embedding_tables() for _ in table.feature_names]
            for sharding in shardings(self)
        ]
        self._merging = plan_merging(
            self._registry.session.config,
            [groups for sharding in shardings(self) for groups in groups_per_rank(sharding)],
            is_nested=self._registry.is_nested,
            dtype=self._dtype(),
        )
        if self._merging.point is not None:
            set_index_dedup(self, True)
        elif lacks_index_dedup(self) and super()._dedup_indices.__module__.startswith("torchrec."):
            raise ValueError(
                "use_index_dedup: FBGEMM has its operator, jagged_unique_indices, for CUDA only; "
                "on CPU leave it out, and let the config say unique_bags: true"
            )

    def _dtype(self) -> torch.dtype:
        """Return the dtype of the rows: one of 16 bits, if those of any sharding have it."""
        dtypes = {rows_dtype(groups_per_rank(s), lookup_device(s)) for s in shardings(self)}
        return next(iter(dtypes - {torch.float32}), torch.float32)

    def _dedup_indices(self, ctx: Any, input_feature_splits: list[Any]) -> list[Any]:
        if self._merging.point is None:
            stock: list[Any] = super()._dedup_indices(ctx, input_feature_splits)
            return stock
        bags, distinct = self._registry.session.bags, []
        by_id = self._registry.session.config.ids is not None
        dists = input_dists(self)
        for features, tables, input_dist in zip(
            input_feature_splits, self._tables, dists, strict=True
        ):
            shares = self._merging.shares_of(tables)
            unique, ids, reverse = distinct_ids(features, shares, by_id=by_id)
            num_ids = torch.tensor(features.length_per_key(), dtype=torch.int64)
            bags.add(bags.numbers_of(tables), num_ids, unique.counts)
            ctx.input_features.append(features)
            ctx.reverse_indices.append(reverse)
            distinct.append(ids)
            by_feature = num_ids.double() / unique.counts.clamp(min=1)
            notes_on(input_dist).repetition = repetition(features, ids, by_feature)
        return distinct

    @classmethod
    def create_embedding_sharding(
        cls,
        sharding_type: str,
        sharding_infos: list[EmbeddingShardingInfo],
        env: ShardingEnv,
        device: torch.device | None = None,
        qcomm_codecs_registry: dict[str, QuantizedCommCodecs] | None = None,
    ) -> EmbeddingSharding[Any, Any, Any, Any]:
        """Make a coded sharding, or TorchRec's sharding where no rows are sent (DATA_PARALLEL).

        Raises: ValueError: a sharding type that TorchRec does not have for sequences; a sharding
            that a library makes by itself and that `coded_shardings` lacks.
        """
        stock = super().create_embedding_sharding(
            sharding_type, sharding_infos, env, device, qcomm_codecs_registry
        )
        sharding = cls._coded_class(sharding_type, SEQUENCE, stock)
        if sharding is None:
            return stock
        return sharding(sharding_infos, env, device, qcomm_codecs_registry=qcomm_codecs_registry)

    def input_dist(self, ctx: Any, features: Any) -> Awaitable[Awaitable[Any]]:
        """Send the ids, and note for the output dist how many went where.

        Raises: ValueError: the collection is inside a PECEmbeddingCollection; a library's
            `input_dist` does not look for equal ids, but ids are to be merged.
        """
        refuse_prioritized(ctx)
        merges = self._merging.point is not None and self._registry.session.merges_bags
        if self._merging.point is not None:
            set_index_dedup(self, merges)
        awaitable = super().input_dist(ctx, features)
        if merges and not ctx.reverse_indices:
            raise ValueError(
                f"{type(self).__name__}: merges_bags: its input_dist does not call _dedup_indices; "
                "leave merges_bags out"
            )
        hand_over_notes(ctx.sharding_contexts, input_dists(self))
        return awaitable


class CodedEmbeddingCollectionSharder(CodedSharder, EmbeddingCollectionSharder):
    """Drop-in for TorchRec's EmbeddingCollectionSharder."""

    sharded_class: ClassVar[type[Any]] = CodedShardedEmbeddingCollection

    def _torchrec_options(self, module_fqn: str | None) -> dict[str, Any]:
        dedup = {"use_index_dedup": uses_index_dedup(self)}
        return super()._torchrec_options(module_fqn) | dedup

    def _check_plan(
        self, params: Mapping[str, ParameterSharding], device: torch.device | None
    ) -> None:
        """Raise ValueError for a dense kernel on CPU, which DATA_PARALLEL tables have, too.

        FBGEMM's dense lookup for CPU adds up the rows of a bag although it is asked for each of
        them, and puts the features of a sample side by side. With one id a bag sizes fit and rows
        are wrong.
        """
        if device is None or device.type != "cpu":
            return
        for table, sharding in params.items():
            if sharding.compute_kernel == "dense":
                raise ValueError(
                    f"plan: table {table!r}: {sharding.sharding_type} with compute_kernel dense: "
                    "on CPU FBGEMM's dense lookup pools the rows of an EmbeddingCollection; "
                    "allowed: fused"
                )
