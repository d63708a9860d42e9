"""RowExchange, the state of one call of a collective of rows, and its two autograd nodes.

`Launch` sends rows and `Collect` receives them. In backward `Collect` sends the gradients and
`Launch` receives them, as in TorchRec. So computation between the two overlaps with the network.
All four steps are named in profiler traces. On a GPU they run on a stream of their own.

Knows: exchanges, autograd. Does not know: which codec, TorchRec.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.profiler import record_function

from trec_qcomm.comm.exchange import PendingFrames, start_exchange
from trec_qcomm.comm.frames.coding import encode_frames
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.rows.channel import Channel
from trec_qcomm.comm.rows.doors import Call, CallTransform, TransformedRows
from trec_qcomm.comm.rows.exchange_plan import PlacedExchange
from trec_qcomm.comm.streams import join, side_stream
from trec_qcomm.core.checks import deferring
from trec_qcomm.core.counters import Traffic
from trec_qcomm.ops.batch.rank_sum import rank_sum


class PendingRows:
    """Rows on their way. Call `wait` once.

    Args:
        call: the exchange.
        then: function of the rows whose result `wait` returns; None: `wait` returns the rows.
        token: [0], of the rows' dtype, the tensor that joins the two autograd nodes. In backward
            its gradient arrives after the exchange of the rows' gradients was started, and before
            it is waited for.
    """

    def __init__(
        self, call: "RowExchange", token: Tensor, then: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self._call, self.token, self._then = call, token, then

    @property
    def pg(self) -> dist.ProcessGroup:
        """Process group of the exchange."""
        return self._call.op.pg

    def wait(self) -> Tensor:
        """Return the rows in the exchange's result_shape, or the result of `then`.

        Raises: CorruptFrameError: a frame is wrong.  LostPeerError: a peer is gone.
        """
        rows: Tensor = Collect.apply(self._call, self.token)  # type: ignore[no-untyped-call]
        return rows if self._then is None else self._then(rows)


@dataclass(eq=False)
class RowExchange:
    """State that the two autograd nodes of one call share.

    Args:
        op: the collective.
        exchange: the frames of this batch.
        call: the call, in forward.
        exact: whether rows are sent unchanged, whatever the config says.
        gradient_divisor: number that the gradients are divided by.
        device: device of the rows.
        has_fixed_size: whether both ends know all sizes, by direction.
        transforms: transforms that change the rows of this call.
    Attributes:
        call: the direction that was begun last.
        pending: the exchange that was launched and not waited for yet.
        coded: the gradient that this exchange codes. The reference keeps autograd from adding
            another gradient to it in place while the stream of the exchange may still read it.
        num_backwards: how often backward was launched.
    """

    op: Channel
    exchange: PlacedExchange
    call: Call
    exact: bool
    gradient_divisor: int
    device: torch.device
    has_fixed_size: Mapping[str, bool]
    transforms: Sequence[CallTransform] = ()
    pending: PendingFrames | None = field(init=False, default=None)
    coded: Tensor | None = field(init=False, default=None)
    num_backwards: int = field(init=False, default=0)

    def _frames(self, direction: str) -> tuple[PlacedFrames, PlacedFrames]:
        """Return the frames that are sent and those that are received, as transforms want them."""
        exchange, forward = self.exchange, direction == "forward"
        sent = exchange.forward_sent if forward else exchange.backward_sent
        received = exchange.forward_received if forward else exchange.backward_received
        with side_stream(self.device):  # frames may be new, and upload and keep places
            for transform in self.transforms:
                sent, received = transform.frames(direction, sent, received)
        return sent, received

    def _transformed(
        self, values: Tensor, direction: str, sent: PlacedFrames, traffic: Traffic
    ) -> TransformedRows:
        """Return the rows to encode: `values`, unless a transform gives others."""
        for transform in self.transforms:
            rows = transform.rows(direction, values, sent, traffic)
            if rows is not None:
                return rows
        return TransformedRows(values)

    def _kind(self) -> int:
        """Return bits for: backward, evaluation, float32 in place of the config's codecs."""
        call = self.call
        return (call.direction == "backward") | (not call.is_training) << 1 | self.exact << 2

    def _begin_backward(self) -> None:
        """Make the call that of the gradients; the same graph may run backward again."""
        call, again = self.call, self.num_backwards
        seed = self.op.noise_seed(call.step, call.is_training, "backward", again)
        self.call = replace(call, direction="backward", seed=seed, tolerances=None)
        self.num_backwards += 1

    def launch(self, values: Tensor, direction: str) -> None:
        """Encode the rows or gradients and start their exchange."""
        op, forward = self.op, direction == "forward"
        traffic = op.forward_traffic if forward else op.backward_traffic
        sent, received = self._frames(direction)
        if not forward:
            self._begin_backward()
        call, moment = self.call, self.call.moment
        op.checks.raise_found()
        values = values.detach().contiguous()
        self.coded = None if forward else values
        fed = self._transformed(values, direction, sent, traffic)
        values = fed.values
        for observer in op.observers:
            observer.before_encoding(call, values, sent)
        with (
            record_function(f"## {op.name} {direction} start ##"),
            side_stream(self.device, values, *fed.tensors),
            deferring(op.checks),  # own frames are decoded where residuals are kept
        ):
            frames = encode_frames(
                values,
                sent,
                call=op.next_exchange(self._kind()),
                seed=call.seed,
                traffic=traffic,
                measure=op.measure_error,
                tolerances=call.tolerances,
                decoded=fed.decoded,
            )
            # Asked of the config, also in a bypass: frames of a rank alone in one are refused.
            fixed_size = self.has_fixed_size[direction] and sent.fixed_size and received.fixed_size
            self.pending = start_exchange(
                op.peers,
                frames,
                received,
                fixed_size=fixed_size,
                traffic=traffic,
                name=f"{direction} all-to-all of {op.name}, {moment}",
            )
            fed.note()
            if traffic.newly_flushed:
                op.warn_of_flushed(traffic, direction, moment)

    def finish(self, direction: str) -> Tensor:
        """Wait for the exchange, and return what was received, decoded and summed up."""
        exchange, forward = self.exchange, direction == "forward"
        assert self.pending is not None, "waited for twice, or backward without forward"
        with (
            record_function(f"## {self.op.name} {direction} wait ##"),
            side_stream(self.device),
            deferring(self.op.checks),
        ):
            # `out` is not a view of a larger buffer: callers may change it in place.
            shape = exchange.result_shape if forward else exchange.sent_shape
            out = torch.empty(shape, dtype=self.op.dtype, device=self.device)
            observers = [o for o in self.op.observers if o.looks_at_received(self.call)]
            summed = forward and exchange.num_summands > 1
            if observers and summed:  # with the same bits, and parts to be shown
                parts = out.new_empty(exchange.num_summands, out.numel())
                self.pending.wait(parts)
                rank_sum(parts, out)
            else:
                parts = out
                self.pending.wait(out, summed=summed)
            self.pending = None
            for observer in observers:
                received = exchange.forward_received if forward else exchange.backward_received
                observer.after_decoding(self.call, parts, received)
        join(self.device, out)
        self.coded = None
        return out


