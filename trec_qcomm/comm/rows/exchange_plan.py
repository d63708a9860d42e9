"""ExchangePlan: the frames of an exchange of rows and of the reverse exchange of their gradients.

An `ExchangePlan` stays from batch to batch; with the rows of a batch it is a `PlacedExchange`.

Knows: frame plans. Does not know: process groups, autograd, how rows lie.
"""

from dataclasses import dataclass

from trec_qcomm.comm.frames.plan import FramePlan, PlacedFrames


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


@dataclass(frozen=True, eq=False)
class PlacedExchange:
    """The four sets of frames of an exchange, with the rows and places of one batch.

    Args:
        forward_sent, forward_received: the rows.
        backward_sent, backward_received: the gradients of the rows.
        sent_shape: shape of the rows given to `start`.
        result_shape: shape of the rows that `wait` returns.
        num_summands: number of results that lie one behind the other in what is received, to be
            added up in rank order.
    """

    forward_sent: PlacedFrames
    forward_received: PlacedFrames
    backward_sent: PlacedFrames
    backward_received: PlacedFrames
    sent_shape: tuple[int, ...]
    result_shape: tuple[int, ...]
    num_summands: int = 1
