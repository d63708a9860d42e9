"""EmulatedExchange: the embedding exchange of P ranks in one process, with the real codecs.

Accuracy is studied this way, without a network. The emulated sharding is table-wise: the rows of a
table for one rank are one segment, whichever rank owns the table, and the rows that a rank keeps
are coded like all others. With codecs that draw no noise, the decoded rows and gradients are
bit-equal to those of P real ranks, given equal rows and gradients. Stochastic rounding draws other
noise than real ranks do. Column- and row-wise shardings cut other segments, so they may differ.

Knows: codecs, segments, distinct bags, autograd. Does not know: process groups, frames, ids.
Source: Yang et al. 2020, who study quantized collectives by emulation.
Shapes: P ranks; F features; B_r samples of rank r, B their sum; W the sum of the features' dims;
N values of all segments together; S = P F segments, rank by rank.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from trec_qcomm.core.codec import Codec, MaskUse, mask_use
from trec_qcomm.core.segments import Encoded, Masks, Segments, exclusive_cumsum
from trec_qcomm.ops.unique import BagBlocks, UniqueBags, expand, sum_by_bag

Direction = Literal["forward", "backward"]


@dataclass(frozen=True)
class EmulatedExchange:
    """Exchange of the rows of F features, each of one table. Call it once a batch.

    Args:
        dims: embedding dim of each feature.
        forward, backward: codec of each feature's rows, and of their gradients.
    Raises: ValueError: tuples of different lengths, or a backward codec that reads masks where the
        forward codec writes none.
    """

    dims: tuple[int, ...]
    forward: tuple[Codec, ...]
    backward: tuple[Codec, ...]

    def __post_init__(self) -> None:
        for name in ("forward", "backward"):
            if len(getattr(self, name)) != len(self.dims):
                raise ValueError(f"{name}: expected {len(self.dims)} codecs, as dims")
        for ahead, back in zip(self.forward, self.backward, strict=True):
            if mask_use(back) is MaskUse.READS and mask_use(ahead) is not MaskUse.WRITES:
                raise ValueError(f"backward: {back.name} needs topk forward, not {ahead.name}")

    def __call__(
        self,
        rows: Tensor,
        bags: Sequence[UniqueBags],
        *,
        seed: int = 0,
        tolerances: Sequence[float] | None = None,
        gradient_divisor: int = 1,
    ) -> Tensor:
        """Code the rows and spread them over the samples; in backward sum up and code gradients.

        Args:
            rows: [N] float32: for each rank, for each feature, the rows of the distinct bags.
            bags: for each rank, F groups of B_r bags, see ops.unique.unique_bags; with max_share 0
                nothing is merged.
            seed: seed of stochastic rounding, 0 <= seed < 2^63; give another one in each step.
            tolerances: F numbers in place of the forward codecs' own (`Codec.tolerance`), such as
                a schedule sets; not read where a codec has none.
            gradient_divisor: number that the decoded gradients are divided by.
        Returns: [B, W] float32: the samples rank by rank, the features in order.
        Raises: ValueError: another shape or dtype.
        """
        samples = _Samples.from_bags(bags, self.dims, rows)
        checked = _checked_tolerances(tolerances, len(self.dims))
        batch = _EmulatedBatch(self, samples, seed, checked, gradient_divisor)
        out: Tensor = _Exchange.apply(batch, rows)  # type: ignore[no-untyped-call]
        return out


def _checked_tolerances(tolerances: Sequence[float] | None, num_features: int) -> Tensor | None:
    if tolerances is None:
        return None
    if len(tolerances) != num_features:
        raise ValueError(f"tolerances: expected {num_features} numbers")
    return torch.tensor(tolerances, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class _Samples:
    """Places of each segment's rows, and the samples of each rank.

    Args:
        dims, num_rows, start: [S] int64, see core.segments.Segments.
        batch_sizes: P ints, B_r.
        blocks, inverse: for each rank, arguments of ops.unique.expand.
    """

    dims: Tensor
    num_rows: Tensor
    start: Tensor
    batch_sizes: list[int]
    blocks: tuple[BagBlocks, ...]
    inverse: tuple[Tensor, ...]

    @classmethod
    def from_bags(cls, bags: Sequence[UniqueBags], dims: Sequence[int], rows: Tensor) -> "_Samples":
        """Check the bags and rows, and find their places."""
        dim, features = torch.tensor(dims, dtype=torch.int64), torch.arange(len(dims))
        if not bags or any(b.counts.shape != dim.shape for b in bags):
            raise ValueError(f"bags: expected of one rank or more, with {len(dims)} groups each")
        num_rows = torch.cat([b.counts for b in bags])
        ends = exclusive_cumsum(num_rows * dim.repeat(len(bags)))
        if rows.shape != (int(ends[-1]),) or rows.dtype != torch.float32:
            raise ValueError(
                f"rows: expected [{int(ends[-1])}] float32, got {list(rows.shape)} {rows.dtype}"
            )
        column = exclusive_cumsum(dim)[:-1]
        starts = ends[:-1].view(len(bags), len(dims))
        return cls(
            dims=dim.repeat(len(bags)),
            num_rows=num_rows,
            start=ends[:-1],
            batch_sizes=[len(b.inverse) // len(dims) for b in bags],
            blocks=tuple(
                BagBlocks(start, b.counts, dim, column, features)
                for start, b in zip(starts, bags, strict=True)
            ),
            inverse=tuple(b.inverse.view(len(dims), -1) for b in bags),
        )

    def expand(self, rows: Tensor) -> Tensor:
        """Return [B, W], the samples, from [N] rows."""
        width = sum(self.dims.tolist()) // len(self.inverse)
        out = torch.empty(sum(self.batch_sizes), width)
        parts = torch.split(out, self.batch_sizes)
        for blocks, inverse, part in zip(self.blocks, self.inverse, parts, strict=True):
            expand(rows, blocks, inverse, part)
        return out

    def sum_by_bag(self, gradients: Tensor) -> Tensor:
        """Return [N], the sum of each bag's gradients in the order of samples, from [B, W]."""
        sums = torch.empty(int((self.num_rows * self.dims).sum()))
        parts = torch.split(gradients, self.batch_sizes)
        for blocks, inverse, part in zip(self.blocks, self.inverse, parts, strict=True):
            sum_by_bag(part, blocks, inverse, sums)
        return sums


