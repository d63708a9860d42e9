"""Output dist of row-wise pooled embeddings: partial rows that are empty are not sent."""

from typing import Any

import torch
from torch import Tensor

from trec_qcomm.integration.compat import BaseEmbeddingDist, EmbeddingShardingContext
from trec_qcomm.integration.embedding.dists import CodedReduceScatter, RowsAwaitable, eager
from trec_qcomm.integration.ids.batch_notes import notes_on
from trec_qcomm.integration.ids.chosen_rows import batch_sizes, rows_to_expect, rows_to_send


class CodedRowWiseDist(BaseEmbeddingDist[EmbeddingShardingContext, Tensor, Tensor]):
    """Drop-in for RwPooledEmbeddingDist that sends no empty partial rows.

    Both ends derive from the ids which of the partial rows are empty. A module that distributes
    its ids by itself, as managed collisions do, leaves the samples' owner without that knowledge.
    Then all rows are sent, by all ranks, because all have the same modules.
    """

    def __init__(self, reduce_scatter: CodedReduceScatter) -> None:
        super().__init__()
        self._dist = reduce_scatter
        self._num_ranks = reduce_scatter.collective.world_size
        blocks = reduce_scatter.collective.layout.blocks[0]
        self._dims = torch.tensor([block.dim for block in blocks], dtype=torch.int64)

    @eager
    def forward(
        self, local_embs: Tensor, sharding_ctx: EmbeddingShardingContext | None = None
    ) -> RowsAwaitable:
        """Start the sum of partial rows over ranks.

        Args:    local_embs: [B, D], or 1-D where features have batch sizes of their own
        Returns: an awaitable of [B_rank, D], or 1-D
        Raises:  ValueError: the same as `CodedReduceScatter.forward`.
        """
        ctx: Any = sharding_ctx
        notes = notes_on(ctx)
        sent, received = notes.sent, notes.received
        if sent is None or received is None:
            return self._all_rows(local_embs, ctx)
        variable = received.variable_stride_per_key()
        sizes = batch_sizes(received, ctx.batch_size_per_rank, self._num_ranks)
        outgoing = rows_to_send(received.lengths() != 0, sizes, self._dims, variable=variable)
        incoming, shape = rows_to_expect(sent, self._dims, self._num_ranks, variable=variable)
        return self._dist.some_rows(local_embs, outgoing, incoming, shape)

    def _all_rows(self, local_embs: Tensor, ctx: Any) -> RowsAwaitable:
        if ctx is not None and ctx.variable_batch_per_feature:
            rows: RowsAwaitable = self._dist(
                local_embs, batch_size_per_rank_per_feature=ctx.batch_size_per_rank_per_feature
            )
            return rows
        rows = self._dist(local_embs, ctx.batch_size_per_rank if ctx is not None else None)
        return rows
