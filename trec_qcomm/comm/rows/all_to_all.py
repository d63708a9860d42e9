"""Pooled all-to-all: rows go from the owners of columns to the owners of samples, gradients back.

Shapes: B_r samples of rank r, B their sum; D_r columns of rank r, D their sum; P ranks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trec_qcomm.comm.rows.collective import (
    DirectionCodecs,
    PendingRows,
    PooledCollective,
    Route,
    Templates,
)
from trec_qcomm.comm.rows.layout import first_columns, in_matrix, packed, side_by_side


class PooledAllToAll(PooledCollective):
    """Table-wise and column-wise shardings, and the hop between nodes of the two-level ones.

    `start` takes [B, D_rank] and its result is [B_rank, D], owner by owner.
    """

    def _make_templates(self, codecs: DirectionCodecs) -> Templates:
        return self._owners_to_samples(codecs)

    def _make_route(self, batch_sizes: tuple[int, ...], exact: bool) -> Route:
        of = self._templates[exact]
        width, mine = self.layout.dim_sum(self.rank), batch_sizes[self.rank]
        owned = in_matrix(of.forward_sent, batch_sizes, first_columns(of.forward_sent), width)
        sampled = side_by_side(of.forward_received, mine)
        return Route(
            forward_sent=of.forward_sent.place(*owned),
            forward_received=of.forward_received.place(*sampled),
            backward_sent=of.backward_sent.place(*sampled),
            backward_received=of.backward_received.place(*owned),
            sent_shape=(sum(batch_sizes), width),
            result_shape=(mine, int(of.forward_received.dims.sum())),
        )

    def start_variable(
        self,
        rows: Tensor,
        rows_sent: Sequence[Sequence[int]],
        rows_received: Sequence[int],
        *,
        exact: bool = False,
        gradient_divisor: int = 1,
    ) -> PendingRows:
        """Launch with a batch size of its own for every feature.

        Args:    rows: [N] float32: for each rank, for each of this rank's blocks, its rows.
                 rows_sent: [P][own blocks] batch sizes.  rows_received: [blocks of all owners].
        Returns: pending [M] float32: for each owner, for each of its blocks, this rank's rows.
        Raises:  as `start`.
        """
        of = self._templates[exact]
        owned = packed(of.forward_sent, torch.tensor(rows_sent, dtype=torch.int64).view(-1))
        sampled = packed(of.forward_received, torch.tensor(rows_received, dtype=torch.int64))
        route = Route(
            forward_sent=of.forward_sent.place(*owned),
            forward_received=of.forward_received.place(*sampled),
            backward_sent=of.backward_sent.place(*sampled),
            backward_received=of.backward_received.place(*owned),
            sent_shape=(int((owned[0] * of.forward_sent.dims).sum()),),
            result_shape=(int((sampled[0] * of.forward_received.dims).sum()),),
        )
        return self._start(rows, route, gradient_divisor)
