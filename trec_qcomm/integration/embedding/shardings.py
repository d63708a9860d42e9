"""TorchRec's shardings with coded output dists and watched input dists.

Each class takes the dist that TorchRec makes and puts our collectives where it would create its
own at the first batch (`_dist`, `_variable_dist`, `_intra_dist`, `_cross_dist`).
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from trec_qcomm.comm.rows.all_to_all import PooledAllToAll
from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.comm.rows.layout import Layout
from trec_qcomm.comm.rows.reduce_scatter import PooledReduceScatter
from trec_qcomm.comm.rows.sequence import SequenceAllToAll
from trec_qcomm.integration.compat import (
    BaseEmbeddingDist,
    BaseSparseFeaturesDist,
    CwPooledEmbeddingSharding,
    CwSequenceEmbeddingSharding,
    GridPooledEmbeddingSharding,
    RwPooledEmbeddingSharding,
    RwSequenceEmbeddingSharding,
    ShardingType,
    TwCwPooledEmbeddingSharding,
    TwPooledEmbeddingSharding,
    TwRwPooledEmbeddingSharding,
    TwSequenceEmbeddingSharding,
)
from trec_qcomm.integration.embedding.dists import (
    CodedAllToAll,
    CodedReduceScatter,
    CodedSequenceDist,
    CodedTwoLevelDist,
    CodedVariableAllToAll,
    layout_of,
)
from trec_qcomm.integration.embedding.ids import watch_ids
from trec_qcomm.integration.embedding.wiring import Wiring


class _Coded:
    """What all of them share; mixed into TorchRec's classes, whose attributes it uses."""

    sharding_name: ClassVar[str]
    _pg: Any
    _grouped_embedding_configs_per_rank: Any

    @property
    def _wiring(self) -> Wiring:
        wiring: Wiring = self.qcomm_codecs_registry  # type: ignore[attr-defined]
        return wiring

    def create_input_dist(self, device: torch.device | None = None) -> BaseSparseFeaturesDist[Any]:
        """TorchRec's dist of ids, watched."""
        input_dist: BaseSparseFeaturesDist[Any] = super().create_input_dist(device)  # type: ignore[misc]
        watch_ids(input_dist, self._wiring.session.counters["input"])
        return input_dist

    def _collective(self, kind: type[RowCollective], pg: Any, layout: Layout, hop: str = "") -> Any:
        module = self._wiring.module_name
        name = f"{module}/{self.sharding_name}" + (f"/{hop}" if hop else "")
        return self._wiring.session.collective(
            kind, pg, layout, module=module, name=name, intra=hop == "intra"
        )


class _CodedTwFamily(_Coded):
    """Pooled rows from the owners of whole columns."""

    def create_output_dist(
        self, device: torch.device | None = None
    ) -> BaseEmbeddingDist[Any, Tensor, Tensor]:
        """TorchRec's, over coded all-to-alls; its column permute stays."""
        output_dist: Any = super().create_output_dist(device)  # type: ignore[misc]
        layout = layout_of(self._grouped_embedding_configs_per_rank)
        collective = self._collective(PooledAllToAll, self._pg, layout)
        session, permutes = self._wiring.session, output_dist._callbacks or []
        output_dist._dist = CodedAllToAll(collective, session, permutes)
        output_dist._variable_dist = CodedVariableAllToAll(collective, session)
        return output_dist


class CodedTwPooledEmbeddingSharding(_CodedTwFamily, TwPooledEmbeddingSharding):
    """Table-wise."""

    sharding_name = ShardingType.TABLE_WISE.value


class CodedCwPooledEmbeddingSharding(_CodedTwFamily, CwPooledEmbeddingSharding):
    """Column-wise."""

    sharding_name = ShardingType.COLUMN_WISE.value


class CodedTwCwPooledEmbeddingSharding(_CodedTwFamily, TwCwPooledEmbeddingSharding):
    """Column-wise inside one node."""

    sharding_name = ShardingType.TABLE_COLUMN_WISE.value


