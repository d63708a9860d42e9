"""Matrices: what one rank keeps of the gradients that are sent as two factors of low rank.

For each parameter that is a residual, in the unit of the mean over ranks as in
comm.dense.error_feedback, and the right factor of the last step, from which the next step begins.
Both are kept by the parameters' names, in the memory of the gradients, and outlive DDP's buckets.
In a bucket the matrices of equal shape are one MatrixBatch, one behind the other.

On a CPU nothing new is allocated for whole matrices: two buffers take turns as residuals and as
sums of these with the gradients. Each matrix is multiplied by itself there: a batched product of
one matrix gives other bits than one of several (it has more threads to use), and DDP's buckets, so
the matrices that are multiplied together, differ between a run and its resumption. On a GPU one
kernel takes all matrices, so that a resumed run may differ in the last bit of a factor from one
that went on; torch.where keeps what was there where a step is not finite, so that the host does not
wait.

Knows: names, shapes. Does not know: codecs, messages, which rank of the job this is.
Shapes: B matrices of one shape, of n rows and m columns, sent with rank r.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION
from trec_qcomm.comm.dense.low_rank.exact import power_of_two
from trec_qcomm.core.transfer import upload
from trec_qcomm.wire import frame

_FIRST = 64  # values of a gradient among which one that is not zero is looked for first
# End the names of what is sent.
LEFT, RIGHT = " (left factor)", " (right factor)"


@dataclass(frozen=True)
class MatrixShape:
    """Parameter that is sent as two factors.

    Args:
        name: the parameter's name.
        num_rows, num_columns: n and m; the parameter's first dimension, and all others.
        rank: r, less than n and m.
        block, coding: values of a block and number of the Coding of both factors.
    """

    name: str
    num_rows: int
    num_columns: int
    rank: int
    block: int
    coding: int

    @property
    def numel(self) -> int:
        """Number of values of the parameter."""
        return self.num_rows * self.num_columns

    @property
    def left(self) -> ParameterShape:
        """What is sent first, [r, n]: the columns of a basis one behind the other."""
        numel = self.rank * self.num_rows
        return ParameterShape(self.name + LEFT, numel, self.block, self.coding, is_factor=True)

    @property
    def right(self) -> ParameterShape:
        """What is sent then, [r, m]: the coordinates in that basis."""
        numel = self.rank * self.num_columns
        return ParameterShape(self.name + RIGHT, numel, self.block, self.coding, is_factor=True)


def parameter_of(name: str) -> str:
    """Return the name of the parameter of which a sent name is a factor, or the name itself."""
    return name.removesuffix(LEFT).removesuffix(RIGHT)


class MatrixBatch:
    """The matrices of one shape in one bucket.

    Attributes:
        shapes: B shapes.
        numbers: number of each among the bucket's parameters.
        right: [B, r, m] float32, with which the next step begins.
    """

    def __init__(
        self,
        shapes: tuple[MatrixShape, ...],
        numbers: tuple[int, ...],
        *,
        residual: Tensor,
        right: Tensor,
        noise: Tensor,
    ) -> None:
        """Take over residuals [B, n, m] and right factors [B, r, m].

        Args: noise: [B, r, m], in place of rows of right factors that are zero.
        """
        self.shapes, self.numbers, self.right = shapes, numbers, right
        self._residual, self._noise = residual, noise
        self._sums: Tensor | None = None  # memory that takes turns with `_residual` on a CPU
        self._got: Tensor | None = None  # on a GPU
        self._unused: list[int] = []  # numbers of gradients that are zero, on a CPU

    def add_residuals(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return [B, n, m], the gradients with the residuals.

        A gradient of nothing but zeros, of a parameter that was not used, gets none; its residual
        waits.

        Args: gradients: B flat gradients, divided by the number of ranks.
        """
        if not frame.is_on_gpu(self._residual):
            return self._added(gradients)
        stacked = torch.stack(list(gradients)).view_as(self._residual)
        got = (stacked != 0).flatten(1).any(dim=1).float()[:, None, None]  # true of NaN, too
        self._got = got
        return torch.addcmul(stacked, self._residual, got)

    def _added(self, gradients: Sequence[Tensor]) -> Tensor:
        if self._sums is None:
            self._sums = torch.empty_like(self._residual)
        self._unused.clear()
        for number, gradient in enumerate(gradients):
            if bool(gradient[:_FIRST].any()) or bool(gradient.any()):  # true of NaN, too
                residual = self._residual[number]
                torch.add(gradient.view_as(residual), residual, out=self._sums[number])
            else:
                self._unused.append(number)
                self._sums[number].zero_()
        return self._sums

    def note(self, matrices: Tensor, left: Tensor, sent: Tensor, came: Tensor, ok: Tensor) -> None:
        """Keep what was not sent, and begin the next step from what came.

        Args:
            matrices: [B, n, m], the result of `add_residuals`; it is overwritten.
            left: [B, r, n], orthonormal rows or zero.
            sent: [B, r, m], this rank's share of `came`.
            came: [B, r, m], the sum over ranks.
            ok: [] bool, whether the all-reduce's result is finite. If not, all stays as it was.
        """
        subtract_products(matrices, left.mT, sent)
        right = self._next_right(left, came)
        if self._got is not None:
            kept = matrices.addcmul_(self._residual, 1 - self._got)
            self._residual = torch.where(ok, kept, self._residual)
            self.right = torch.where(ok, right, self.right)
        elif bool(ok):
            for number in self._unused:
                matrices[number] += self._residual[number]
            self._residual, self._sums = matrices, self._residual
            self.right = right

    def _next_right(self, left: Tensor, came: Tensor) -> Tensor:
        """Return rows with a largest magnitude of 1/2 to 1, so that sums of products keep the
        range of the gradients; noise where there is nothing to go on with."""
        largest = came.abs().amax(dim=2, keepdim=True)
        exponent = torch.frexp(largest.double()).exponent.long()
        scaled = (came * power_of_two(-exponent)).float()
        is_used = (largest != 0) & (left != 0).any(dim=2, keepdim=True)
        return torch.where(is_used, scaled, self._noise)

    def write_to(self, residuals: dict[str, Tensor], rights: dict[str, Tensor]) -> None:
        """Write copies of all that is kept by name, on the device of the gradients."""
        kept = self._residual.flatten(1), self.right
        for shape, residual, right in zip(self.shapes, *kept, strict=True):
            residuals[shape.name], rights[shape.name] = residual.clone(), right.clone()


