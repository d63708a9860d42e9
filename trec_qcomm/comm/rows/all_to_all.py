"""Pooled all-to-all: rows go from the owners of columns to the owners of samples, gradients back.

Shapes: B_r samples of rank r, B their sum; D_r columns of rank r, D their sum; P ranks.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from torch import Tensor

from trec_qcomm.comm.rows.collective import PooledCollective, Uncoded
from trec_qcomm.comm.rows.exchange_plan import ExchangePlan, PlacedExchange
from trec_qcomm.comm.rows.layout import in_matrix, side_by_side
from trec_qcomm.core.segments import int64_tensor


class PooledAllToAll(PooledCollective):
    """Exchange of table-wise and column-wise shardings, and of two-level ones between nodes.

    `start` takes [B, D_rank]. Its result is [B_rank, D], with the columns owner by owner.
    """

    def _place_exchange(self, plan: ExchangePlan, batch_sizes: tuple[int, ...]) -> PlacedExchange:
        width, batch_size = self.layout.dim_sum(self.rank), batch_sizes[self.rank]
        owned = in_matrix(plan.forward_sent, batch_sizes, width)
        sampled = side_by_side(plan.forward_received, batch_size)
        result_shape = batch_size, int(plan.forward_received.dims.sum())
        return plan.place(owned, sampled, (sum(batch_sizes), width), result_shape)

    def start_variable(
        self,
        rows: Tensor,
        rows_sent: Sequence[Sequence[int]],
        rows_received: Sequence[int],
        *,
        exact: bool = False,
        gradient_divisor: int = 1,
        uncoded: Uncoded | None = None,
    ) -> Any:
        """Launch the exchange of a batch in which every feature has a batch size of its own.

        Args:
            rows: [N], of the layout's dtype: for each rank, for each of this rank's shards, that
                rank's rows.
            rows_sent: [P][number of this rank's shards], batch sizes.
            rows_received: [number of shards of all owners], batch sizes.
            exact, gradient_divisor, uncoded: arguments of `start`.
        Returns: PendingRows of [M]: for each owner, for each of its shards, this rank's rows; or
            what `uncoded` returns.
        Raises: ValueError: rows of another shape or dtype.  UnencodableError: a value that a codec
            refuses.
        """
        exchange = self._coding_for(exact).plan.place_packed(
            int64_tensor(chain.from_iterable(rows_sent)), int64_tensor(rows_received)
        )
        return self._start(rows, exchange, gradient_divisor, exact, uncoded=uncoded)
