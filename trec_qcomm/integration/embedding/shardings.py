"""TorchRec's shardings with coded output dists and counted input dists.

Table- and column-wise shardings keep TorchRec's output dist, and our collectives go where it would
create its own at the first batch. All other shardings get an output dist of ours.
"""

from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from trec_qcomm.comm.rows.all_to_all import PooledAllToAll
from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.comm.rows.doors import RowTransform
from trec_qcomm.comm.rows.layout import FeatureShard, Layout
from trec_qcomm.comm.rows.reduce_scatter import PooledReduceScatter
from trec_qcomm.comm.rows.sequence import SequenceAllToAll
from trec_qcomm.integration.collectives import TransformOf
from trec_qcomm.integration.compat import (
    BaseEmbeddingDist,
    BaseSparseFeaturesDist,
    CwPooledEmbeddingSharding,
    CwSequenceEmbeddingSharding,
    EmbeddingShardingInfo,
    GridPooledEmbeddingSharding,
    GroupedEmbeddingConfig,
    KeyedJaggedTensor,
    RwPooledEmbeddingSharding,
    RwSequenceEmbeddingSharding,
    ShardingEnv,
    ShardingType,
    TwCwPooledEmbeddingSharding,
    TwPooledEmbeddingSharding,
    TwRwPooledEmbeddingSharding,
    TwSequenceEmbeddingSharding,
)
from trec_qcomm.integration.compat.private import (
    column_shards,
    groups_per_node,
    groups_per_rank,
    lookup_device,
    node_process_groups,
    output_callbacks,
    process_group,
    set_collectives,
)
from trec_qcomm.integration.embedding.bases import HasRegistry
from trec_qcomm.integration.embedding.dists import (
    CodedAllToAll,
    CodedReduceScatter,
    CodedRowWiseDist,
    CodedSequenceDist,
    CodedTwoLevelDist,
    CodedVariableAllToAll,
    layout_of,
)
from trec_qcomm.integration.embedding.output_dtype import rows_dtype
from trec_qcomm.integration.ids.bag_merging import (
    MergePoint,
    obstacle_to_variable_batches,
    plan_merging,
)
from trec_qcomm.integration.ids.left_out import count_left_out
from trec_qcomm.integration.ids.lookup_rows import pad_lookups
from trec_qcomm.integration.ids.sent_ids import record_sent_ids
from trec_qcomm.integration.ids.unique_bags import expand_bags, merge_bags, select_bags
from trec_qcomm.ops.batch.unique import UniqueBags


class CodedSharding(HasRegistry):
    """Base of all coded shardings: a mixin for TorchRec's classes."""

    sharding_name: ClassVar[str]

    def create_input_dist(self, device: torch.device | None = None) -> BaseSparseFeaturesDist[Any]:
        """Make TorchRec's dist of ids. Its messages are counted and noted, and may be packed."""
        input_dist: BaseSparseFeaturesDist[Any] = super().create_input_dist(device)  # type: ignore[misc]
        session = self._registry.session
        record_sent_ids(input_dist, session.counters["input"], lambda: session.packs_ids)
        return input_dist

    def _groups(self) -> list[list[GroupedEmbeddingConfig]]:
        """Return for each rank the groups of tables that it looks up."""
        return groups_per_rank(self)

    def _feature_shards(self) -> list[FeatureShard]:
        """Return the columns of one sample, in the order in which the input dist takes features."""
        return [shard for shards in self._layout().shards_by_rank for shard in shards]

    def _layout(self) -> Layout:
        return layout_of(self._groups(), self._dtype())

    def _dtype(self) -> torch.dtype:
        """Return the dtype of the rows. Raises ValueError as `output_dtype.rows_dtype` does."""
        return rows_dtype(self._groups(), lookup_device(self))

    def _collective(
        self,
        kind: type[RowCollective],
        pg: Any,
        layout: Layout,
        hop: str = "",
        transform_of: TransformOf | None = None,
    ) -> Any:
        session, module = self._registry.session, self._registry.module_name
        name = f"{module}/{self.sharding_name}" + (f"/{hop}" if hop else "")
        device = lookup_device(self)
        if layout.dtype != torch.float32 and (device is None or device.type == "cpu"):
            session.warm_up_once(layout.dtype)
        return session.collectives.make(
            kind,
            pg,
            layout,
            module=module,
            name=name,
            intra=hop == "intra",
            transform_of=transform_of,
        )


class ShardingTransform(Protocol):
    """Transform of the rows of one sharding, with notes on its batches."""

    def transform_of(self, collective: RowCollective) -> RowTransform:
        """Return the transform of a collective of this sharding."""

    def ids_of(self, features: KeyedJaggedTensor, bags: UniqueBags) -> Any:
        """Return what the transform notes of a batch's distinct bags."""

    def watch(self, output_dist: nn.Module, collective: RowCollective) -> None:
        """Tell the collective's transform, from now on, of each exchange before it begins."""


