"""RowCollective, the base of all exchanges of rows: two autograd nodes, codecs, noise, counters.

`start` of a subclass launches the exchange and `wait` ends it. In backward `wait`'s node launches
the reverse exchange and `start`'s node ends it, as in TorchRec, so that whatever runs in between
overlaps with the network. All four steps are named in profiler traces.

On a GPU encoding and decoding run on a stream of their own. Nothing waits for the kernels that
check received frames: an error that they find is raised by a later exchange, or by
`RowCollective.checks`.

Knows: frame plans, exchanges, autograd. Does not know: which codec, TorchRec.
"""

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.profiler import record_function

from trec_qcomm.comm.exchange import PendingFrames, encode_frames, start_exchange
from trec_qcomm.comm.frame_plan import PlacedFrames
from trec_qcomm.comm.peers import Peers
from trec_qcomm.comm.rows.exchange_plan import ExchangePlan, PlacedExchange
from trec_qcomm.comm.rows.hooks import RowObserver, RowTolerances
from trec_qcomm.comm.rows.layout import Layout
from trec_qcomm.comm.streams import join, side_stream
from trec_qcomm.core.checks import DeferredChecks, deferring
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.segments import Masks
from trec_qcomm.ops.rank_sum import rank_sum

_log = logging.getLogger(__name__)
_KIND_BITS = 3
CACHED_BATCH_SHAPES = 32  # enough for the usual batch, an epoch's last one and evaluation


@dataclass(frozen=True)
class DirectionCodecs:
    """Codecs of the tables, the same on all ranks.

    Args: forward, backward: {table: codec} of the rows and of their gradients.
    """

    forward: Mapping[str, Codec]
    backward: Mapping[str, Codec]