class Matrices:
    """Residuals and right factors of one rank, by parameter."""

    def __init__(self, shapes: Sequence[MatrixShape], seed: int) -> None:
        """Begin without residuals, and with right factors of noise.

        Args: shapes: all parameters that are sent as factors.  seed: seed of the noise.
        """
        self.shapes = {shape.name: shape for shape in shapes}
        self._seed = seed
        # State by name until a bucket takes it. Residuals that are missing are zero, and right
        # factors are noise.
        self._residuals: dict[str, Tensor] = {}
        self._rights: dict[str, Tensor] = {}
        self._buckets: dict[tuple[str, ...], list[MatrixBatch]] = {}

    def groups(self, names: Sequence[str]) -> list[list[int]]:
        """Return which of a bucket's parameters are matrices here, those of one shape together.

        Args: names: all parameters of the bucket, in its order; the result has their numbers.
        """
        by_form: dict[tuple[object, ...], list[int]] = {}
        for number, name in enumerate(names):
            shape = self.shapes.get(name)
            if shape is not None:
                form = shape.num_rows, shape.num_columns, shape.rank
                by_form.setdefault(form, []).append(number)
        return list(by_form.values())

    def batches(self, names: Sequence[str], device: torch.device) -> list[MatrixBatch]:
        """Return the matrices of a bucket by shape, taken from buckets that had them before.

        Args: names: all parameters of the bucket, in its order.
        """
        key = tuple(names)
        if key not in self._buckets:
            self._dissolve(names)
            self._buckets[key] = [
                self._batch([self.shapes[names[n]] for n in numbers], numbers, device)
                for numbers in self.groups(names)
            ]
        return self._buckets[key]

    def _dissolve(self, names: Iterable[str]) -> None:
        """Take back what the buckets of some parameters have."""
        ours = set(names)
        for key in [key for key in self._buckets if ours & set(key)]:
            for batch in self._buckets.pop(key):
                batch.write_to(self._residuals, self._rights)

    def _batch(
        self, shapes: Sequence[MatrixShape], numbers: Sequence[int], device: torch.device
    ) -> MatrixBatch:
        shape = shapes[0]
        residual = torch.zeros(len(shapes), shape.num_rows, shape.num_columns, device=device)
        noise = torch.stack([self._noise(s) for s in shapes])
        right = noise = _uploaded(noise, device)
        for number, name in enumerate(s.name for s in shapes):
            if name in self._residuals:
                residual[number] = self._residuals.pop(name).view_as(residual[number])
        if any(s.name in self._rights for s in shapes):
            kept = [self._rights.pop(s.name, noise[n]) for n, s in enumerate(shapes)]
            right = torch.stack([factor.to(device) for factor in kept])
        return MatrixBatch(
            tuple(shapes), tuple(numbers), residual=residual, right=right, noise=noise
        )

    def _noise(self, shape: MatrixShape) -> Tensor:
        """Return [r, m] of normal noise that depends on the name, equal on all ranks."""
        key = repr((self._seed, shape.name)).encode()
        digest = hashlib.blake2b(key, digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        return torch.randn(shape.rank, shape.num_columns, generator=generator)

    def _fitting(self, right: Tensor, shape: MatrixShape) -> Tensor:
        """Return the first rows of a right factor, and noise where it has fewer."""
        more = self._noise(shape)[len(right) :]
        return torch.cat([right[: shape.rank], _uploaded(more, right.device)])

    def residuals(self) -> dict[str, dict[str, Tensor]]:
        """Return {parameter: {"contribution": [n m] float32}} on CPU. Waits for a GPU."""
        kept, _ = self._all_kept()
        return {
            name: {CONTRIBUTION: kept[name].cpu() if name in kept else torch.zeros(shape.numel)}
            for name, shape in self.shapes.items()
        }

    def right_factors(self) -> dict[str, Tensor]:
        """Return {parameter: [r, m] float32} on CPU. Waits for a GPU."""
        _, kept = self._all_kept()
        return {
            name: kept[name].cpu() if name in kept else self._noise(shape)
            for name, shape in self.shapes.items()
        }

    def _all_kept(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return copies by name, without those that are zero or noise from the beginning."""
        kept = dict(self._residuals), dict(self._rights)
        for batches in self._buckets.values():
            for batch in batches:
                batch.write_to(*kept)
        return kept

    def load(self, residuals: Mapping[str, Tensor], rights: Mapping[str, Tensor]) -> None:
        """Continue from the state of some parameters, on any device.

        Args:
            residuals: [n m] each.
            rights: right factors, [.., m] each. Their first r rows are taken, and noise where they
                have fewer.
        Raises: ValueError: another number of values or columns.
        """
        for name in self.shapes.keys() & residuals.keys():
            if residuals[name].shape != (self.shapes[name].numel,):
                raise ValueError(f"residual of {name!r}: {list(residuals[name].shape)} values")
        for name in self.shapes.keys() & rights.keys():
            size, columns = list(rights[name].shape), self.shapes[name].num_columns
            if len(size) != 2 or size[1] != columns or not size[0]:
                raise ValueError(f"low_rank: {name!r}: {size}, not [.., {columns}]")
        self._dissolve(self.shapes)
        for name in self.shapes.keys() & residuals.keys():
            self._residuals[name] = residuals[name].clone()
        for name in self.shapes.keys() & rights.keys():
            self._rights[name] = self._fitting(rights[name].clone(), self.shapes[name])


def _uploaded(values: Tensor, device: torch.device) -> Tensor:
    """Return float32 values of the CPU on a device, to which they are copied without a wait."""
    if values.device.type == device.type == "cpu":
        return values
    flat = values.flatten()
    even = torch.cat([flat, flat.new_zeros(len(flat) % 2)])
    (there,) = upload(device, even.view(torch.int64))
    return there.view(torch.float32)[: len(flat)].view_as(values)


def products(left: Tensor, right: Tensor) -> Tensor:
    """Return [B, n, m], the products of B pairs. Args: left: [B, n, k].  right: [B, k, m]."""
    if frame.is_on_gpu(left):
        return torch.bmm(left, right)
    result = left.new_empty(len(left), left.shape[1], right.shape[2])
    for one, other, out in zip(left, right, result, strict=True):
        torch.mm(one, other, out=out)
    return result


def subtract_products(matrices: Tensor, left: Tensor, right: Tensor) -> None:
    """Subtract the products of B pairs from `matrices` [B, n, m], in place."""
    if frame.is_on_gpu(matrices):
        matrices.baddbmm_(left, right, alpha=-1)
        return
    for matrix, one, other in zip(matrices, left, right, strict=True):
        matrix.addmm_(one, other, alpha=-1)
