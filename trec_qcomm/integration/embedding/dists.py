"""Drop-ins for the collectives inside TorchRec's output dists, over comm.rows.

CodedAllToAll, CodedVariableAllToAll and CodedReduceScatter have TorchRec's call signatures and
stand in the places of its collectives. The dists of sequences, and of shardings whose ranks have
partial rows (row-wise, and row-wise inside nodes), replace TorchRec's whole dists. They need more
of the batch's context than TorchRec passes to a collective.

Sums: our reduce-scatter adds partial rows in their dtype in rank order, TorchRec's in another
order. With the identity codec the sum equals TorchRec's bit for bit if at most two of a bag's
partial rows are not 0, as in bags of at most two ids. Otherwise it is equal to within rounding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from trec_qcomm.comm.rows.all_to_all import PooledAllToAll
from trec_qcomm.comm.rows.autograd import PendingRows
from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.comm.rows.layout import FeatureShard, Layout
from trec_qcomm.comm.rows.reduce_scatter import PooledReduceScatter
from trec_qcomm.comm.rows.sequence import SequenceAllToAll
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.integration.compat import (
    Awaitable,
    BaseEmbeddingDist,
    EmbeddingShardingContext,
    GroupedEmbeddingConfig,
    PooledEmbeddingsAllToAll,
    PooledEmbeddingsReduceScatter,
    Request,
    SequenceShardingContext,
    VariableBatchPooledEmbeddingsAllToAll,
    get_gradient_division,
)
from trec_qcomm.integration.embedding.bases import refuse_sync_collectives
from trec_qcomm.integration.ids.batch_notes import notes_on
from trec_qcomm.integration.ids.left_out import LeftOutRows
from trec_qcomm.integration.ids.lookup_rows import batch_sizes, rows_to_expect, rows_to_send
from trec_qcomm.integration.session import Session
from trec_qcomm.ops.batch.rows import Choice, Rows

Callback = Callable[[Tensor], Tensor]
C = TypeVar("C", bound=RowCollective)
F = TypeVar("F", bound=Callable[..., Any])


def eager(method: F) -> F:
    """Leave a method out of torch.compile's graphs, which cannot contain numba and gloo."""
    return torch.compiler.disable(method)  # type: ignore[no-any-return, no-untyped-call]


def layout_of(
    groups_per_rank: Sequence[Sequence[GroupedEmbeddingConfig]], dtype: torch.dtype = torch.float32
) -> Layout:
    """Return the columns of each rank's lookup: groups, then tables, then features.

    Args: dtype: dtype of the rows.
    """
    return Layout(
        tuple(
            tuple(
                FeatureShard(table.name, feature, _first_column(table), table.local_cols)
                for group in groups
                for table in group.embedding_tables
                for feature in table.feature_names
            )
            for groups in groups_per_rank
        ),
        dtype,
    )


def _first_column(table: object) -> int:
    metadata = getattr(table, "local_metadata", None)
    return int(metadata.shard_offsets[1]) if metadata is not None else 0


class RowsRequest(Request[Tensor]):
    """TorchRec's handle of a collective, for rows that are on their way.

    TorchRec's backward injection hooks its work to `dummy_tensor`. The hook runs after the exchange
    of the rows' gradients has begun, and before it is waited for.
    """

    def __init__(self, pending: PendingRows) -> None:
        super().__init__(pending.pg, pending.token.device)
        self.dummy_tensor, self._pending = pending.token, pending

    def _wait_impl(self) -> Tensor:
        return self._pending.wait()


class RowsAwaitable(Awaitable[Tensor]):
    """Awaitable of TorchRec for rows that are on their way."""

    def __init__(self, pending: PendingRows, callbacks: Sequence[Callback] = ()) -> None:
        super().__init__()
        self._tensor_awaitable = RowsRequest(pending)  # TorchRec reads it under this name
        self.callbacks.extend(callbacks)

    @eager
    def _wait_impl(self) -> Tensor:
        rows: Tensor = self._tensor_awaitable.wait()
        return rows


def _awaitable(pending: Any, callbacks: Sequence[Callback] = ()) -> Awaitable[Tensor]:
    """Return the awaitable of what a collective's `start` returned."""
    return RowsAwaitable(pending, callbacks) if isinstance(pending, PendingRows) else pending