class _CodedPooledSharding(CodedSharding):
    """Base of the shardings of pooled rows, which may merge equal bags."""

    _can_merge_after_lookup: ClassVar[bool] = False

    def __init__(
        self,
        sharding_infos: list[EmbeddingShardingInfo],
        env: ShardingEnv,
        device: torch.device | None = None,
        **options: Any,
    ) -> None:
        """Make the sharding, and decide where it merges equal bags.

        Raises: ValueError: `unique_bags: true` where merging is impossible or not exact.
        """
        super().__init__(sharding_infos, env, device, **options)  # type: ignore[call-arg]
        groups, session = self._groups(), self._registry.session
        tables = (t for of_rank in groups for g in of_rank for t in g.embedding_tables)
        table_rows = {table.name: table.num_embeddings for table in tables}
        session.table_rows.update(table_rows)
        self._merging = plan_merging(
            session.config,
            groups,
            is_nested=self._registry.is_nested,
            variable_batch_obstacle=obstacle_to_variable_batches(
                groups, device or torch.device("cpu")
            ),
            can_merge_after_lookup=self._can_merge_after_lookup,
            dtype=self._dtype(),
        )
        feedback = (session.config.rule_for(name).error_feedback for name in sorted(table_rows))
        section = next((part for part in feedback if part is not None), None)
        self._transform: ShardingTransform | None = None
        if section is not None and self._can_merge_after_lookup:
            self._transform = section.row_transform(session.config, groups, self._merging)
        self._pause = None
        if self._merging.may_pause:
            name = f"{self._registry.module_name}/{self.sharding_name}"
            self._pause = session.merge_pause(name, env.process_group)

    def create_input_dist(self, device: torch.device | None = None) -> BaseSparseFeaturesDist[Any]:
        """Make TorchRec's dist of ids, which finds distinct bags where the policy says so."""
        input_dist = super().create_input_dist(device)
        if self._merging.point is not None:
            session = self._registry.session
            merge_bags(
                input_dist,
                self._merging,
                self._feature_shards(),
                session.bags,
                is_on=lambda: session.merges_bags,
                pause=self._pause,
                by_id=session.config.ids is not None,
                note=None if self._transform is None else self._transform.ids_of,
            )
        return input_dist

    def create_lookup(self, *args: Any, **options: Any) -> nn.Module:
        """Make TorchRec's lookup, padded on CPU where each feature has a batch size of its own.

        A module that TorchRec reshards makes its lookups anew.
        """
        lookup: nn.Module = super().create_lookup(*args, **options)  # type: ignore[misc]
        pad_lookups(lookup)
        return lookup


class _CodedWholeColumns(_CodedPooledSharding):
    """Base of table- and column-wise shardings, whose ranks send whole columns of pooled rows."""

    _can_merge_after_lookup = True  # a rank that has a bag has all its ids

    def create_output_dist(
        self, device: torch.device | None = None
    ) -> BaseEmbeddingDist[Any, Tensor, Tensor]:
        """Make TorchRec's output dist over coded all-to-alls; its column permute stays."""
        output_dist: Any = super().create_output_dist(device)  # type: ignore[misc]
        pg, session = process_group(self), self._registry.session
        permutes = output_callbacks(output_dist)
        make = None if self._transform is None else self._transform.transform_of
        collective = self._collective(PooledAllToAll, pg, self._layout(), transform_of=make)
        set_collectives(
            output_dist,
            CodedAllToAll(collective, session, permutes),
            CodedVariableAllToAll(collective, session),
        )
        if self._merging.point is MergePoint.LOOKUP:
            select_bags(
                output_dist, self._merging, self._layout().shards_by_rank[pg.rank()], pg.size()
            )
        if self._transform is not None:
            self._transform.watch(output_dist, collective)
        count_left_out(output_dist, collective)
        expand_bags(output_dist, self._feature_shards(), permutes)
        return output_dist


class CodedTwPooledEmbeddingSharding(_CodedWholeColumns, TwPooledEmbeddingSharding):
    """Coded table-wise sharding of pooled rows."""

    sharding_name = ShardingType.TABLE_WISE.value


class CodedCwPooledEmbeddingSharding(_CodedWholeColumns, CwPooledEmbeddingSharding):
    """Coded column-wise sharding of pooled rows."""

    sharding_name = ShardingType.COLUMN_WISE.value


class CodedTwCwPooledEmbeddingSharding(_CodedWholeColumns, TwCwPooledEmbeddingSharding):
    """Coded sharding of pooled rows, column-wise inside one node."""

    sharding_name = ShardingType.TABLE_COLUMN_WISE.value


