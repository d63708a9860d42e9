"""Selected rows of a buffer as a step of autograd: packed before an exchange, unpacked after it.

Knows: ops.rows. Does not know: why these rows, codecs, process groups.
"""

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from trec_qcomm.comm.rows.collective import PendingRows
from trec_qcomm.ops.rows import Rows, add, take


def take_rows(values: Tensor, rows: Rows) -> Tensor:
    """[rows.num_values] float32: the rows one behind the other. Others get a gradient of 0."""
    packed: Tensor = _Take.apply(values, rows)  # type: ignore[no-untyped-call]
    return packed


class PendingSum:
    """Packed rows on their way to be added up. `wait` once.

    Args: rows: where they belong, in rank order, so that sums do not depend on arrival.
        shape: of the result.
    """

    def __init__(self, pending: PendingRows, rows: Rows, shape: tuple[int, ...]) -> None:
        self._pending, self._rows, self._shape = pending, rows, shape

    def wait(self) -> Tensor:
        """The sums, float32; 0 where nothing was sent. Raises: as PendingRows."""
        packed = self._pending.wait()
        sums: Tensor = _Add.apply(packed, self._rows, self._shape)  # type: ignore[no-untyped-call]
        return sums


class _Take(Function):
    """Forward: take. Backward: add into zeros."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rows: Rows) -> Tensor:
        ctx.rows, ctx.shape = rows, values.shape
        packed = values.new_empty(rows.num_values)
        take(values.contiguous(), rows, packed)
        return packed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        found = grad.new_zeros(ctx.shape)
        add(grad.contiguous(), ctx.rows, found)
        return found, None


class _Add(Function):
    """Forward: add into zeros. Backward: take."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, rows: Rows, shape: tuple[int, ...]) -> Tensor:
        ctx.rows = rows
        sums = packed.new_zeros(shape)
        add(packed, rows, sums)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        found = grad.new_empty(ctx.rows.num_values)
        take(grad.contiguous(), ctx.rows, found)
        return found, None, None
