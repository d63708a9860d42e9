"""RowExchange, the state of one call of a collective of rows, and its two autograd nodes.

`Launch` sends rows and `Collect` receives them. In backward `Collect` sends the gradients and
`Launch` receives them, as in TorchRec, so that whatever runs in between overlaps with the network.
All four steps are named in profiler traces. On a GPU they run on a stream of their own.

Knows: exchanges, autograd. Does not know: which codec, TorchRec.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.profiler import record_function

from trec_qcomm.comm.exchange import PendingFrames, start_exchange
from trec_qcomm.comm.frames.coding import SealedFrames, encode_frames
from trec_qcomm.comm.frames.plan import PlacedFrames
from trec_qcomm.comm.frames.refused_rows import coded_otherwise
from trec_qcomm.comm.rows.exchange_plan import CountedMasks, PlacedExchange
from trec_qcomm.comm.rows.hooks import TransformedRows
from trec_qcomm.comm.streams import join, side_stream
from trec_qcomm.core.checks import deferring
from trec_qcomm.core.errors import UnencodableError
from trec_qcomm.core.segments import Masks
from trec_qcomm.ops.batch.rank_sum import rank_sum

if TYPE_CHECKING:
    from trec_qcomm.comm.rows.collective import RowCollective

Encode = Callable[[PlacedFrames], SealedFrames]


class PendingRows:
    """Rows on their way. Call `wait` once.

    Args:
        call: the exchange.
        token: [0], of the rows' dtype, the tensor that joins the two autograd nodes. In backward
            its gradient comes when the exchange of the rows' gradients has begun and is not waited
            for yet.
    """

    def __init__(self, call: "RowExchange", token: Tensor) -> None:
        self._call, self.token = call, token

    @property
    def pg(self) -> dist.ProcessGroup:
        """Process group of the exchange."""
        return self._call.op.pg

    def wait(self) -> Tensor:
        """Return the rows in the exchange's result_shape.

        Raises: CorruptFrameError.  LostPeerError.
        """
        rows: Tensor = Collect.apply(self._call, self.token)  # type: ignore[no-untyped-call]
        return rows


@dataclass(eq=False)
class RowExchange:
    """State that the two autograd nodes of one call share.

    Args:
        op: the collective.
        exchange: the frames of this batch.
        gradient_divisor: number that the gradients are divided by.
        exact: whether rows are sent unchanged in place of what the config says.
        step: number of the step, negative in evaluation.
        tolerances: [T] float64, the tolerances of forward; None: the codecs' own.
        device: where the rows lie.
        has_fixed_size: whether both ends know all sizes, by direction.
        pending: the exchange that was launched and not waited for.
        coded: the gradient that it codes. Autograd would add another one to it in place if nobody
            else referred to it, while the stream of the exchange may still read it.
        num_backwards: how often backward was launched.
        masks: where backward needs them, the columns that forward kept of what was sent and of what
            was received. They live as long as the graph, which may be run backward again.
        counted: both masks, and how many columns they keep, once forward has ended.
        context: what transforms need to know of this call; None: they do nothing in it.
    """

    op: "RowCollective"
    exchange: PlacedExchange
    gradient_divisor: int
    exact: bool
    step: int
    tolerances: Tensor | None
    device: torch.device
    has_fixed_size: Mapping[str, bool]
    pending: PendingFrames | None = None
    coded: Tensor | None = None
    num_backwards: int = 0
    masks: tuple[Masks, Masks] | None = None
    counted: CountedMasks | None = None
    context: object = None

    @property
    def moment(self) -> str:
        """Number of the step or evaluation, in words."""
        return f"step {self.step}" if self.step >= 0 else f"evaluation {-self.step - 1}"

    def placed_frames(self, direction: str) -> tuple[PlacedFrames, PlacedFrames]:
        """Return the frames that are sent and those that are received, with masks if needed."""
        exchange, forward = self.exchange, direction == "forward"
        sent = exchange.forward_sent if forward else exchange.backward_sent
        received = exchange.forward_received if forward else exchange.backward_received
        if self.masks is None:
            return sent, received
        if forward:
            owned, sampled = self.masks
            return sent.with_masks(owned), received.with_masks(sampled)
        assert self.counted is not None, "backward without forward"
        owned, sampled = self.counted.wait()
        return sent.with_masks(sampled), received.with_masks(owned)

    def _kind(self, direction: str) -> int:
        """Return bits for: backward, evaluation, float32 in place of the config's codecs."""
        return (direction == "backward") | (self.step < 0) << 1 | self.exact << 2

    def launch(self, values: Tensor, direction: str) -> None:
        """Encode the rows or gradients and start their exchange."""
        op, forward = self.op, direction == "forward"
        with side_stream(self.device):  # what reads masks to know its size uploads and keeps places
            sent, received = self.placed_frames(direction)
        traffic = op.forward_traffic if forward else op.backward_traffic
        again = 0 if forward else self.num_backwards
        self.num_backwards += not forward
        op.checks.raise_found()
        values = values.detach().contiguous()
        self.coded = None if forward else values
        fed = self._transformed(values, direction, sent)
        values = values if fed is None else fed.values
        seed = op.noise_seed(self.step, direction, again)
        tolerances = self.tolerances if forward else None
        for observer in op.observers:
            observer.observe(
                op, direction, self.step, values, sent, seed=seed, tolerances=tolerances
            )
        with (
            record_function(f"## {op.name} {direction} start ##"),
            side_stream(self.device, values, *([] if fed is None else fed.tensors)),
        ):
            encode = partial(
                encode_frames,
                values,
                call=op.next_exchange(self._kind(direction)),
                seed=seed,
                traffic=traffic,
                measure=op.measure_error,
                tolerances=tolerances,
                decoded=None if fed is None else fed.decoded,
            )
            # Asked of the config, also in a bypass: sizes tell ranks that one of them is in one.
            fixed_size = self.has_fixed_size[direction] and sent.fixed_size and received.fixed_size
            self.pending = start_exchange(
                op.peers,
                self._encoded(encode, direction, sent, fixed_size),
                received,
                fixed_size=fixed_size,
                traffic=traffic,
                name=f"{direction} all-to-all of {op.name}, {self.moment}",
            )
            if fed is not None:
                fed.note()
            if traffic.newly_flushed:
                op.warn_of_flushed(traffic, direction, self.step)

    def _transformed(
        self, values: Tensor, direction: str, sent: PlacedFrames
    ) -> TransformedRows | None:
        """Return the rows as the direction's transform changes them; None: there is none."""
        transform = self.op.transforms.get(direction)
        if self.context is None or transform is None:
            return None
        return transform.apply(values, sent, self.context)

    def _encoded(
        self, encode: Encode, direction: str, sent: PlacedFrames, fixed_size: bool
    ) -> SealedFrames:
        """Return the frames; rows that their codec refuses are exact, where that is asked for."""
        while True:
            try:
                return encode(sent)
            except UnencodableError as error:
                table = error.table
                if self.op.refusals is None or fixed_size or table is None:
                    raise
                self.op.refusals.refused(self.op, direction, self.step, error)
            sent = coded_otherwise(sent, table, self.op.exact_codec(table, direction))

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
            observers = [o for o in self.op.observers if o.looks_at_received(self.step)]
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
                observer.observe_received(self.op, direction, self.step, parts, received)
            if forward and self.masks is not None:
                owned, sampled = self.masks
                sides = (exchange.backward_received, owned), (exchange.backward_sent, sampled)
                self.counted = CountedMasks(sides)
        join(self.device, out)
        self.coded = None
        return out


class Launch(Function):
    """Autograd node that sends rows and returns a token; backward receives the gradients."""

    @staticmethod
    def forward(ctx: Any, call: RowExchange, rows: Tensor) -> Tensor:
        ctx.call = call
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