class CodedRwPooledEmbeddingSharding(_CodedPooledSharding, RwPooledEmbeddingSharding):
    """Coded row-wise sharding of pooled rows."""

    sharding_name = ShardingType.ROW_WISE.value

    def create_output_dist(
        self, device: torch.device | None = None
    ) -> BaseEmbeddingDist[Any, Tensor, Tensor]:
        """Make a coded reduce-scatter that sends no empty rows."""
        collective = self._collective(PooledReduceScatter, process_group(self), self._layout())
        output_dist = CodedRowWiseDist(CodedReduceScatter(collective, self._registry.session))
        expand_bags(output_dist, self._feature_shards(), [])
        return output_dist

    def _feature_shards(self) -> list[FeatureShard]:
        return list(self._layout().shards_by_rank[0])  # every rank has rows of every table


class _CodedTwoLevel(_CodedPooledSharding):
    """Base of the two-level shardings: a reduce-scatter in the node, an all-to-all between nodes.

    The config codes the two hops apart: a rule's `intra` has the codecs of the first, its
    `forward` and `backward` are those of the second. Without `intra` the first sends float32.
    """

    def create_output_dist(
        self, device: torch.device | None = None
    ) -> BaseEmbeddingDist[Any, Tensor, Tensor]:
        """Make a coded dist of two hops, with the column permute of TorchRec's dist."""
        stock: Any = super().create_output_dist(device)  # type: ignore[misc]
        session, (intra_pg, cross_pg) = self._registry.session, node_process_groups(self)
        node = groups_per_node(self)[cross_pg.rank()]
        here = layout_of([node] * intra_pg.size(), self._dtype())
        intra = self._collective(PooledReduceScatter, intra_pg, here, "intra")
        cross = self._collective(PooledAllToAll, cross_pg, self._layout(), "cross")
        permutes = output_callbacks(stock)
        output_dist = CodedTwoLevelDist(
            CodedReduceScatter(intra, session),
            CodedAllToAll(cross, session, permutes),
            CodedVariableAllToAll(cross, session),
        )
        expand_bags(output_dist, self._feature_shards(), permutes)
        return output_dist

    def _groups(self) -> list[list[GroupedEmbeddingConfig]]:
        """Return for each node the groups of tables of which its ranks look up parts."""
        return groups_per_node(self)


class CodedTwRwPooledEmbeddingSharding(_CodedTwoLevel, TwRwPooledEmbeddingSharding):
    """Coded sharding of pooled rows, row-wise inside one node."""

    sharding_name = ShardingType.TABLE_ROW_WISE.value


class CodedGridPooledEmbeddingSharding(_CodedTwoLevel, GridPooledEmbeddingSharding):
    """Coded grid sharding of pooled rows: column shards, each row-wise inside a node."""

    sharding_name = ShardingType.GRID_SHARD.value

    def uncombined_embedding_dims(self) -> list[int]:
        """Return the dim of every column shard, which a variable batch per feature needs.

        TorchRec has this method from 1.9 on.
        """
        return column_shards(self)[0]

    def uncombined_embedding_names(self) -> list[str]:
        """Return the embedding name of every column shard."""
        return column_shards(self)[1]


class _CodedSequence(CodedSharding):
    """Base of the shardings of unpooled rows."""

    def create_output_dist(
        self, device: torch.device | None = None
    ) -> BaseEmbeddingDist[Any, Tensor, Tensor]:
        """Make a coded all-to-all of unpooled rows."""
        collective = self._collective(SequenceAllToAll, process_group(self), self._layout())
        stock = super().create_output_dist(device)  # type: ignore[misc]
        return CodedSequenceDist(collective, self._registry.session, stock)


class CodedTwSequenceEmbeddingSharding(_CodedSequence, TwSequenceEmbeddingSharding):
    """Coded table-wise sharding of unpooled rows."""

    sharding_name = ShardingType.TABLE_WISE.value


class CodedCwSequenceEmbeddingSharding(_CodedSequence, CwSequenceEmbeddingSharding):
    """Coded column-wise sharding of unpooled rows."""

    sharding_name = ShardingType.COLUMN_WISE.value


class CodedRwSequenceEmbeddingSharding(_CodedSequence, RwSequenceEmbeddingSharding):
    """Coded row-wise sharding of unpooled rows."""

    sharding_name = ShardingType.ROW_WISE.value


def _by_name(*shardings: type[CodedSharding]) -> dict[str, type[CodedSharding]]:
    return {sharding.sharding_name: sharding for sharding in shardings}


POOLED = _by_name(
    CodedTwPooledEmbeddingSharding,
    CodedCwPooledEmbeddingSharding,
    CodedTwCwPooledEmbeddingSharding,
    CodedRwPooledEmbeddingSharding,
    CodedTwRwPooledEmbeddingSharding,
    CodedGridPooledEmbeddingSharding,
)
SEQUENCE = _by_name(
    CodedTwSequenceEmbeddingSharding,
    CodedCwSequenceEmbeddingSharding,
    CodedRwSequenceEmbeddingSharding,
)
