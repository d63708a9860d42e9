"""Pooled reduce-scatter: partial sums of all ranks are added up at the owners of the samples.

Forward is an all-to-all of encoded partial rows. They are decoded and summed in rank order, in the
dtype of the rows. So the result does not depend on the order of arrival, and encoded bytes are
never added. Backward sends one gradient to every rank: equal frames, encoded once. If both ends
know which partial rows are empty, `start_selected` leaves out these rows and their gradients.

Error: each of the P partial rows is coded with 1/P of a BOUNDED codec's error bound. So the bound
holds for the sum, up to the sum's own rounding, (P - 1) 2^-24 sum|x|.
Shapes: B_r samples of rank r, B their sum; D columns, equal on all P ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.rows.collective import PooledCollective
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.exchange_plan import ExchangePlan, PlacedExchange
from trec_qcomm.comm.rows.layout import Layout, Places, behind_one_another, in_matrix, packed
from trec_qcomm.comm.rows.selected import add_rows, take_rows
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.ops.batch.rows import Rows


class PooledReduceScatter(PooledCollective):
    """Exchange of row-wise shardings, and of two-level ones inside a node.

    `start` takes [B, D]. Its result is [B_rank, D].
    """

    def __init__(self, pg: dist.ProcessGroup, layout: Layout, **options: Any) -> None:
        """Take the arguments of RowCollective. Raises ValueError if the ranks' columns differ."""
        if len(set(layout.shards_by_rank)) > 1:
            raise ValueError(f"{options['name']}: ranks whose columns differ cannot be summed")
        super().__init__(pg, layout, **options)

    def _make_plan(self, codecs: DirectionCodecs, repeats: int = 1) -> ExchangePlan:
        rank, size = self.rank, self.world_size
        to_all = self.layout.plan_frames(
            [rank], rank, codecs.backward, fan_out=size, repeats=repeats
        )
        plan = self._owners_to_samples(codecs, repeats=repeats, num_summands=size)
        return replace(plan, backward_sent=to_all)

    def _place_exchange(self, plan: ExchangePlan, batch_sizes: tuple[int, ...]) -> PlacedExchange:
        width, batch_size = self.layout.dim_sum(self.rank), batch_sizes[self.rank]
        owned = in_matrix(plan.forward_sent, batch_sizes, width)
        gradient = in_matrix(plan.backward_sent, [batch_size], width)
        sent_shape, result_shape = (sum(batch_sizes), width), (batch_size, width)
        return self._summed(plan, owned, gradient, sent_shape, result_shape)

    def _summed(
        self,
        plan: ExchangePlan,
        owned: Places,
        gradient: Places,
        sent_shape: tuple[int, ...],
        result_shape: tuple[int, ...],
    ) -> PlacedExchange:
        """Place an exchange whose results lie one behind the other, as the gradients of one do."""
        sampled = behind_one_another(plan.forward_received, gradient, math.prod(result_shape))
        shapes, size = (sent_shape, result_shape), self.world_size
        return plan.place(owned, sampled, *shapes, gradient=gradient, num_summands=size)

    def start_variable(
        self,
        rows: Tensor,
        rows_sent: Sequence[Sequence[int]],
        *,
        exact: bool = False,
        gradient_divisor: int = 1,
    ) -> Any:
        """Launch the exchange of a batch in which every feature has a batch size of its own.

        Args:
            rows: [N], of the layout's dtype: for each rank, for each shard, that rank's rows; the
                shards may follow one another several times.
            rows_sent: [P][number of shards, or a multiple], batch sizes.
            exact, gradient_divisor: arguments of `start`.
        Returns: PendingRows of [M]: for each shard, this rank's rows.
        Raises: ValueError: rows of another shape or dtype, or a number of sizes that is no multiple
            of the number of shards.  UnencodableError: a value that a codec refuses.
        """
        repeats, rest = divmod(
            len(rows_sent[self.rank]), max(len(self.layout.shards_by_rank[0]), 1)
        )
        if rest:
            sizes, shards = len(rows_sent[self.rank]), len(self.layout.shards_by_rank[0])
            raise ValueError(f"{self.name}: {sizes} sizes; allowed: a multiple of {shards} shards")
        coding = self._coding_for(exact)
        plan = coding.kept(("repeated", repeats), lambda: self._make_plan(coding.codecs, repeats))
        owned = packed(plan.forward_sent, int64_tensor(chain.from_iterable(rows_sent)))
        rows_received = int64_tensor(rows_sent[self.rank])
        gradient = packed(plan.backward_sent, rows_received)
        sent_shape, result_shape = (
            (int(num_rows @ dims),) for num_rows, _, dims in (owned, gradient)
        )
        exchange = self._summed(plan, owned, gradient, sent_shape, result_shape)
        return self._start(rows, exchange, gradient_divisor, exact)

    def start_selected(
        self,
        rows: Tensor,
        sent: Rows,
        received: Rows,
        shape: tuple[int, ...],
        *,
        exact: bool = False,
        gradient_divisor: int = 1,
    ) -> Any:
        """Launch the exchange of some partial rows. All other rows are 0 and get a gradient of 0.

        Args:
            rows: partial rows in any shape, of the layout's dtype.
            sent: for each rank, for each shard, the rows to send.
            received: for each rank, for each shard, the places of its rows in the result.
            shape: shape of the result.
            exact, gradient_divisor: arguments of `start`.
        Returns: pending sums of that shape.
        Raises: UnencodableError: a value that a codec refuses.
        """
        coding, size = self._coding_for(exact), self.world_size
        plan = coding.kept(
            "selected", lambda: self._owners_to_samples(coding.codecs, num_summands=size)
        )
        exchange = plan.place_packed(sent.counts, received.counts)
        add = partial(add_rows, rows=received, shape=shape)
        return self._start(take_rows(rows, sent), exchange, gradient_divisor, exact, then=add)
