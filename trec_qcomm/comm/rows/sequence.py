"""Sequence all-to-all: a row for every id goes to the owner of the sample, its gradient comes back.

The rows of a table for one rank lie together at both ends, and a segment says where. So TorchRec's
permutes of rows before and after the exchange are not needed.
Shapes: P ranks; F shards (features) of this rank; all rows have D values.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.rows.collective import RowCollective, Uncoded
from trec_qcomm.comm.rows.exchange_plan import ExchangePlan, PlacedExchange
from trec_qcomm.comm.rows.layout import Layout, packed
from trec_qcomm.core.segments import exclusive_cumsum


class SequenceAllToAll(RowCollective):
    """Exchange of table-wise, column-wise and row-wise shardings of unpooled embeddings."""

    def __init__(self, pg: dist.ProcessGroup, layout: Layout, **options: Any) -> None:
        """Take the arguments of RowCollective. Raises ValueError if rows have several widths."""
        dims = {shard.dim for shards in layout.shards_by_rank for shard in shards}
        if len(dims) > 1:
            raise ValueError(f"{options['name']}: rows of {sorted(dims)} values must be equal")
        self._dim = dims.pop() if dims else 1
        super().__init__(pg, layout, **options)

    def start(
        self,
        rows: Tensor,
        rows_sent: Tensor,
        rows_received: Tensor,
        *,
        exact: bool = False,
        gradient_divisor: int = 1,
        uncoded: Uncoded | None = None,
    ) -> Any:
        """Launch the exchange.

        Args:
            rows: [N, D], of the layout's dtype: for each of this rank's shards, for each rank,
                that rank's rows.
            rows_sent: [F, P] int64 on CPU, the number of these rows.
            rows_received: [number of shards of all owners] int64 on CPU, numbers of rows.
            exact: whether to send rows unchanged in both directions.
            gradient_divisor: number that the gradients are divided by when they are received.
            uncoded: argument of PooledCollective.start.
        Returns: PendingRows of [M, D]: for each owner, for each of its shards, this rank's rows;
            or what `uncoded` returns.
        Raises: ValueError: rows of another shape or dtype.  UnencodableError: a value that a codec
            refuses.
        """
        coding = self._coding_for(exact)
        sizes = tuple(map(tuple, rows_sent.tolist())), tuple(rows_received.tolist())
        # Where every sample has as many ids, all batches have the same sizes.
        exchange = coding.kept(sizes, lambda: self._place_exchange(coding.plan, *sizes))
        return self._start(rows, exchange, gradient_divisor, exact, uncoded=uncoded)

    def _place_exchange(
        self, plan: ExchangePlan, sent: tuple[tuple[int, ...], ...], received: tuple[int, ...]
    ) -> PlacedExchange:
        """Place the frames of a batch of these numbers of rows, see `start`."""
        rows_sent = torch.tensor(sent, dtype=torch.int64).view(len(sent), self.world_size)
        start = exclusive_cumsum(rows_sent.view(-1) * self._dim)[:-1].view(rows_sent.shape)
        # Frames have this rank's shards rank by rank, and `rows` has the ranks shard by shard.
        owned = rows_sent.T.reshape(-1), start.T.reshape(-1), plan.forward_sent.dims
        rows_received = torch.tensor(received, dtype=torch.int64)
        sampled = packed(plan.forward_received, rows_received)
        sent_shape, result_shape = ((int(n.sum()), self._dim) for n in (rows_sent, rows_received))
        return plan.place(owned, sampled, sent_shape, result_shape)
