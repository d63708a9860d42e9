"""ExchangePlan: the frames of an exchange of rows and of the reverse exchange of their gradients.

An `ExchangePlan` stays from batch to batch. With the rows of one batch it gives a `PlacedExchange`.

Knows: frame plans, places of rows. Does not know: process groups, autograd.
"""

from dataclasses import dataclass

from torch import Tensor

from trec_qcomm.comm.frames.plan import FramePlan, PlacedFrames
from trec_qcomm.comm.rows.layout import Places, packed
from trec_qcomm.core.counters import Traffic


@dataclass(frozen=True, eq=False)
class ExchangePlan:
    """Plans of the four sets of frames of an exchange.

    Args:
        forward_sent, forward_received: the rows.
        backward_sent, backward_received: the gradients of the rows.
    """

    forward_sent: FramePlan
    forward_received: FramePlan
    backward_sent: FramePlan
    backward_received: FramePlan

    def place(
        self,
        owned: Places,
        sampled: Places,
        sent_shape: tuple[int, ...],
        result_shape: tuple[int, ...],
        *,
        gradient: Places | None = None,
        num_summands: int = 1,
    ) -> "PlacedExchange":
        """Return the exchange with the rows of one batch.

        Args:
            owned: places of the rows that are sent, and of the gradients that come back.
            sampled: places of the rows that are received.
            sent_shape, result_shape, num_summands: fields of PlacedExchange.
            gradient: places of the gradients that are sent; None: `sampled`.
        """
        return PlacedExchange(
            forward_sent=self.forward_sent.place(*owned),
            forward_received=self.forward_received.place(*sampled),
            backward_sent=self.backward_sent.place(*(gradient or sampled)),
            backward_received=self.backward_received.place(*owned),
            sent_shape=sent_shape,
            result_shape=result_shape,
            num_summands=num_summands,
        )

    def place_packed(self, rows_sent: Tensor, rows_received: Tensor) -> "PlacedExchange":
        """Return the exchange of segments that lie one after the other at both ends.

        Args: rows_sent, rows_received: [S] int64, rows of the segments of each side's frames.
        """
        return self.place(
            packed(self.forward_sent, rows_sent),
            packed(self.forward_received, rows_received),
            (int(rows_sent @ self.forward_sent.dims),),
            (int(rows_received @ self.forward_received.dims),),
        )


@dataclass(frozen=True, eq=False)
class PlacedExchange:
    """The four sets of frames of an exchange, with the rows and places of one batch.

    Args:
        forward_sent, forward_received: the rows.
        backward_sent, backward_received: the gradients of the rows.
        sent_shape: shape of the rows given to `start`.
        result_shape: shape of the rows that `wait` returns.
        num_summands: number of results that are received one after the other, to be added up in
            rank order.
    """

    forward_sent: PlacedFrames
    forward_received: PlacedFrames
    backward_sent: PlacedFrames
    backward_received: PlacedFrames
    sent_shape: tuple[int, ...]
    result_shape: tuple[int, ...]
    num_summands: int = 1

    def count_uncoded(self, *traffics: Traffic) -> None:
        """Count rows that are sent without frames, and their gradients if `traffics` has two.

        Args: traffics: a counter of the rows, and one of their gradients.
        """
        for traffic, placed in zip(traffics, (self.forward_sent, self.backward_sent), strict=False):
            raw, _ = placed.bytes_to_others
            traffic.add_bytes(placed.plan.table, raw, raw, 0)
