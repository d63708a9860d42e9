"""Matrices: what one rank keeps of the gradients that are sent as two factors of low rank.

For each parameter that is a residual, in the unit of the mean over ranks as in
comm.dense.error_feedback, and the right factor of the last step, from which the next step begins.
Both are kept by the parameters' names and outlive DDP's buckets. In a bucket the matrices of equal
shape lie one behind the other, so that one batched product takes all of them.

Knows: names, shapes. Does not know: codecs, messages, ranks.
Shapes: B matrices of one shape, of n rows and m columns, sent with rank r.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION
from trec_qcomm.comm.dense.low_rank.exact import power_of_two
from trec_qcomm.comm.dense.low_rank.products import subtract_products
from trec_qcomm.wire import frame

LEFT, RIGHT = " (left factor)", " (right factor)"  # end the names of what is sent


class MatrixShape(NamedTuple):
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


class Matrices:
    """Residuals and right factors of one rank, by parameter."""

    def __init__(self, shapes: Sequence[MatrixShape], seed: int) -> None:
        """Begin without residuals, and with right factors of noise.

        Args: shapes: all parameters that are sent as factors.  seed: seed of the noise.
        """
        self.shapes = {shape.name: shape for shape in shapes}
        self._seed = seed
        self._residuals = {shape.name: torch.zeros(shape.numel) for shape in shapes}
        self._rights = {shape.name: self._noise(shape) for shape in shapes}
        self._buckets: dict[tuple[str, ...], list[MatrixBatch]] = {}

    def groups(self, names: Sequence[str]) -> list[list[int]]:
        """Return which of a bucket's parameters are matrices here, those of one shape together.

        Args: names: all parameters of the bucket, in its order; the result has their numbers.
        """
        by_form: dict[tuple[int, int, int], list[int]] = {}
        for number, name in enumerate(names):
            shape = self.shapes.get(name)
            if shape is not None:
                form = shape.num_rows, shape.num_columns, shape.rank
                by_form.setdefault(form, []).append(number)
        return list(by_form.values())

    def batches(self, names: Sequence[str], device: torch.device) -> "list[MatrixBatch]":
        """Return the matrices of a bucket by shape, taken from buckets that had them before.

        Args: names: all parameters of the bucket, in its order.
        """
        key = tuple(names)
        if key not in self._buckets:
            ours = set(names)
            for other in [known for known in self._buckets if ours & set(known)]:
                for batch in self._buckets.pop(other):
                    batch.write_to(self._residuals, self._rights)
            self._buckets[key] = [
                self._batch([self.shapes[names[n]] for n in numbers], numbers, device)
                for numbers in self.groups(names)
            ]
        return self._buckets[key]

    def _batch(
        self, shapes: Sequence[MatrixShape], numbers: Sequence[int], device: torch.device
    ) -> "MatrixBatch":
        shape = shapes[0]
        residuals = torch.stack([self._residuals[s.name] for s in shapes])
        return MatrixBatch(
            tuple(shapes),
            tuple(numbers),
            residual=residuals.view(-1, shape.num_rows, shape.num_columns).to(device),
            right=torch.stack([self._rights[s.name] for s in shapes]).to(device),
            noise=torch.stack([self._noise(s) for s in shapes]).to(device),
        )

    def _noise(self, shape: MatrixShape) -> Tensor:
        """Return [r, m] normal noise that depends on the name, equal on all ranks."""
        key = repr((self._seed, shape.name)).encode()
        digest = hashlib.blake2b(key, digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        return torch.randn(shape.rank, shape.num_columns, generator=generator)

    def residuals(self) -> dict[str, dict[str, Tensor]]:
        """Return {parameter: {"contribution": [n m] float32}} on CPU. Waits for a GPU."""
        self._write_back()
        return {name: {CONTRIBUTION: kept.clone()} for name, kept in self._residuals.items()}

    def right_factors(self) -> dict[str, Tensor]:
        """Return {parameter: [r, m] float32} on CPU. Waits for a GPU."""
        self._write_back()
        return {name: right.clone() for name, right in self._rights.items()}

    def _write_back(self) -> None:
        for batches in self._buckets.values():
            for batch in batches:
                batch.write_to(self._residuals, self._rights)

    def load(self, residuals: Mapping[str, Tensor], rights: Mapping[str, Tensor]) -> None:
        """Continue from residuals [n m] and right factors [r, m] of some parameters, on any device.

        Of a right factor of another rank the first rows are taken, and noise where it has fewer.

        Raises: ValueError: another number of values or columns.
        """
        self._write_back()
        self._buckets.clear()
        for name in self.shapes.keys() & residuals.keys():
            kept = residuals[name].cpu().clone()
            if kept.shape != (self.shapes[name].numel,):
                raise ValueError(f"residual of {name!r}: {list(kept.shape)} values")
            self._residuals[name] = kept
        for name in self.shapes.keys() & rights.keys():
            right = rights[name].cpu()
            shape = self.shapes[name]
            if right.dim() != 2 or right.shape[1] != shape.num_columns:
                columns = shape.num_columns
                raise ValueError(f"low_rank: {name!r}: {list(right.shape)}, not [.., {columns}]")
            self._rights[name] = torch.cat([right, self._noise(shape)[len(right) :]])[: shape.rank]


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
        self._got: Tensor | None = None

    def add_residuals(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return [B, n, m], the gradients with the residuals.

        A gradient of nothing but zeros, of a parameter that was not used, gets none; its residual
        waits.

        Args: gradients: B flat gradients, divided by the number of ranks.
        """
        stacked = torch.stack(list(gradients)).view_as(self._residual)
        got = (stacked != 0).flatten(1).any(dim=1).float()[:, None, None]  # true of NaN, too
        self._got = got
        return torch.addcmul(stacked, self._residual, got)

    def note(self, matrices: Tensor, left: Tensor, sent: Tensor, came: Tensor, ok: Tensor) -> None:
        """Keep what was not sent, and begin the next step from what came.

        Args:
            matrices: [B, n, m], the result of `add_residuals`; it is overwritten.
            left: [B, r, n], orthonormal rows or zero.
            sent: [B, r, m], this rank's share of `came`.
            came: [B, r, m], the sum over ranks.
            ok: [] bool, whether the all-reduce's result is finite. If not, all stays as it was.
        """
        assert self._got is not None
        subtract_products(matrices, left.mT, sent)
        kept = matrices.addcmul_(self._residual, 1 - self._got)
        right = self._next_right(left, came)
        if frame.is_on_gpu(ok):
            self._residual = torch.where(ok, kept, self._residual)
            self.right = torch.where(ok, right, self.right)
        elif bool(ok):
            self._residual, self.right = kept, right

    def _next_right(self, left: Tensor, came: Tensor) -> Tensor:
        """Return rows with a largest magnitude of 1/2 to 1, so that sums of products keep the
        range of the gradients; noise where there is nothing to go on with."""
        largest = came.abs().amax(dim=2, keepdim=True)
        exponent = torch.frexp(largest.double()).exponent.long()
        scaled = (came * power_of_two(-exponent)).float()
        is_used = (largest != 0) & (left != 0).any(dim=2, keepdim=True)
        return torch.where(is_used, scaled, self._noise)

    def write_to(self, residuals: dict[str, Tensor], rights: dict[str, Tensor]) -> None:
        """Write all residuals and right factors by name, on CPU."""
        on_cpu = self._residual.flatten(1).cpu(), self.right.cpu()
        for shape, residual, right in zip(self.shapes, *on_cpu, strict=True):
            residuals[shape.name], rights[shape.name] = residual.clone(), right.clone()
