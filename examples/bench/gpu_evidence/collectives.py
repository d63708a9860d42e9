"""Collectives of a stress, each with the bits that it must give: those of CPUs.

Expected rows are exchanged over gloo, expected gradients are played in one process. All are begun
in one order on all ranks, and ended in the same. On CPU, where rows would be compared with
themselves, the expected ones are those of the reference kernels.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor

from examples.bench.codecs.entries import same_bits
from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Identity, Rowwise
from trec_qcomm.comm.dense.all_reduce import ALGORITHMS, AllReduceOptions, Reduction
from trec_qcomm.comm.dense.chunks import Coding, ParameterShape
from trec_qcomm.comm.rows.all_to_all import PooledAllToAll
from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.layout import FeatureShard, Layout
from trec_qcomm.comm.rows.reduce_scatter import PooledReduceScatter
from trec_qcomm.comm.transport import DeviceTransport, Transport
from trec_qcomm.core.checks import DeferredChecks
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.counters import Traffic
from trec_qcomm.ext.dct import ForwardMask, TopK
from trec_qcomm.lab.ranks.rounds import play
from trec_qcomm.ops.dispatch import default_backend

DIMS = (64, 16, 7)  # of a rank's tables; 7 puts rows of all tables at odd addresses
MOST_SAMPLES = 300
ROW_CODECS: dict[str, tuple[Codec, Codec]] = {
    "identity": (Identity(), Identity()),
    "int8": (Rowwise(8), Rowwise(4, "stochastic")),
    "int8 of bf16": (Rowwise(8), Rowwise(4, "stochastic")),
    "float6": (Float6(), Cast("bf16")),
    "error_bounded": (ErrorBounded(0.02), ErrorBounded(0.05)),
    "topk": (TopK(density=0.25, values="fp16"), ForwardMask("int8")),
}
# Masks differ by rank, so gradients of forward_mask cannot be summed.
SUMMED = tuple(name for name in ROW_CODECS if name != "topk")
NUMELS = (70_003, 7, 4096)
_Transport = Transport | DeviceTransport


class Rows:
    """An exchange of rows, and of their gradients, on a device and once more on CPUs."""

    def __init__(self, kind: type[RowCollective], codecs: str, device: torch.device) -> None:
        self.name = f"{kind.__name__} {codecs}"
        self._device = device
        self._op, self._expected = (_row_collective(kind, codecs, self.name) for _ in range(2))

    def begin(self, step: int) -> None:
        """Start the forward exchange of a batch that `step` determines."""
        shared = random.Random(f"{self.name} {step}")
        self._batch_sizes = [shared.randrange(MOST_SAMPLES) for _ in range(self._op.world_size)]
        self._generator = torch.Generator().manual_seed(1000 * step + self._op.rank)
        width = self._op.layout.dim_sum(self._op.rank)
        shape = sum(self._batch_sizes), width
        self._rows = torch.randn(shape, generator=self._generator).to(self._op.dtype)
        self._on_device = self._rows.to(self._device).requires_grad_()
        self._pending = self._op.start(self._on_device, self._batch_sizes)

    def finish(self) -> tuple[Tensor, Tensor, Tensor]:
        """Wait, and exchange gradients; return rows, their gradients, and what came back."""
        out = self._pending.wait()
        gradient = torch.randn(out.shape, generator=self._generator).to(out.dtype)
        (grad,) = torch.autograd.grad(out, self._on_device, gradient.to(self._device))
        return out.detach(), gradient, grad

    def end(self) -> bool:
        """Return whether rows and gradients are those of the CPU."""
        out, gradient, grad = self.finish()
        self._op.checks.raise_found(wait=True)
        with _other_kernels(self._device):
            rows = self._rows.requires_grad_()
            expected = self._expected.start(rows, self._batch_sizes).wait()
            (expected_grad,) = torch.autograd.grad(expected, rows, gradient)
        return same_bits(out.cpu(), expected.detach()) and same_bits(grad.cpu(), expected_grad)


def _other_kernels(device: torch.device) -> AbstractContextManager[None]:
    return default_backend("reference") if device.type == "cpu" else nullcontext()


def _row_collective(kind: type[RowCollective], codecs: str, name: str) -> RowCollective:
    size, is_sum = dist.get_world_size(), kind is PooledReduceScatter
    shards = [
        tuple(FeatureShard(f"t{r}_{d}", f"f{r}_{d}", 0, d) for d in DIMS)
        for r in ([0] * size if is_sum else range(size))
    ]
    layout = Layout(tuple(shards), torch.bfloat16 if codecs.endswith("bf16") else torch.float32)
    forward, backward = (dict.fromkeys(layout.tables(), codec) for codec in ROW_CODECS[codecs])
    exact = dict.fromkeys(layout.tables(), Identity())
    return kind(
        dist.group.WORLD,
        layout,
        codecs=DirectionCodecs(forward, backward),
        exact=DirectionCodecs(exact, exact),
        name=name,
    )


class Dense:
    """An all-reduce of gradients on a device, and all ranks' played in this process on CPU."""

    def __init__(self, algorithm: str, device: torch.device, transport: _Transport) -> None:
        self.name = f"{algorithm} int4"
        self._device, self._transport = device, transport
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._shapes = [ParameterShape(f"p{i}", n, 128) for i, n in enumerate(NUMELS)]
        self._ours = _reduction(algorithm, self._rank, self._size)
        self._all = [_reduction(algorithm, rank, self._size) for rank in range(self._size)]

    def begin(self, step: int) -> None:
        """Start the all-reduce of gradients that `step` determines."""
        self._buckets = [
            torch.randn(sum(NUMELS), generator=torch.Generator().manual_seed(1000 * step + rank))
            for rank in range(self._size)
        ]
        bucket = self._buckets[self._rank].to(self._device, copy=True)
        rounds = self._ours.start(self._shapes, bucket)
        self._future = self._transport.start(rounds, bucket, lambda seconds: None)

    def finish(self) -> Tensor:
        """Wait, and return the mean."""
        return self._future.wait()

    def end(self) -> bool:
        """Return whether the mean is that of the CPU."""
        result = self.finish()
        pairs = zip(self._all, self._buckets, strict=True)
        play([reduction.start(self._shapes, bucket) for reduction, bucket in pairs])
        return same_bits(result.cpu(), self._buckets[self._rank])