class Launch(Function):
    """Autograd node that sends rows and returns a token; backward receives the gradients.

    Of the nodes that are ready, autograd runs the one of the largest number first; it counts all
    nodes of a thread. A Launch has the number of the thread's Launches, which is smaller. So the
    backward of other layers, and the all-reduce of their gradients, begin before this node waits
    for its peers.
    """

    _of_thread = threading.local()

    @staticmethod
    def forward(ctx: Any, call: RowExchange, rows: Tensor) -> Tensor:
        ctx.call = call
        number = Launch._of_thread.__dict__.setdefault("count", 0)
        Launch._of_thread.count = number + 1
        ctx._set_sequence_nr(number)
        call.launch(rows, "forward")
        return rows.new_empty(0)  # filling it would be a launch

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *token_grads: Tensor) -> tuple[None, Tensor]:
        call: RowExchange = ctx.call
        grad = call.finish("backward")
        if call.gradient_divisor != 1:
            grad.div_(call.gradient_divisor)
        return None, grad


class Collect(Function):
    """Autograd node that receives rows; backward sends their gradients."""

    @staticmethod
    def forward(ctx: Any, call: RowExchange, token: Tensor) -> Tensor:
        ctx.call = call
        return call.finish("forward")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (grad,) = grads
        ctx.call.launch(grad, "backward")
        return None, grad.new_empty(0)
