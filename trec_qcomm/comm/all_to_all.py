"""Pooled all-to-all: rows go to the owners of the samples, their gradients come back.

Forward and backward each have their own codecs. Two autograd nodes, as in TorchRec: `start`
launches the exchange and `wait` ends it; in backward `wait`'s node launches the reverse exchange
and `start`'s node ends it, so that whatever runs between overlaps with the network.

Knows: layouts, exchanges, autograd. Does not know: which codec, TorchRec.
Shapes: B_r samples of rank r, B their sum; D_r columns of rank r, D their sum.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from trec_qcomm.comm.exchange import InFlight, encode_frames, start_exchange
from trec_qcomm.comm.layout import Layout, Side, owner_side, sample_side
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.stats import Traffic

_CACHED_BATCH_SHAPES = 32  # the usual one, the last of an epoch, evaluation ...


@dataclass(frozen=True)
class DirectionCodecs:
    """Codec of each table by name, for each direction. The same on all ranks."""

    forward: Mapping[str, Codec]
    backward: Mapping[str, Codec]


@dataclass(frozen=True, eq=False)
class _Sides:
    """The four views of one batch shape: what is sent and what is received, each way."""

    num_samples: int  # of this rank
    forward_sent: Side
    forward_received: Side
    backward_sent: Side
    backward_received: Side


class PooledAllToAll:
    """The collective of one process group and one layout.

    Args:
        pg: the ranks.  layout: see comm.layout.  codecs: those of the config.
        exact: those of `start(exact=True)`.  name: keys the state and the noise.
        seed: of stochastic rounding; ranks, steps and directions draw different noise from it.
        measure_error: record max_abs_err, at the price of decoding what is sent.
    """

    def __init__(
        self,
        pg: dist.ProcessGroup,
        layout: Layout,
        *,
        codecs: DirectionCodecs,
        exact: DirectionCodecs,
        name: str,
        seed: int = 0,
        measure_error: bool = False,
    ) -> None:
        self.pg, self.layout, self.name = pg, layout, name
        self.rank = pg.rank()
        self.step = 0  # calls with gradients so far; state
        self._num_evaluations = 0  # calls without, negative steps: training's noise is left alone
        self._num_exchanges = 0  # of either direction; the ranks must agree
        self.forward_traffic = Traffic("embedding_forward", layout.tables())
        self.backward_traffic = Traffic("embedding_backward", layout.tables())
        self._seed, self.measure_error = seed, measure_error
        self._codecs, self._exact = codecs, exact
        self._sides = lru_cache(_CACHED_BATCH_SHAPES)(self._make_sides)

    def start(
        self,
        rows: Tensor,
        batch_sizes: Sequence[int],
        *,
        exact: bool = False,
        gradient_divisor: int = 1,
    ) -> "PendingRows":
        """Launch the exchange of rows.

        Args:    rows: [B, D_rank] float32, samples grouped by rank.  batch_sizes: every rank's
                 B_r, known to all.  exact: send float32 both ways.  gradient_divisor: what the
                 gradients are divided by on arrival.
        Raises:  ValueError: rows of another shape or dtype.  UnencodableError.
        """
        expected = (sum(batch_sizes), self.layout.dim_sum(self.rank))
        if tuple(rows.shape) != expected or rows.dtype != torch.float32:
            raise ValueError(
                f"{self.name}: rows are {list(rows.shape)} {rows.dtype}, "
                f"expected {list(expected)} torch.float32"
            )
        if torch.is_grad_enabled():
            step = self.step
            self.step += 1
        else:
            self._num_evaluations += 1
            step = -self._num_evaluations
        call = _Call(self, self._sides(tuple(batch_sizes), exact), gradient_divisor, step)
        token: Tensor = _Launch.apply(call, rows)  # type: ignore[no-untyped-call]
        return PendingRows(call, token)

    def noise_seed(self, step: int, direction: str) -> int:
        """63 bits that differ for every rank, step, direction and name."""
        key = repr((self._seed, self.name, self.rank, step, direction)).encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1

    def take_over(self, other: "PooledAllToAll") -> None:
        """Go on where `other`, the same collective with another layout, stopped."""
        self.step, self._num_evaluations = other.step, other._num_evaluations
        self._num_exchanges = other._num_exchanges
        if self.layout.tables() == other.layout.tables():
            self.forward_traffic, self.backward_traffic = (
                other.forward_traffic,
                other.backward_traffic,
            )

    def next_exchange(self) -> int:
        """The number of the exchange that begins. Taken before anything can fail, so that a rank
        that drops a batch is out of step with its peers for good, and they see it."""
        self._num_exchanges += 1
        return self._num_exchanges

    def _make_sides(self, batch_sizes: tuple[int, ...], exact: bool) -> _Sides:
        codecs = self._exact if exact else self._codecs
        where = (self.layout, self.rank, batch_sizes)
        return _Sides(
            num_samples=batch_sizes[self.rank],
            forward_sent=owner_side(*where, codecs.forward),
            forward_received=sample_side(*where, codecs.forward),
            backward_sent=sample_side(*where, codecs.backward),
            backward_received=owner_side(*where, codecs.backward),
        )


class PendingRows:
    """Rows on their way. `wait` once."""

    def __init__(self, call: "_Call", token: Tensor) -> None:
        self._call, self._token = call, token

    def wait(self) -> Tensor:
        """The [B_rank, D] float32 rows of this rank's samples, owner by owner.

        Raises: CorruptFrameError.  RuntimeError: a peer is lost or the group's timeout is over.
        """
        rows: Tensor = _Collect.apply(self._call, self._token)  # type: ignore[no-untyped-call]
        return rows


@dataclass(eq=False)
class _Call:
    """What the two autograd nodes of one call share."""

    op: PooledAllToAll
    sides: _Sides
    gradient_divisor: int
    step: int
    in_flight: InFlight | None = field(default=None)

    def launch(self, values: Tensor, direction: str) -> None:
        op, forward = self.op, direction == "forward"
        sent = self.sides.forward_sent if forward else self.sides.backward_sent
        received = self.sides.forward_received if forward else self.sides.backward_received
        traffic = op.forward_traffic if forward else op.backward_traffic
        frames = encode_frames(
            values.detach().contiguous(),
            sent,
            call=op.next_exchange(),
            seed=op.noise_seed(self.step, direction),
            rank=op.rank,
            traffic=traffic,
            measure=op.measure_error,
        )
        fixed_size = sent.fixed_size and received.fixed_size
        self.in_flight = start_exchange(
            op.pg, frames, received, fixed_size=fixed_size, traffic=traffic
        )

    def finish(self, num_rows: int, num_columns: int) -> Tensor:
        assert self.in_flight is not None, "waited for twice, or backward without forward"
        out = torch.empty(num_rows, num_columns)
        self.in_flight.wait(out)
        self.in_flight = None
        return out


class _Launch(Function):
    """Forward: send rows, return a token. Backward: receive their gradients."""

    @staticmethod
    def forward(ctx: Any, call: _Call, rows: Tensor) -> Tensor:
        ctx.call, ctx.shape = call, rows.shape
        call.launch(rows, "forward")
        return rows.new_zeros(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *token_grads: Tensor) -> tuple[None, Tensor]:
        grad = ctx.call.finish(*ctx.shape)
        if ctx.call.gradient_divisor != 1:
            grad.div_(ctx.call.gradient_divisor)
        return None, grad


class _Collect(Function):
    """Forward: receive rows. Backward: send their gradients."""

    @staticmethod
    def forward(ctx: Any, call: _Call, token: Tensor) -> Tensor:
        ctx.call = call
        layout = call.op.layout
        num_columns = sum(layout.dim_sum(owner) for owner in range(len(layout.blocks)))
        return call.finish(call.sides.num_samples, num_columns)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (grad,) = grads
        ctx.call.launch(grad, "backward")
        return None, grad.new_zeros(1)
