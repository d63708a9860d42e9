"""Output dist of pooled embeddings: TorchRec's interface over comm.all_to_all.

Replaces what TwPooledEmbeddingDist would create; the CW callbacks (column permute) are kept.
"""

from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor, nn

from trec_qcomm.comm.all_to_all import PendingRows, PooledAllToAll
from trec_qcomm.comm.layout import Block, Layout
from trec_qcomm.integration.compat import (
    Awaitable,
    EmbeddingShardingContext,
    GroupedEmbeddingConfig,
    TwPooledEmbeddingDist,
    get_gradient_division,
    get_use_sync_collectives,
)
from trec_qcomm.integration.session import Session

Callback = Callable[[Tensor], Tensor]


def layout_of(groups_per_rank: Sequence[Sequence[GroupedEmbeddingConfig]]) -> Layout:
    """The columns of each rank's lookup: groups, then tables, then features, in that order."""
    return Layout(
        tuple(
            tuple(
                Block(table.name, feature, _first_column(table), table.local_cols)
                for group in groups
                for table in group.embedding_tables
                for feature in table.feature_names
            )
            for groups in groups_per_rank
        )
    )


def _first_column(table: object) -> int:
    metadata = getattr(table, "local_metadata", None)
    return int(metadata.shard_offsets[1]) if metadata is not None else 0


class PooledAwaitable(Awaitable[Tensor]):
    """TorchRec's handle on rows that are on their way."""

    def __init__(self, pending: PendingRows, callbacks: Sequence[Callback]) -> None:
        super().__init__()
        self._pending = pending
        self.callbacks.extend(callbacks)

    def _wait_impl(self) -> Tensor:
        return self._pending.wait()


class CodedAllToAll(nn.Module):
    """Drop-in for TorchRec's PooledEmbeddingsAllToAll."""

    def __init__(
        self, collective: PooledAllToAll, session: Session, callbacks: Sequence[Callback]
    ) -> None:
        super().__init__()
        self._collective, self._session, self._callbacks = collective, session, callbacks

    def forward(
        self, local_embs: Tensor, batch_size_per_rank: list[int] | None = None
    ) -> PooledAwaitable:
        """[B, D_rank] -> awaitable of [B_rank, D]; equal batches unless sizes are given.

        Raises: ValueError: synchronous collectives are switched on, B is not a multiple of the
            world size and no sizes are given, or a config pattern matches no table.
        """
        self._session.check_patterns()
        if get_use_sync_collectives():
            raise ValueError("torchrec's use_sync_collectives is not supported by trec_qcomm")
        world_size = self._collective.pg.size()
        if not batch_size_per_rank:
            if local_embs.shape[0] % world_size:
                raise ValueError(f"batch of {local_embs.shape[0]} rows over {world_size} ranks")
            batch_size_per_rank = [local_embs.shape[0] // world_size] * world_size
        pending = self._collective.start(
            local_embs,
            batch_size_per_rank,
            exact=self._session.exact,
            gradient_divisor=world_size if get_gradient_division() else 1,
        )
        return PooledAwaitable(pending, self._callbacks)


class CodedTwPooledEmbeddingDist(TwPooledEmbeddingDist):
    """TwPooledEmbeddingDist (also that of column-wise tables) over coded rows."""

    def __init__(
        self,
        pg: dist.ProcessGroup,
        stock: TwPooledEmbeddingDist,
        collective: PooledAllToAll,
        session: Session,
    ) -> None:
        """stock: the dist that TorchRec made; its sizes, device and callbacks are taken over."""
        super().__init__(
            pg,
            stock._dim_sum_per_rank,
            stock._emb_dim_per_rank_per_feature,
            stock._device,
            stock._callbacks,
        )
        self._dist = CodedAllToAll(collective, session, stock._callbacks or [])

    def forward(
        self, local_embs: Tensor, sharding_ctx: EmbeddingShardingContext | None = None
    ) -> Awaitable[Tensor]:
        """As the base class. Raises ValueError for a variable batch per feature."""
        if sharding_ctx is not None and sharding_ctx.variable_batch_per_feature:
            raise ValueError("a KeyedJaggedTensor with a variable batch per feature is unsupported")
        return super().forward(local_embs, sharding_ctx)