@dataclass(frozen=True, eq=False)
class _EmulatedBatch:
    """Exchange of one batch, in both directions.

    Args:
        exchange: dims and codecs.
        samples: places of rows and samples.
        seed, tolerances, gradient_divisor: the arguments of the call; tolerances: [F] float64.
    """

    exchange: EmulatedExchange
    samples: _Samples
    seed: int
    tolerances: Tensor | None
    gradient_divisor: int

    def masks(self) -> Masks | None:
        """Return memory for the columns that forward keeps; None if no backward codec uses them."""
        if all(mask_use(codec) is None for codec in self.exchange.backward):
            return None
        return Masks.of_all_columns(self.samples.num_rows, self.samples.dims)

    def code(self, values: Tensor, direction: Direction, masks: Masks | None) -> Tensor:
        """Return [N], encoded and decoded values; segments of equal codec and dim in one call."""
        out = torch.empty_like(values)
        for number, (codec, dim, members) in enumerate(self._groups(direction)):
            segments = Segments(
                offsets=exclusive_cumsum(self.samples.num_rows[members]),
                dim=dim,
                start=self.samples.start[members],
                stride=torch.full_like(members, dim),
            )
            if masks is not None and mask_use(codec) is not None:
                segments = replace(segments, masks=masks.subset(members))
            tolerances = None
            if (
                direction == "forward"
                and self.tolerances is not None
                and codec.tolerance is not None
            ):
                tolerances = self.tolerances[members % len(self.exchange.dims)]
            seed = _noise_seed(self.seed, direction, number)
            codec.decode(_encode(codec, values, segments, seed, tolerances), segments, out)
        return out

    def _groups(self, direction: Direction) -> list[tuple[Codec, int, Tensor]]:
        """Return (codec, dim, [S'] int64 numbers of its segments) for each pair that occurs."""
        codecs: tuple[Codec, ...] = getattr(self.exchange, direction)
        features: dict[tuple[Codec, int], list[int]] = {}
        for f, key in enumerate(zip(codecs, self.exchange.dims, strict=True)):
            features.setdefault(key, []).append(f)
        first = torch.arange(len(self.samples.inverse))[:, None] * len(codecs)
        return [
            (codec, dim, (first + torch.tensor(members)).view(-1))
            for (codec, dim), members in features.items()
        ]


def _encode(
    codec: Codec, values: Tensor, segments: Segments, seed: int, tolerances: Tensor | None
) -> Encoded:
    at = exclusive_cumsum(codec.max_nbytes(segments))
    payload = torch.empty(int(at[-1]), dtype=torch.uint8)
    return codec.encode(values, segments, payload, at[:-1], seed=seed, tolerances=tolerances)


def _noise_seed(seed: int, direction: Direction, group: int) -> int:
    """Return 63 bits that differ by direction and group."""
    key = repr((seed, direction, group)).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1


class _Exchange(Function):
    """Autograd node: rows of distinct bags become those of samples; backward does the reverse."""

    @staticmethod
    def forward(ctx: Any, batch: _EmulatedBatch, rows: Tensor) -> Tensor:
        ctx.batch, ctx.masks = batch, batch.masks()
        return batch.samples.expand(batch.code(rows.detach().contiguous(), "forward", ctx.masks))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (grad,) = grads
        batch: _EmulatedBatch = ctx.batch
        decoded = batch.code(batch.samples.sum_by_bag(grad.contiguous()), "backward", ctx.masks)
        return None, decoded.div_(batch.gradient_divisor)
