"""MatrixBatch: what is kept of the matrices of one shape in one bucket, and a step's changes of it.

On a CPU nothing new is allocated for whole matrices: two buffers take turns as residuals and as
sums of these with the gradients. On a GPU one kernel takes all matrices, and torch.where keeps what
was there where a step is not finite, so that the host does not wait.

Knows: matrices. Does not know: names, codecs, messages.
Shapes: B matrices of n rows and m columns, sent with rank r.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trec_qcomm.comm.dense.low_rank.exact import power_of_two
from trec_qcomm.comm.dense.low_rank.products import subtract_products
from trec_qcomm.comm.dense.low_rank.shapes import MatrixShape
from trec_qcomm.core.transfer import download
from trec_qcomm.wire import frame

_FIRST = 64  # values of a gradient among which one that is not zero is looked for first


class MatrixBatch:
    """The matrices of one shape in one bucket.

    Attributes:
        shapes: B shapes.
        numbers: number of each among the bucket's parameters.
        right: [B, r, m] float32, with which the next step begins.
        is_chosen: whether the rank is chosen while training.
    """

    def __init__(
        self,
        shapes: tuple[MatrixShape, ...],
        numbers: tuple[int, ...],
        *,
        residual: Tensor,
        right: Tensor,
        noise: Tensor,
        energies: Tensor,
    ) -> None:
        """Take over residuals [B, n, m], right factors [B, r, m] and energies [B, r + 1].

        Args: noise: [B, r, m], in place of rows of right factors that are zero.
        """
        self.shapes, self.numbers, self.right = shapes, numbers, right
        self.is_chosen = shapes[0].choice is not None
        self._residual, self._noise, self._energies = residual, noise, energies
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

    def note(
        self,
        matrices: Tensor,
        left: Tensor,
        sent: Tensor,
        came: Tensor,
        ok: Tensor,
        energies: Tensor | None = None,
    ) -> None:
        """Keep what was not sent, and begin the next step from what came.

        Args:
            matrices: [B, n, m], the result of `add_residuals`; it is overwritten.
            left: [B, r, n], orthonormal rows or zero.
            sent: [B, r, m], this rank's share of `came`.
            came: [B, r, m], the sum over ranks.
            ok: [] bool, whether the all-reduce's result is finite. If not, all stays as it was.
            energies: [B, r + 1] float64, of this step, where the rank is chosen while training.
        """
        subtract_products(matrices, left.mT, sent)
        right = self._next_right(left, came)
        sums = self._energies if energies is None else self._energies + energies
        if self._got is not None:
            kept = matrices.addcmul_(self._residual, 1 - self._got)
            self._residual = torch.where(ok, kept, self._residual)
            self.right = torch.where(ok, right, self.right)
            self._energies = torch.where(ok, sums, self._energies)
        elif bool(ok):
            for number in self._unused:
                matrices[number] += self._residual[number]
            self._residual, self._sums = matrices, self._residual
            self.right, self._energies = right, sums

    def taken_energies(self) -> list[list[float]]:
        """Return the sums of energies of each matrix, and begin new ones. Waits for a GPU."""
        energies: list[list[float]] = download(self._energies).tolist()
        self._energies = torch.zeros_like(self._energies)
        return energies

    def _next_right(self, left: Tensor, came: Tensor) -> Tensor:
        """Return rows with a largest magnitude of 1/2 to 1, so that sums of products keep the
        range of the gradients; noise where there is nothing to go on with."""
        largest = came.abs().amax(dim=2, keepdim=True)
        exponent = torch.frexp(largest.double()).exponent.long()
        scaled = (came * power_of_two(-exponent)).float()
        is_used = (largest != 0) & (left != 0).any(dim=2, keepdim=True)
        return torch.where(is_used, scaled, self._noise)

    def write_to(
        self,
        residuals: dict[str, Tensor],
        rights: dict[str, Tensor],
        energies: dict[str, Tensor],
    ) -> None:
        """Write copies of all that is kept by name, on the device of the gradients."""
        kept = self._residual.flatten(1), self.right, self._energies
        for shape, residual, right, energy in zip(self.shapes, *kept, strict=True):
            residuals[shape.name], rights[shape.name] = residual.clone(), right.clone()
            energies[shape.name] = energy.clone()