class RowCollective(ABC):
    """Exchange of rows in one process group and one layout.

    Args:
        pg: the ranks.
        layout: columns of every rank.
        codecs: the config's codecs.
        exact: the codecs of `start(exact=True)`.
        name: text that keys the noise, and is in errors and traces.
        intra: whether all ranks are in one node; statistics keep such traffic apart.
        seed: the config's seed of stochastic rounding; ranks, steps and directions draw different
            noise from it.
        measure_error: whether to record max_abs_err, at the price of decoding what is sent.
        tolerances: rule that sets the tolerances of the forward codecs; None leaves them as the
            config has them.
    """

    def __init__(
        self,
        pg: dist.ProcessGroup,
        layout: Layout,
        *,
        codecs: DirectionCodecs,
        exact: DirectionCodecs,
        name: str,
        intra: bool = False,
        seed: int = 0,
        measure_error: bool = False,
        tolerances: RowTolerances | None = None,
    ) -> None:
        self.pg, self.layout, self.name = pg, layout, name
        self.peers = Peers(pg)
        self.rank, self.world_size = pg.rank(), pg.size()
        # It keys the noise, because groups of other ranks may use the same name.
        self._global_rank = dist.get_rank()
        self.step = 0  # number of calls with gradients so far; part of the state
        self._num_evaluations = 0  # calls without gradients; they do not change training's noise
        self._num_exchanges = 0  # in both directions; the ranks must agree
        self.intra = intra
        self.observer: RowObserver | None = None  # sees what is sent, such as a capture of rows
        hop = "intra_" if intra else ""
        self.forward_traffic = Traffic(f"{hop}embedding_forward", layout.tables())
        self.backward_traffic = Traffic(f"{hop}embedding_backward", layout.tables())
        self.checks = DeferredChecks()  # errors in frames in a GPU's memory
        self._seed, self.measure_error, self.tolerances = seed, measure_error, tolerances
        self._codecs = {False: codecs, True: exact}
        self.has_fixed_size = {
            "forward": all(codec.fixed_size for codec in codecs.forward.values()),
            "backward": all(codec.fixed_size for codec in codecs.backward.values()),
        }
        self._plans = {is_exact: self._make_plan(c) for is_exact, c in self._codecs.items()}
        for plan in self._plans.values():
            plan.check_masks(name)

    @abstractmethod
    def _make_plan(self, codecs: DirectionCodecs) -> ExchangePlan:
        """Return the plan of this kind of exchange."""

    def _owners_to_samples(self, codecs: DirectionCodecs, *, num_summands: int = 1) -> ExchangePlan:
        """Return a plan in which every rank sends its own shards to all and gets gradients back."""
        rank, size = self.rank, self.world_size
        owned, sampled = [rank] * size, range(size)  # the owner of the shards in each frame
        return ExchangePlan(
            forward_sent=self.layout.plan_frames(
                owned, rank, codecs.forward, num_summands=num_summands
            ),
            forward_received=self.layout.plan_frames(
                sampled, rank, codecs.forward, num_summands=num_summands
            ),
            backward_sent=self.layout.plan_frames(sampled, rank, codecs.backward),
            backward_received=self.layout.plan_frames(owned, rank, codecs.backward),
            mirrored=True,
        )

    def _start(
        self, rows: Tensor, exchange: PlacedExchange, gradient_divisor: int, exact: bool
    ) -> "PendingRows":
        """Launch the exchange.

        Raises: ValueError: rows of another shape or dtype.  UnencodableError.
        """
        if tuple(rows.shape) != exchange.sent_shape or rows.dtype != torch.float32:
            raise ValueError(
                f"{self.name}: rows are {list(rows.shape)} {rows.dtype}, "
                f"expected {list(exchange.sent_shape)} torch.float32"
            )
        if torch.is_grad_enabled():
            step = self.step
            self.step += 1
        else:
            self._num_evaluations += 1
            step = -self._num_evaluations
        call = _RowExchange(
            self,
            exchange,
            gradient_divisor,
            exact,
            step,
            self._tolerances_of(rows, exchange),
            rows.device,
        )
        if torch.is_grad_enabled() and exchange.backward_sent.reads_masks:
            with side_stream(rows.device):
                masks = (s.new_masks(rows.device) for s in call.placed_frames("forward"))
                call.masks = next(masks), next(masks)
        token: Tensor = _Launch.apply(call, rows)  # type: ignore[no-untyped-call]
        return PendingRows(call, token)

    def _tolerances_of(self, rows: Tensor, exchange: PlacedExchange) -> Tensor | None:
        """Return the tolerances of this call. Evaluation uses those of the last training step."""
        if self.tolerances is None:
            return None
        step = max(self.step - 1, 0)
        if torch.is_grad_enabled():
            self.tolerances.observe(step, rows.detach().contiguous(), exchange.forward_sent)
        return self.tolerances.tolerances(step)

    def noise_seed(self, step: int, direction: str, again: int = 0) -> int:
        """Return 63 bits that differ for every rank, step, direction and name.

        Args: again: how often the same graph was run backward before.
        """
        words = (self._seed, self.name, self._global_rank, step, direction)
        key = repr((*words, again) if again else words).encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1

    def take_over(self, other: "RowCollective") -> None:
        """Continue where `other`, the same collective with another layout, stopped."""
        self.step, self._num_evaluations = other.step, other._num_evaluations
        self._num_exchanges, self.checks = other._num_exchanges, other.checks
        self.observer = other.observer
        if self.layout.tables() == other.layout.tables():
            self.forward_traffic, self.backward_traffic = (
                other.forward_traffic,
                other.backward_traffic,
            )

    def warn_of_flushed(self, traffic: Traffic, direction: str, step: int) -> None:
        """Log, once for a table and direction, that values were lost beside much larger ones."""
        when = f"step {step}" if step >= 0 else "evaluation"
        for table in traffic.newly_flushed:
            t = traffic.tables.index(table)
            _log.warning(
                "table %r, %s, %s: rank %d loses %d values beside a far larger one; stats() has "
                "the table's num_flushed (said once)",
                table, direction, when, self._global_rank, int(traffic.num_flushed[t]),
            )  # fmt: skip
        traffic.newly_flushed.clear()

    def next_exchange(self, kind: int) -> int:
        """Return the number of the exchange that begins.

        It is taken before anything can fail. So a rank that drops a batch stays out of step with
        its peers, and they see it. Its lowest bits are the kind, so that a rank that evaluates is
        told from ranks that train.

        Args: kind: bits that say what the exchange is part of, see `_RowExchange._kind`.
        """
        self._num_exchanges += 1
        return self._num_exchanges << _KIND_BITS | kind


class PooledCollective(RowCollective):
    """Exchange of the rows of a matrix whose samples are grouped by rank: B_r samples of rank r."""

    def __init__(self, pg: dist.ProcessGroup, layout: Layout, **options: Any) -> None:
        super().__init__(pg, layout, **options)
        self._placed_exchange = lru_cache(CACHED_BATCH_SHAPES)(self._place_exchange)

    @abstractmethod
    def _place_exchange(self, batch_sizes: tuple[int, ...], exact: bool) -> PlacedExchange:
        """Return the frames placed for a batch of these sizes, one a rank."""

    def start(
        self,
        rows: Tensor,
        batch_sizes: Sequence[int],
        *,
        exact: bool = False,
        gradient_divisor: int = 1,
    ) -> "PendingRows":
        """Launch the exchange.

        Args:
            rows: [sum of B_r, D_rank] float32, samples grouped by rank.
            batch_sizes: every rank's B_r, known to all.
            exact: whether to send float32 in both directions.
            gradient_divisor: number that the gradients are divided by when they are received.
        Raises: ValueError: rows of another shape or dtype.  UnencodableError.
        """
        exchange = self._placed_exchange(tuple(batch_sizes), exact)
        return self._start(rows, exchange, gradient_divisor, exact)