def _reduction(algorithm: str, rank: int, size: int) -> Reduction:
    codec = Rowwise(4, "stochastic")
    coding = Coding(codec=codec, exact=Identity(), min_numel=64, error_feedback=True)
    options = AllReduceOptions(codings=(coding,), algorithm=algorithm, seed=3)
    return Reduction(options, rank, size, Traffic("dense", ["all"]))


def all_collectives(device: torch.device) -> list[Rows | Dense]:
    """Return the collectives of a stress, one each of rows by codec and of algorithms. Collective.

    Args: device: a GPU, whose group is NCCL's, or the CPU.
    """
    transport: _Transport
    if device.type == "cuda":
        transport = DeviceTransport(dist.group.WORLD, device, DeferredChecks())
    else:
        transport = Transport(dist.new_group(backend="gloo"))
    pairs: Sequence[tuple[type[RowCollective], Sequence[str]]] = (
        (PooledAllToAll, tuple(ROW_CODECS)),
        (PooledReduceScatter, SUMMED),
    )
    rows = [Rows(kind, codecs, device) for kind, names in pairs for codecs in names]
    return [*rows, *(Dense(algorithm, device, transport) for algorithm in ALGORITHMS)]


def all_to_all_at(offset: int, device: torch.device, chunk: int) -> Callable[[], bool]:
    """Return an all-to-all of bytes whose buffers begin at an address of `offset` mod 16.

    The call says whether the right bytes came.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    sent, received = (
        torch.empty(16 + size * chunk, dtype=torch.uint8, device=device)[offset:][: size * chunk]
        for _ in range(2)
    )
    peers = torch.arange(size, dtype=torch.uint8, device=device).repeat_interleave(chunk)
    sent.copy_(16 * rank + peers)

    def call() -> bool:
        dist.all_to_all_single(received, sent)
        return bool(torch.equal(received, 16 * peers + rank))

    return call
