"""Matrices: state of one rank for the gradients that are sent as two factors of low rank.

The state of a parameter is a residual and the right factor of the last step, from which the next
step begins. The residual is in the unit of the mean over ranks, as in comm.dense.error_feedback.
Both are kept by the parameters' names, in the memory of the gradients, and outlive DDP's buckets.

Results and residuals are products in float32. Torch may round the factors of such a product to TF32
or BF16: on a GPU, and on a CPU by `torch.set_float32_matmul_precision`. There the products are in
float64, which torch never rounds. Otherwise the rounding error would be in neither result nor
residual.

Knows: names, shapes. Does not know: codecs, messages, which rank of the job this is.
Shapes: a matrix has n rows and m columns, and is sent with rank r.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION
from trec_qcomm.wire import frame

_SAMPLES = 64  # values of a gradient among which one that is not zero is looked for first
_WHOLE = ("none", "ieee")  # settings of torch with which float32 is not rounded
# End the names of what is sent.
LEFT, RIGHT = " (left factor)", " (right factor)"


@dataclass(frozen=True)
class MatrixShape:
    """Parameter that is sent as two factors.

    Args:
        name: the parameter's name.
        num_rows, num_columns: n, the parameter's first dimension, and m, all other dimensions.
        rank: r, less than n and m.
        block, coding: values of a block, and index of the Coding, for both factors.
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
        """Shape of the first factor, [r, n]: the columns of a basis one after the other."""
        numel = self.rank * self.num_rows
        return ParameterShape(self.name + LEFT, numel, self.block, self.coding, is_factor=True)

    @property
    def right(self) -> ParameterShape:
        """Shape of the second factor, [r, m]: the coordinates in that basis."""
        numel = self.rank * self.num_columns
        return ParameterShape(self.name + RIGHT, numel, self.block, self.coding, is_factor=True)


def parameter_of(name: str) -> str:
    """Return the parameter to which a factor's name belongs; other names are returned unchanged."""
    return name.removesuffix(LEFT).removesuffix(RIGHT)