class PendingRows:
    """Rows on their way. Call `wait` once.

    Args:
        call: the exchange.
        token: [1] float32, the tensor that joins the two autograd nodes. In backward its gradient
            comes when the exchange of the rows' gradients has begun and is not waited for yet.
    """

    def __init__(self, call: "_RowExchange", token: Tensor) -> None:
        self._call, self.token = call, token

    @property
    def pg(self) -> dist.ProcessGroup:
        """Process group of the exchange."""
        return self._call.op.pg

    def wait(self) -> Tensor:
        """Return the rows, float32, in the exchange's result_shape.

        Raises: CorruptFrameError.  LostPeerError.
        """
        rows: Tensor = _Collect.apply(self._call, self.token)  # type: ignore[no-untyped-call]
        return rows


@dataclass(eq=False)
class _RowExchange:
    """State that the two autograd nodes of one call share.

    Args:
        op: the collective.
        exchange: the frames of this batch.
        gradient_divisor: number that the gradients are divided by.
        exact: whether float32 is sent in place of what the config says.
        step: number of the step, negative in evaluation.
        tolerances: [T] float64, the tolerances of forward; None: the codecs' own.
        device: where the rows lie.
        pending: the exchange that was launched and not waited for.
        num_backwards: how often backward was launched.
        masks: where backward needs them, the columns that forward kept of what was sent and of what
            was received. They live as long as the graph, which may be run backward again.
    """

    op: RowCollective
    exchange: PlacedExchange
    gradient_divisor: int
    exact: bool
    step: int
    tolerances: Tensor | None
    device: torch.device
    pending: PendingFrames | None = None
    num_backwards: int = 0
    masks: tuple[Masks, Masks] | None = None

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
        owned, sampled = self.masks
        if forward:
            return sent.with_masks(owned), received.with_masks(sampled)
        return sent.with_masks(sampled), received.with_masks(owned)

    def _kind(self, direction: str) -> int:
        """Return bits for: backward, evaluation, float32 in place of the config's codecs."""
        return (direction == "backward") | (self.step < 0) << 1 | self.exact << 2

    def launch(self, values: Tensor, direction: str) -> None:
        """Encode the rows or gradients and start their exchange."""
        op, forward = self.op, direction == "forward"
        sent, received = self.placed_frames(direction)
        traffic = op.forward_traffic if forward else op.backward_traffic
        again = 0 if forward else self.num_backwards
        self.num_backwards += not forward
        op.checks.raise_found()
        values = values.detach().contiguous()
        if op.observer is not None:
            op.observer.observe(op, direction, self.step, values, sent)
        with (
            record_function(f"## {op.name} {direction} start ##"),
            side_stream(self.device, values),
        ):
            frames = encode_frames(
                values,
                sent,
                call=op.next_exchange(self._kind(direction)),
                seed=op.noise_seed(self.step, direction, again),
                traffic=traffic,
                measure=op.measure_error,
                tolerances=self.tolerances if forward else None,
            )
            if traffic.newly_flushed:
                op.warn_of_flushed(traffic, direction, self.step)
            # Asked of the config, also in a bypass: sizes tell ranks that one of them is in one.
            fixed_size = op.has_fixed_size[direction] and sent.fixed_size and received.fixed_size
            self.pending = start_exchange(
                op.peers,
                frames,
                received,
                fixed_size=fixed_size,
                traffic=traffic,
                name=f"{direction} all-to-all of {op.name}, {self.moment}",
            )

    def finish(self, direction: str) -> Tensor:
        """Wait for the exchange, and return what was received, decoded and summed up."""
        exchange, forward = self.exchange, direction == "forward"
        assert self.pending is not None, "waited for twice, or backward without forward"
        num_summands = exchange.num_summands if forward else 1
        with (
            record_function(f"## {self.op.name} {direction} wait ##"),
            side_stream(self.device),
            deferring(self.op.checks),
        ):
            # `out` is not a view of a larger buffer: callers may change it in place.
            shape = exchange.result_shape if forward else exchange.sent_shape
            out = torch.empty(shape, device=self.device)
            summands = out if num_summands == 1 else out.new_empty(num_summands, out.numel())
            self.pending.wait(summands)
            self.pending = None
            if num_summands > 1:
                rank_sum(summands, out)
        join(self.device, out)
        return out


class _Launch(Function):
    """Autograd node that sends rows and returns a token; backward receives the gradients."""

    @staticmethod
    def forward(ctx: Any, call: _RowExchange, rows: Tensor) -> Tensor:
        ctx.call = call
        call.launch(rows, "forward")
        return rows.new_zeros(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *token_grads: Tensor) -> tuple[None, Tensor]:
        call: _RowExchange = ctx.call
        grad = call.finish("backward")
        if call.gradient_divisor != 1:
            grad.div_(call.gradient_divisor)
        return None, grad


class _Collect(Function):
    """Autograd node that receives rows; backward sends their gradients."""

    @staticmethod
    def forward(ctx: Any, call: _RowExchange, token: Tensor) -> Tensor:
        ctx.call = call
        return call.finish("forward")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (grad,) = grads
        ctx.call.launch(grad, "backward")
        return None, grad.new_zeros(1)
