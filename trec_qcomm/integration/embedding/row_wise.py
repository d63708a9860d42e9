"""Output dists of shardings whose ranks have partial rows: row-wise, and row-wise inside nodes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.integration.compat import BaseEmbeddingDist, EmbeddingShardingContext
from trec_qcomm.integration.embedding.dists import (
    CodedAllToAll,
    CodedReduceScatter,
    CodedVariableAllToAll,
    RowsAwaitable,
    eager,
)
from trec_qcomm.integration.ids.batch_notes import notes_on
from trec_qcomm.integration.ids.chosen_rows import batch_sizes, rows_to_expect, rows_to_send
from trec_qcomm.integration.ids.left_out import LeftOutRows
from trec_qcomm.ops.batch.rows import Choice


@dataclass(frozen=True, eq=False)
class RowChoice:
    """Rows that a row-wise sharding sends and expects, whose numbers may be on their way.

    Args:
        sizes: [F, P] int64, bags of each feature from each rank
        outgoing, incoming: the rows that are sent and received
        shape: the shape of the result
    """

    sizes: Tensor
    outgoing: Choice
    incoming: Choice
    shape: tuple[int, ...]


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
        self._left_out = LeftOutRows(reduce_scatter.collective)
        shards = reduce_scatter.collective.layout.shards_by_rank[0]
        self._dims = torch.tensor([shard.dim for shard in shards], dtype=torch.int64)

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
        if notes.row_choice is None:
            self.begin_choice(sharding_ctx)
        choice: RowChoice | None = notes.row_choice
        sent = notes.sent
        if sent is None or choice is None:
            return self._all_rows(local_embs, ctx)
        outgoing, incoming = choice.outgoing.rows(), choice.incoming.rows()
        expected = int64_tensor(sent.num_bags).view(self._num_ranks, -1)
        owned = choice.sizes.T
        if notes.merged is not None:
            owned = expected = torch.full_like(expected, notes.merged.batch_size)
        self._left_out.add(
            owned - outgoing.counts.view(owned.shape), expected.reshape(-1) - incoming.counts
        )
        return self._dist.some_rows(local_embs, outgoing, incoming, choice.shape)

    @eager
    def begin_choice(self, sharding_ctx: EmbeddingShardingContext | None) -> None:
        """Begin to choose the rows that are sent and received, and note it (BatchNotes.row_choice).

        Call it before the lookup: then `forward` does not wait for the lookup on a GPU.
        """
        ctx: Any = sharding_ctx
        notes = notes_on(ctx)
        sent, received = notes.sent, notes.received
        if sent is None or received is None:
            return
        variable = received.variable_stride_per_key()
        sizes = batch_sizes(received, ctx.batch_size_per_rank, self._num_ranks)
        outgoing = rows_to_send(received.lengths() != 0, sizes, self._dims, variable=variable)
        incoming, shape = rows_to_expect(sent, self._dims, self._num_ranks, variable=variable)
        notes.row_choice = RowChoice(sizes, outgoing, incoming, shape)

    def _all_rows(self, local_embs: Tensor, ctx: Any) -> RowsAwaitable:
        if ctx is not None and ctx.variable_batch_per_feature:
            rows: RowsAwaitable = self._dist(
                local_embs, batch_size_per_rank_per_feature=ctx.batch_size_per_rank_per_feature
            )
            return rows
        rows = self._dist(local_embs, ctx.batch_size_per_rank if ctx is not None else None)
        return rows


class CodedTwoLevelDist(BaseEmbeddingDist[EmbeddingShardingContext, Tensor, Tensor]):
    """Drop-in for TwRwPooledEmbeddingDist and GridPooledEmbeddingDist, in two hops.

    The hop inside a node sums partial rows (reduce-scatter) and is coded by the rule's `intra`.
    The hop between nodes is an all-to-all of the ranks with the same local rank and is coded by the
    rule's `forward` and `backward`.

    TorchRec's own dists tell the hop inside a node only the sum over nodes of each feature's batch
    sizes. The rows of one feature do not lie together, so they could not be coded by table.
    """

    def __init__(
        self, intra: CodedReduceScatter, cross: CodedAllToAll, variable_cross: CodedVariableAllToAll
    ) -> None:
        super().__init__()
        self._intra, self._cross, self._variable_cross = intra, cross, variable_cross
        self._local_size = intra.collective.world_size
        self._local_rank = intra.collective.rank
        self._num_nodes = cross.collective.world_size
        self._left_out = LeftOutRows(intra.collective), LeftOutRows(cross.collective)

    def forward(
        self, local_embs: Tensor, sharding_ctx: EmbeddingShardingContext | None = None
    ) -> RowsAwaitable:
        """Sum inside the node, then start the all-to-all between nodes.

        Args:    local_embs: [B, D of the node], samples local rank by local rank; 1-D where every
                 feature has a batch size of its own
        Returns: an awaitable of [B_rank, D of all nodes], or 1-D
        """
        if sharding_ctx is not None and sharding_ctx.variable_batch_per_feature:
            return self._forward_variable(local_embs, sharding_ctx)
        sizes: list[int] = sharding_ctx.batch_size_per_rank if sharding_ctx is not None else []
        if not sizes:
            even: RowsAwaitable = self._cross(self._intra(local_embs).wait())
            return even
        by_place = [sizes[place :: self._local_size] for place in range(self._local_size)]
        inside = self._intra(local_embs, [sum(nodes) for nodes in by_place]).wait()
        rows: RowsAwaitable = self._cross(inside, by_place[self._local_rank])
        return rows

    def _forward_variable(self, local_embs: Tensor, ctx: EmbeddingShardingContext) -> RowsAwaitable:
        """Start both hops for a batch in which every feature has a size of its own.

        The context has the sizes as [local rank, then node][feature].
        """
        sizes: list[list[int]] = ctx.batch_size_per_rank_per_feature
        sizes = sizes or [[]] * (self._local_size * self._num_nodes)
        nodes = range(self._num_nodes)
        by_place = [
            [sizes[place * self._num_nodes + node] for node in nodes]
            for place in range(self._local_size)
        ]
        inside = self._intra(
            local_embs,
            batch_size_per_rank_per_feature=[[n for node in by for n in node] for by in by_place],
        ).wait()
        rows: RowsAwaitable = self._variable_cross(
            inside, by_place[self._local_rank], ctx.batch_size_per_feature_pre_a2a
        )
        merged = notes_on(ctx).merged
        if merged is not None:
            left_out = (merged.batch_size - torch.tensor(by_place, dtype=torch.int64)).clamp(min=0)
            here, (intra, cross) = left_out[self._local_rank], self._left_out
            intra.add(left_out.sum(1), here.sum(0).repeat(self._local_size))
            cross.add(here, merged.batch_size - merged.bags.counts)
        return rows