class CodedRwPooledEmbeddingSharding(_Coded, RwPooledEmbeddingSharding):
    """Row-wise."""

    sharding_name = ShardingType.ROW_WISE.value

    def create_output_dist(
        self, device: torch.device | None = None
    ) -> BaseEmbeddingDist[Any, Tensor, Tensor]:
        """TorchRec's, over a coded reduce-scatter."""
        output_dist: Any = super().create_output_dist(device)
        layout = layout_of(self._grouped_embedding_configs_per_rank)
        collective = self._collective(PooledReduceScatter, self._pg, layout)
        output_dist._dist = CodedReduceScatter(collective, self._wiring.session)
        return output_dist


class _CodedTwoLevel(_Coded):
    """A reduce-scatter inside the node, then an all-to-all between nodes."""

    _grouped_embedding_configs_per_node: Any
    _intra_pg: Any
    _cross_pg: Any
    _rank: int

    def create_output_dist(
        self, device: torch.device | None = None
    ) -> BaseEmbeddingDist[Any, Tensor, Tensor]:
        """Ours, with the column permute of TorchRec's."""
        stock: Any = super().create_output_dist(device)  # type: ignore[misc]
        session, nodes = self._wiring.session, self._grouped_embedding_configs_per_node
        local_size = self._intra_pg.size()
        here = layout_of([nodes[self._rank // local_size]] * local_size)
        intra = self._collective(PooledReduceScatter, self._intra_pg, here, "intra")
        cross = self._collective(PooledAllToAll, self._cross_pg, layout_of(nodes), "cross")
        return CodedTwoLevelDist(
            CodedReduceScatter(intra, session),
            CodedAllToAll(cross, session, getattr(stock, "_callbacks", None) or []),
            CodedVariableAllToAll(cross, session),
        )


class CodedTwRwPooledEmbeddingSharding(_CodedTwoLevel, TwRwPooledEmbeddingSharding):
    """Row-wise inside one node."""

    sharding_name = ShardingType.TABLE_ROW_WISE.value


class CodedGridPooledEmbeddingSharding(_CodedTwoLevel, GridPooledEmbeddingSharding):
    """Column shards, each row-wise inside a node."""

    sharding_name = ShardingType.GRID_SHARD.value

    def uncombined_embedding_dims(self) -> list[int]:
        """Of the column shards, which a variable batch per feature needs; TorchRec has it from
        1.9 on."""
        return list(self._embedding_dims)

    def uncombined_embedding_names(self) -> list[str]:
        """As the dims."""
        return list(self._embedding_names)


class _CodedSequence(_Coded):
    """Unpooled rows."""

    def create_output_dist(
        self, device: torch.device | None = None
    ) -> BaseEmbeddingDist[Any, Tensor, Tensor]:
        """A coded sequence all-to-all."""
        layout = layout_of(self._grouped_embedding_configs_per_rank)
        collective = self._collective(SequenceAllToAll, self._pg, layout)
        return CodedSequenceDist(collective, self._wiring.session)


class CodedTwSequenceEmbeddingSharding(_CodedSequence, TwSequenceEmbeddingSharding):
    """Table-wise, unpooled."""

    sharding_name = ShardingType.TABLE_WISE.value


class CodedCwSequenceEmbeddingSharding(_CodedSequence, CwSequenceEmbeddingSharding):
    """Column-wise, unpooled."""

    sharding_name = ShardingType.COLUMN_WISE.value


class CodedRwSequenceEmbeddingSharding(_CodedSequence, RwSequenceEmbeddingSharding):
    """Row-wise, unpooled."""

    sharding_name = ShardingType.ROW_WISE.value


POOLED = {
    sharding.sharding_name: sharding
    for sharding in (
        CodedTwPooledEmbeddingSharding,
        CodedCwPooledEmbeddingSharding,
        CodedTwCwPooledEmbeddingSharding,
        CodedRwPooledEmbeddingSharding,
        CodedTwRwPooledEmbeddingSharding,
        CodedGridPooledEmbeddingSharding,
    )
}
SEQUENCE = {
    sharding.sharding_name: sharding
    for sharding in (
        CodedTwSequenceEmbeddingSharding,
        CodedCwSequenceEmbeddingSharding,
        CodedRwSequenceEmbeddingSharding,
    )
}