class _CodedDist(nn.Module, Generic[C]):
    """Base of the drop-ins: a collective, and the options that each of its calls takes.

    Where no codec changes the rows, TorchRec's own module sends them, as without a drop-in.
    `_make_stock` makes it for a device.
    """

    _make_stock: Callable[[torch.device], Any]

    def __init__(self, collective: C, session: Session, callbacks: Sequence[Callback] = ()) -> None:
        super().__init__()
        self.collective, self.session, self._callbacks = collective, session, callbacks
        self._stock: Any = None

    def _send_as_stock(self, rows: Tensor, *args: Any) -> Any:
        """Send rows by TorchRec's module, and return its awaitable. Args: args: its arguments."""
        if self._stock is None:
            self._stock = self._make_stock(rows.device)
        return self._stock(rows, *args)

    def _dims(self) -> list[list[int]]:
        """Return the columns of each shard of each rank."""
        return [[s.dim for s in shards] for shards in self.collective.layout.shards_by_rank]

    def _options(self) -> dict[str, Any]:
        """Return the keyword options with which the collective starts this call.

        Raises: ValueError: synchronous collectives, a config pattern that matches no table, or
            training without the wrapper or the calls of the guard that the config needs.
        """
        self.session.check_patterns()
        self.session.check_wrapped()
        self.session.check_step(self.collective.step)
        refuse_sync_collectives()
        divisor = self.collective.world_size if get_gradient_division() else 1
        return {"exact": self.session.exact, "gradient_divisor": divisor}

    def _batch_sizes(self, num_rows: int, given: Sequence[int] | None) -> Sequence[int]:
        world_size = self.collective.world_size
        if given:
            return given
        if num_rows % world_size:
            raise ValueError(
                f"local_embs: {num_rows} rows over {world_size} ranks; make batches equal"
            )
        return [num_rows // world_size] * world_size


class CodedAllToAll(_CodedDist[PooledAllToAll]):
    """Drop-in for PooledEmbeddingsAllToAll."""

    @eager
    def forward(
        self, local_embs: Tensor, batch_size_per_rank: list[int] | None = None
    ) -> Awaitable[Tensor]:
        """Start the all-to-all.

        Args:    local_embs: [B, D_rank].  batch_size_per_rank: sizes of all ranks; None: equal
        Returns: an awaitable of [B_rank, D]
        Raises:  ValueError: synchronous collectives; a config pattern that matches no table; no
                 sizes while B is not a multiple of the world size.
        """
        sizes = self._batch_sizes(local_embs.shape[0], batch_size_per_rank)
        stock = partial(self._send_as_stock, local_embs, sizes)
        pending = self.collective.start(local_embs, sizes, uncoded=stock, **self._options())
        return _awaitable(pending, self._callbacks)

    def _make_stock(self, device: torch.device) -> Any:
        widths, callbacks = list(map(sum, self._dims())), list(self._callbacks)
        return PooledEmbeddingsAllToAll(self.collective.pg, widths, device, callbacks)


class CodedVariableAllToAll(_CodedDist[PooledAllToAll]):
    """Drop-in for VariableBatchPooledEmbeddingsAllToAll: batches with a size for every feature."""

    @eager
    def forward(
        self,
        local_embs: Tensor,
        batch_size_per_rank_per_feature: list[list[int]],
        batch_size_per_feature_pre_a2a: list[int],
    ) -> Awaitable[Tensor]:
        """Start the all-to-all of [N] values; returns an awaitable of [M].

        `PooledAllToAll.start_variable` says how both are laid out.
        """
        sizes = batch_size_per_rank_per_feature or [[]] * self.collective.world_size
        rows, batch = local_embs.view(-1), (sizes, batch_size_per_feature_pre_a2a)
        stock = partial(self._send_as_stock, rows, *batch)
        pending = self.collective.start_variable(rows, *batch, uncoded=stock, **self._options())
        return _awaitable(pending)

    def _make_stock(self, device: torch.device) -> Any:
        return VariableBatchPooledEmbeddingsAllToAll(self.collective.pg, self._dims(), device)


class CodedReduceScatter(_CodedDist[PooledReduceScatter]):
    """Drop-in for PooledEmbeddingsReduceScatter, and for its variant of variable batches."""

    @eager
    def forward(
        self,
        local_embs: Tensor,
        input_splits: list[int] | None = None,
        *,
        batch_size_per_rank_per_feature: list[list[int]] | None = None,
    ) -> Awaitable[Tensor]:
        """Start the sum of [B, D] over ranks; returns an awaitable of [B_rank, D].

        With a batch size for every feature, values are 1-D, laid out as in
        `PooledReduceScatter.start_variable`.
        Raises: ValueError: the same as `CodedAllToAll.forward`.
        """
        if batch_size_per_rank_per_feature is not None:
            sizes = batch_size_per_rank_per_feature or [[]] * self.collective.world_size
            pending = self.collective.start_variable(local_embs.view(-1), sizes, **self._options())
        else:
            splits = self._batch_sizes(local_embs.shape[0], input_splits)
            # gloo has no reduce-scatter of unequal parts.
            stock = partial(self._send_as_stock, local_embs) if len(set(splits)) == 1 else None
            pending = self.collective.start(local_embs, splits, uncoded=stock, **self._options())
        return _awaitable(pending)

    def _make_stock(self, device: torch.device) -> Any:
        return PooledEmbeddingsReduceScatter(self.collective.pg)

    def some_rows(
        self, local_embs: Tensor, sent: Rows, received: Rows, shape: tuple[int, ...]
    ) -> Awaitable[Tensor]:
        """Start the sum of the rows that are not empty; returns an awaitable of `shape`.

        Args:
            sent: the rows of `local_embs` that are sent to each rank
            received: the place of each received row in the result
            shape: the shape of the result
        """
        start = self.collective.start_selected
        return RowsAwaitable(start(local_embs, sent, received, shape, **self._options()))


@dataclass(frozen=True, eq=False)
class RowChoice:
    """Rows that a row-wise sharding sends and expects; their numbers may still be on their way.

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

    Both ends derive from the ids which partial rows are empty. If a module distributes its ids by
    itself, as managed collisions do, the samples' owner does not know that. Then all ranks send all
    rows; all ranks have the same modules.
    """

    def __init__(self, reduce_scatter: CodedReduceScatter) -> None:
        super().__init__()
        self._dist, self._session = reduce_scatter, reduce_scatter.session
        self._num_ranks = reduce_scatter.collective.world_size
        self._left_out = LeftOutRows(reduce_scatter.collective)
        shards = reduce_scatter.collective.layout.shards_by_rank[0]
        self._dims = torch.tensor([shard.dim for shard in shards], dtype=torch.int64)

    @eager
    def forward(
        self, local_embs: Tensor, sharding_ctx: EmbeddingShardingContext | None = None
    ) -> Awaitable[Tensor]:
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
        """Begin to choose the rows to send and to receive; note them (BatchNotes.row_choice).

        Call this before the lookup: then `forward` does not wait for the lookup on a GPU.
        """
        ctx: Any = sharding_ctx
        notes = notes_on(ctx)
        sent, received = notes.sent, notes.received
        sends_all = notes.merged is None and not self._session.merges_bags
        if sent is None or received is None or sends_all:
            return
        variable = received.variable_stride_per_key()
        sizes = batch_sizes(received, ctx.batch_size_per_rank, self._num_ranks)
        outgoing = rows_to_send(received.lengths() != 0, sizes, self._dims, variable=variable)
        incoming, shape = rows_to_expect(sent, self._dims, self._num_ranks, variable=variable)
        notes.row_choice = RowChoice(sizes, outgoing, incoming, shape)

    def _all_rows(self, local_embs: Tensor, ctx: Any) -> Any:
        if ctx is not None and ctx.variable_batch_per_feature:
            sizes = ctx.batch_size_per_rank_per_feature
            return self._dist(local_embs, batch_size_per_rank_per_feature=sizes)
        return self._dist(local_embs, ctx.batch_size_per_rank if ctx is not None else None)


class CodedTwoLevelDist(BaseEmbeddingDist[EmbeddingShardingContext, Tensor, Tensor]):
    """Drop-in for TwRwPooledEmbeddingDist and GridPooledEmbeddingDist, in two hops.

    The hop inside a node sums partial rows (reduce-scatter) with the codecs of the rule's `intra`.
    The hop between nodes is an all-to-all of the ranks with the same local rank. It has the rule's
    codecs `forward` and `backward`.

    TorchRec's own dists tell the hop inside a node only the sum, over nodes, of each feature's
    batch sizes. Rows of one feature then do not lie together, so they could not be coded by table.
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
    ) -> Awaitable[Tensor]:
        """Sum inside the node, then start the all-to-all between nodes.

        Args:    local_embs: [B, D of the node], samples local rank by local rank; 1-D where every
                 feature has a batch size of its own
        Returns: an awaitable of [B_rank, D of all nodes], or 1-D
        """
        if sharding_ctx is not None and sharding_ctx.variable_batch_per_feature:
            return self._forward_variable(local_embs, sharding_ctx)
        sizes: list[int] = sharding_ctx.batch_size_per_rank if sharding_ctx is not None else []
        by_place = [sizes[place :: self._local_size] for place in range(self._local_size)]
        inside = self._intra(local_embs, [sum(nodes) for nodes in by_place] if sizes else None)
        rows: Awaitable[Tensor] = self._cross(inside.wait(), by_place[self._local_rank])
        return rows

    def _forward_variable(
        self, local_embs: Tensor, ctx: EmbeddingShardingContext
    ) -> Awaitable[Tensor]:
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
        rows: Awaitable[Tensor] = self._variable_cross(
            inside, by_place[self._local_rank], ctx.batch_size_per_feature_pre_a2a
        )
        merged = notes_on(ctx).merged
        if merged is not None:
            left_out = (merged.batch_size - torch.tensor(by_place, dtype=torch.int64)).clamp(min=0)
            here, (intra, cross) = left_out[self._local_rank], self._left_out
            intra.add(left_out.sum(1), here.sum(0).repeat(self._local_size))
            cross.add(here, merged.batch_size - merged.bags.counts)
        return rows


class CodedSequenceDist(
    _CodedDist[SequenceAllToAll], BaseEmbeddingDist[SequenceShardingContext, Tensor, Tensor]
):
    """Drop-in for TwSequenceEmbeddingDist and RwSequenceEmbeddingDist."""

    def __init__(self, collective: SequenceAllToAll, session: Session, stock: nn.Module) -> None:
        super().__init__(collective, session)
        self._left_out, self._stock = LeftOutRows(collective), stock

    @eager
    def forward(
        self, local_embs: Tensor, sharding_ctx: SequenceShardingContext | None = None
    ) -> Awaitable[Tensor]:
        """Start the all-to-all of unpooled rows.

        Args:    local_embs: [N, D], a row for each id that the input dist brought
        Returns: an awaitable of [M, D], a row for each id of this rank's batch
        Raises:  ValueError: synchronous collectives; a config pattern that matches no table; a
                 context that does not come from our module.
        """
        notes = notes_on(sharding_ctx)
        sent = notes.sent
        if sharding_ctx is None or sent is None:
            raise ValueError(
                "sharding_ctx: lacks the ids that were sent; call the module's input_dist"
            )
        rows_sent = self._rows_sent(sharding_ctx)
        rows_received = torch.tensor(sent.num_ids, dtype=torch.int64)
        if notes.repetition is not None:
            is_mine, more = self._left_out.is_mine, notes.repetition.by_feature - 1
            more = more.repeat(len(is_mine) // max(len(more), 1))  # row-wise: F shards a rank
            self._left_out.add(rows_sent.T * more[is_mine], rows_received * more)
        order = sharding_ctx.unbucketize_permute_tensor
        stock = partial(self._send_as_stock, local_embs, sharding_ctx)
        # A pipeline that goes on after `detach` has lost the sizes that TorchRec's module needs.
        uncoded = stock if sharding_ctx.input_splits else None
        pending = self.collective.start(
            local_embs, rows_sent, rows_received, uncoded=uncoded, **self._options()
        )
        permutes = [] if order is None else [lambda rows: rows.index_select(0, order)]
        return _awaitable(pending, permutes)

    def _rows_sent(self, ctx: SequenceShardingContext) -> Tensor:
        """Return [F, P] int64: ids of each of this rank's features that each rank asked for."""
        collective = self.collective
        num_shards = len(collective.layout.shards_by_rank[collective.rank])
        lengths = ctx.lengths_after_input_dist
        if not num_shards or lengths is None:
            return torch.zeros(0, collective.world_size, dtype=torch.int64)
        sizes = self._batch_sizes(lengths.shape[1], ctx.batch_size_per_rank)
        ends = torch.zeros(num_shards, lengths.shape[1] + 1, dtype=torch.int64)
        # Waits for a GPU, because the host needs the sizes to launch the exchange.
        torch.cumsum(lengths.cpu(), 1, out=ends[:, 1:])
        return ends[:, torch.tensor([0, *accumulate(sizes)])].diff(dim=1)