class Matrix:
    """State of one matrix on one rank.

    Attributes: shape: the matrix's shape.  residual: [n, m] float32, not sent yet.  right: [r, m]
        float32, with which the next step begins.
    """

    def __init__(self, shape: MatrixShape, seed: int) -> None:
        """Begin without a residual, and with a right factor of noise.

        Args: seed: seed of the noise; the noise also depends on the parameter's name.
        """
        self.shape = shape
        key = repr((seed, shape.name)).encode()
        digest = hashlib.blake2b(key, digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        self._noise = torch.randn(shape.rank, shape.num_columns, generator=generator)
        self.residual = torch.zeros(shape.num_rows, shape.num_columns)
        self.right = self._noise
        self._is_used = torch.tensor(False)  # [] bool, whether the last gradient was not all zeros
        # What `keep` takes over.
        self._next_residual, self._came = torch.empty_like(self.residual), self._noise

    def load(self, residual: Tensor | None, right: Tensor | None) -> None:
        """Continue from a residual [n m] and a right factor [.., m]; None keeps the present one.

        The first r rows of the right factor are taken. If it has fewer, noise fills the rest.
        """
        if residual is not None:
            self.residual = residual.view_as(self.residual).clone()
        if right is not None:
            more = self._noise[len(right) :].to(right.device)
            self.right = torch.cat([right[: self.shape.rank], more])

    def begin(self, gradient: Tensor) -> Tensor:
        """Add the residual to a gradient, in place, and return this rank's part of L, [r, n].

        A gradient of only zeros, of a parameter that was not used, gets no residual; the residual
        waits.

        Args: gradient: [n, m], divided by the number of ranks.
        """
        device = gradient.device
        self.residual, self.right = self.residual.to(device), self.right.to(device)
        self._noise = self._noise.to(device)
        if frame.is_on_gpu(gradient):
            self._is_used = gradient.any()  # true of NaN, too
            gradient.addcmul_(self.residual, self._is_used.float())
        else:
            apart = gradient.numel() // _SAMPLES | 1  # odd, so of most rows and columns
            self._is_used = gradient.view(-1)[::apart].any() or gradient.any()
            if self._is_used:
                gradient += self.residual
        return torch.mm(self.right, gradient.T)

    def end(self, matrix: Tensor, left: Tensor, sent: Tensor, came: Tensor, ok: Tensor) -> None:
        """Write the result, and note for `keep` what was not sent and what came.

        Args:
            matrix: [n, m], the gradient as `begin` changed it; the result is written there.
            left: [r, n], orthonormal rows.
            sent: [r, m], this rank's share of `came`.
            came: [r, m], the sum over ranks.
            ok: [] bool, whether the all-reduce's result is finite.
        """
        is_on_cpu, self._came = not frame.is_on_gpu(matrix), came
        self._next_residual = self._next_residual.to(matrix.device)
        if is_on_cpu:
            waiting = matrix if self._is_used else self.residual
        else:  # the host must not wait
            waiting = torch.where(self._is_used, matrix, self.residual)
        write_product(left, sent, self._next_residual, waiting)
        # NaN where r times a value overflows: a step that leaves the residual must not count.
        came = came if is_on_cpu and ok else came + 0 * (came * self.shape.rank)
        write_product(left, came, matrix)

    def keep(self, ok: Tensor) -> None:
        """Keep what was not sent, and begin the next step from what came.

        Args: ok: [] bool, whether all results of the step are finite. If not, the state stays as it
            was.
        """
        if frame.is_on_gpu(ok):
            self.residual = torch.where(ok, self._next_residual, self.residual)
            self.right = torch.where(ok, self._next_right(self._came), self.right)
        elif ok:
            self.residual, self._next_residual = self._next_residual, self.residual
            self.right = self._next_right(self._came)

    def _next_right(self, came: Tensor) -> Tensor:
        """Return rows with a largest magnitude of 1/2 to 1, so that sums of products keep the
        range of the gradients; noise where there is nothing to go on with."""
        largest = came.abs().amax(1, keepdim=True)
        power = torch.ldexp(torch.ones_like(largest), -torch.frexp(largest).exponent)
        return torch.where(largest != 0, came * power, self._noise)


class Matrices:
    """Residuals and right factors of one rank, by parameter.

    Attributes: by_name: {parameter: Matrix}.
    """

    def __init__(self, shapes: Sequence[MatrixShape], seed: int) -> None:
        """Begin without residuals, and with right factors of noise.

        Args: shapes: all parameters that are sent as factors.  seed: seed of the noise.
        """
        self.by_name = {shape.name: Matrix(shape, seed) for shape in shapes}

    def residuals(self) -> dict[str, dict[str, Tensor]]:
        """Return {parameter: {"contribution": [n m] float32}} on CPU. Waits for a GPU."""
        return {
            name: {CONTRIBUTION: matrix.residual.flatten().cpu().clone()}
            for name, matrix in self.by_name.items()
        }

    def right_factors(self) -> dict[str, Tensor]:
        """Return {parameter: [r, m] float32} on CPU. Waits for a GPU."""
        return {name: matrix.right.cpu().clone() for name, matrix in self.by_name.items()}

    def load(self, residuals: Mapping[str, Tensor], rights: Mapping[str, Tensor]) -> None:
        """Continue from the state of some parameters, on any device.

        Args:
            residuals: [n m] each.
            rights: right factors, [.., m] each. Their first r rows are taken; noise fills missing
                rows.
        Raises: ValueError: another number of values or columns.
        """
        for name in self.by_name.keys() & residuals.keys():
            if residuals[name].shape != (self.by_name[name].shape.numel,):
                size, numel = list(residuals[name].shape), self.by_name[name].shape.numel
                raise ValueError(f"residual of {name!r}: {size}, not [{numel}]")
        for name in self.by_name.keys() & rights.keys():
            size, columns = list(rights[name].shape), self.by_name[name].shape.num_columns
            if len(size) != 2 or size[1] != columns or not size[0]:
                raise ValueError(f"low_rank: {name!r}: {size}, not [.., {columns}]")
        for name, matrix in self.by_name.items():
            matrix.load(residuals.get(name), rights.get(name))


def orthonormal_rows(rows: Tensor) -> Tensor:
    """Return orthonormal rows [r, n] that span `rows` [r, n], and more if `rows` are dependent.

    If one value is NaN or inf, all results are NaN. Equal machines give equal bits.
    """
    basis: Tensor = torch.linalg.qr(rows.T).Q.T
    return torch.add(basis, largest_magnitude(rows), alpha=0)


def largest_magnitude(values: Tensor) -> Tensor:
    """Return [] the largest |value|; NaN if one is NaN. Ten times faster than torch's norm."""
    return values.abs().amax()


def write_product(left: Tensor, right: Tensor, out: Tensor, base: Tensor | None = None) -> None:
    """Write the product of two factors, or `base` less the product, to `out` [n, m].

    Args: left: [r, n] float32, transposed.  right: [r, m] float32.  base: [n, m]; None: none.
    """
    setting: Any = torch.backends.mkldnn  # which has no types
    if not frame.is_on_gpu(out) and setting.matmul.fp32_precision in _WHOLE:
        if base is None:
            torch.mm(left.T, right, out=out)
        else:
            torch.addmm(base, left.T, right, alpha=-1, out=out)
    else:
        product = torch.mm(left.double().T, right.double())
        out.copy_(product if base is None else base - product)
