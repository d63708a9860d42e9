"""Sharder, sharded module and shardings of EmbeddingCollection (unpooled rows)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from trec_qcomm.comm.rows.sequence import SequenceAllToAll
from trec_qcomm.integration.compat import (
    Awaitable,
    BaseEmbeddingDist,
    CwSequenceEmbeddingSharding,
    EmbeddingCollection,
    EmbeddingCollectionSharder,
    EmbeddingSharding,
    EmbeddingShardingInfo,
    ParameterSharding,
    QuantizedCommCodecs,
    RwSequenceEmbeddingSharding,
    ShardedEmbeddingCollection,
    ShardingEnv,
    ShardingType,
    TwSequenceEmbeddingSharding,
)
from trec_qcomm.integration.compat.private import (
    groups_per_rank,
    input_dists,
    is_prioritized,
    lacks_index_dedup,
    lookup_device,
    process_group,
    shardings,
    turn_on_index_dedup,
    uses_index_dedup,
)
from trec_qcomm.integration.embedding.dists import CodedSequenceDist
from trec_qcomm.integration.embedding.libraries import (
    ExtensibleSharder,
    Shardings,
    check_order,
    coded_sharding,
    overrides,
)
from trec_qcomm.integration.embedding.output_dtype import rows_dtype
from trec_qcomm.integration.embedding.session_registry import SessionRegistry, register_module
from trec_qcomm.integration.embedding.shardings import CodedSharding
from trec_qcomm.integration.ids.bag_merging import plan_merging
from trec_qcomm.integration.ids.batch_notes import hand_over_notes, notes_on
from trec_qcomm.integration.ids.left_out import repetition
from trec_qcomm.integration.ids.unique_ids import distinct_ids
from trec_qcomm.integration.session import Session


class _CodedSequence(CodedSharding):
    """Base of the shardings of unpooled rows."""

    def create_output_dist(
        self, device: torch.device | None = None
    ) -> BaseEmbeddingDist[Any, Tensor, Tensor]:
        """Make a coded all-to-all of unpooled rows."""
        collective = self._collective(SequenceAllToAll, process_group(self), self._layout())
        return CodedSequenceDist(collective, self._registry.session)


class CodedTwSequenceEmbeddingSharding(_CodedSequence, TwSequenceEmbeddingSharding):
    """Coded table-wise sharding of unpooled rows."""

    sharding_name = ShardingType.TABLE_WISE.value


class CodedCwSequenceEmbeddingSharding(_CodedSequence, CwSequenceEmbeddingSharding):
    """Coded column-wise sharding of unpooled rows."""

    sharding_name = ShardingType.COLUMN_WISE.value


class CodedRwSequenceEmbeddingSharding(_CodedSequence, RwSequenceEmbeddingSharding):
    """Coded row-wise sharding of unpooled rows."""

    sharding_name = ShardingType.ROW_WISE.value


SEQUENCE = {
    sharding.sharding_name: sharding
    for sharding in (
        CodedTwSequenceEmbeddingSharding,
        CodedCwSequenceEmbeddingSharding,
        CodedRwSequenceEmbeddingSharding,
    )
}


def refuse_prioritized(module_or_context: Any) -> None:
    """Raise ValueError for a PECEmbeddingCollection (TorchRec's prioritized exchanges).

    It cuts a batch in two and sends the gradients of both parts by itself, as float32. Of a part
    that it lets our sharding send, the receiver does not know how many rows each table has.
    """
    if is_prioritized(module_or_context):
        raise ValueError(
            "PECEmbeddingCollection is not supported around a sharder of trec_qcomm: TorchRec "
            "sends its gradients by itself. Shard the EmbeddingCollection inside, or give "
            "PECEmbeddingCollectionSharder TorchRec's own EmbeddingCollectionSharder"
        )


class CodedShardedEmbeddingCollection(ShardedEmbeddingCollection):
    """ShardedEmbeddingCollection whose rows are coded and whose equal ids may be merged.

    TorchRec's use_index_dedup has all that merging needs, except an operator for CPU and a choice
    by table. So its switch is turned on, and the step that finds the distinct ids is replaced.

    Class attributes:
        coded_shardings: classes by sharding type, in the place of our own; for libraries
    """

    coded_shardings: ClassVar[Shardings] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_order(cls, CodedShardedEmbeddingCollection, "create_embedding_sharding")

    def __init__(self, *args: Any, **options: Any) -> None:
        """Shard the collection.

        Raises: ValueError: `unique_bags: true` where it is not exact; TorchRec's use_index_dedup
            on CPU, for which FBGEMM has no operator.
        """
        super().__init__(*args, **options)
        self._registry: SessionRegistry = self.qcomm_codecs_registry
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
            turn_on_index_dedup(self)
        elif lacks_index_dedup(self) and not overrides(
            type(self), "_dedup_indices", CodedShardedEmbeddingCollection
        ):
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
        """Make a coded sharding, or TorchRec's where no rows are sent (DATA_PARALLEL).

        Raises: ValueError: a sharding type that TorchRec does not have for sequences; one that a
            library makes by itself, and that `coded_shardings` lacks.
        """

        def theirs() -> EmbeddingSharding[Any, Any, Any, Any]:
            return super(CodedShardedEmbeddingCollection, cls).create_embedding_sharding(
                sharding_type, sharding_infos, env, device, qcomm_codecs_registry
            )

        is_librarys = overrides(cls, "create_embedding_sharding", CodedShardedEmbeddingCollection)
        sharding = coded_sharding(cls, sharding_type, SEQUENCE, theirs if is_librarys else None)
        if sharding is None:
            return theirs()
        coded: EmbeddingSharding[Any, Any, Any, Any] = sharding(
            sharding_infos, env, device, qcomm_codecs_registry=qcomm_codecs_registry
        )
        return coded

    def input_dist(self, ctx: Any, features: Any) -> Awaitable[Awaitable[Any]]:
        """Send the ids, and note for the output dist how many went where.

        Raises: ValueError: the collection is inside a PECEmbeddingCollection; a library's
            `input_dist` that does not look for equal ids where they are to be merged.
        """
        refuse_prioritized(ctx)
        awaitable = super().input_dist(ctx, features)
        if self._merging.point is not None and not ctx.reverse_indices:
            raise ValueError(
                f"{type(self).__name__}: merges_bags: its input_dist does not call _dedup_indices; "
                "leave merges_bags out"
            )
        hand_over_notes(ctx.sharding_contexts, input_dists(self))
        return awaitable


def _refuse_dense_kernels(
    params: Mapping[str, ParameterSharding], device: torch.device | None
) -> None:
    """Raise ValueError for a dense kernel on CPU, which DATA_PARALLEL tables have, too.

    FBGEMM's dense lookup for CPU adds up the rows of a bag although it is asked for each of them,
    and puts the features of a sample side by side. With one id a bag sizes fit and rows are wrong.
    """
    if device is None or device.type != "cpu":
        return
    for table, sharding in params.items():
        if sharding.compute_kernel == "dense":
            raise ValueError(
                f"plan: table {table!r}: {sharding.sharding_type} with compute_kernel dense: on "
                "CPU FBGEMM's dense lookup pools the rows of an EmbeddingCollection; allowed: fused"
            )


class CodedEmbeddingCollectionSharder(ExtensibleSharder, EmbeddingCollectionSharder):
    """Drop-in for TorchRec's EmbeddingCollectionSharder."""

    sharded_class: ClassVar[type[Any]] = CodedShardedEmbeddingCollection

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
        module: EmbeddingCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> CodedShardedEmbeddingCollection:
        """Shard as planned.

        Raises: ValueError: the same as `session_registry.register_module`; a dense kernel on CPU.
        """
        _refuse_dense_kernels(params, device)
        sharded: CodedShardedEmbeddingCollection = self.sharded_class(
            module,
            params,
            env,
            self.fused_params,
            device,
            qcomm_codecs_registry=register_module(
                self._session,
                params,
                env,
                device,
                module_fqn or self.parent_fqn,
                self.fused_params,
                is_nested=self._is_nested or not self._may_merge,
            ),
            use_index_dedup=uses_index_dedup(self),
            module_fqn=module_fqn,
            **self.module_options(params),
        )
        return sharded
