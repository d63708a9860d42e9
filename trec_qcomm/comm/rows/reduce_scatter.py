"""Pooled reduce-scatter: partial sums of all ranks are added up at the owners of the samples.

Forward is an all-to-all of encoded partial rows. They are decoded and summed in rank order, in the
dtype of the rows, so the result does not depend on the order of arrival, and encoded bytes are
never added.
Backward sends one gradient to every rank: equal frames, encoded once. Where both ends know which
partial rows are empty, `start_selected` sends only the others and only their gradients.

Error: each of the P partial rows is coded with 1/P of a BOUNDED codec's error bound, so the bound
holds for the sum, up to the sum's own rounding, (P - 1) 2^-24 sum|x|.
Shapes: B_r samples of rank r, B their sum; D columns, equal on all P ranks.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch.distributed as dist
from torch import Tensor

from trec_qcomm.comm.rows.autograd import PendingRows
from trec_qcomm.comm.rows.collective import (
    PooledCollective,
)
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.exchange_plan import ExchangePlan, PlacedExchange
from trec_qcomm.comm.rows.layout import Layout, behind_one_another, first_columns, in_matrix, packed
from trec_qcomm.comm.rows.selected import add_rows, take_rows
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.ops.batch.rows import Rows


class PooledReduceScatter(PooledCollective):
    """Exchange of row-wise shardings, and of two-level ones inside a node.

    `start` takes [B, D] and its result is [B_rank, D].
    """

    def __init__(self, pg: dist.ProcessGroup, layout: Layout, **options: Any) -> None:
        """Take the arguments of RowCollective. Raises ValueError: ranks whose columns differ."""
        if len(set(layout.shards_by_rank)) > 1:
            raise ValueError(f"{options['name']}: ranks whose columns differ cannot be summed")
        super().__init__(pg, layout, **options)

    def _make_plan(self, codecs: DirectionCodecs) -> ExchangePlan:
        return self._repeated_plan(codecs, 1)

    def _repeated_plan(self, codecs: DirectionCodecs, repeats: int) -> ExchangePlan:
        rank, size = self.rank, self.world_size
        owners = [rank] * size
        forward = self.layout.plan_frames(
            owners, rank, codecs.forward, repeats=repeats, num_summands=size
        )
        return ExchangePlan(
            forward_sent=forward,
            forward_received=forward,
            backward_sent=self.layout.plan_frames(
                [rank], rank, codecs.backward, fan_out=size, repeats=repeats
            ),
            backward_received=self.layout.plan_frames(
                owners, rank, codecs.backward, repeats=repeats
            ),
        )

    def _place_exchange(self, batch_sizes: tuple[int, ...], exact: bool) -> PlacedExchange:
        plan = self._coding.plan_for(exact)
        width, batch_size = self.layout.dim_sum(self.rank), batch_sizes[self.rank]
        owned = in_matrix(plan.forward_sent, batch_sizes, first_columns(plan.forward_sent), width)
        gradient = in_matrix(
            plan.backward_sent, [batch_size], first_columns(plan.backward_sent), width
        )
        return PlacedExchange(
            forward_sent=plan.forward_sent.place(*owned),
            forward_received=plan.forward_received.place(
                *behind_one_another(plan.forward_received, gradient, batch_size * width)
            ),
            backward_sent=plan.backward_sent.place(*gradient),
            backward_received=plan.backward_received.place(*owned),
            sent_shape=(sum(batch_sizes), width),
            result_shape=(batch_size, width),
            num_summands=self.world_size,
        )

    def start_variable(
        self,
        rows: Tensor,
        rows_sent: Sequence[Sequence[int]],
        *,
        exact: bool = False,
        gradient_divisor: int = 1,
    ) -> PendingRows:
        """Launch the exchange of a batch in which every feature has a batch size of its own.

        Args:
            rows: [N], of the layout's dtype: for each rank, for each shard, that rank's rows; the
                shards may follow one another several times.
            rows_sent: [P][number of shards, or a multiple], batch sizes.
            exact, gradient_divisor: arguments of `start`.
        Returns: pending [M]: for each shard, this rank's rows.
        Raises: ValueError: rows of another shape or dtype, or sizes that are no multiple of the
            shards.  UnencodableError.
        """
        repeats, rest = divmod(
            len(rows_sent[self.rank]), max(len(self.layout.shards_by_rank[0]), 1)
        )
        if rest:
            raise ValueError(f"{self.name}: {len(rows_sent[self.rank])} sizes for the shards")
        codecs = self._codecs_for(exact)
        plan = self._coding.kept(
            ("repeated", exact, repeats), lambda: self._repeated_plan(codecs, repeats)
        )
        owned = packed(plan.forward_sent, int64_tensor(chain.from_iterable(rows_sent)))
        rows_received = int64_tensor(rows_sent[self.rank])
        gradient = packed(plan.backward_sent, rows_received)
        size = int((rows_received * plan.backward_sent.dims).sum())
        exchange = PlacedExchange(
            forward_sent=plan.forward_sent.place(*owned),
            forward_received=plan.forward_received.place(
                *behind_one_another(plan.forward_received, gradient, size)
            ),
            backward_sent=plan.backward_sent.place(*gradient),
            backward_received=plan.backward_received.place(*owned),
            sent_shape=(int((owned[0] * plan.forward_sent.dims).sum()),),
            result_shape=(size,),
            num_summands=self.world_size,
        )
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
    ) -> PendingRows:
        """Launch the exchange of some partial rows; the others are 0, and get a gradient of 0.

        Args:
            rows: partial rows in any shape, of the layout's dtype.
            sent: for each rank, for each shard, the rows to send.
            received: for each rank, for each shard, the places of its rows in the result.
            shape: shape of the result.
            exact, gradient_divisor: arguments of `start`.
        Returns: pending sums of that shape.
        Raises: UnencodableError.
        """
        codecs = self._codecs_for(exact)
        plan = self._coding.kept(
            ("selected", exact),
            lambda: self._owners_to_samples(codecs, num_summands=self.world_size),
        )
        owned, sampled = (
            packed(plan.forward_sent, sent.counts),
            packed(plan.forward_received, received.counts),
        )
        exchange = PlacedExchange(
            forward_sent=plan.forward_sent.place(*owned),
            forward_received=plan.forward_received.place(*sampled),
            backward_sent=plan.backward_sent.place(*sampled),
            backward_received=plan.backward_received.place(*owned),
            sent_shape=(sent.num_values,),
            result_shape=(received.num_values,),
        )
        add = partial(add_rows, rows=received, shape=shape)
        return self._start(take_rows(rows, sent), exchange, gradient_divisor, exact, then=add)
