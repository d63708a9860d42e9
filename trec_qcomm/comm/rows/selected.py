"""Pack selected rows of a buffer before an exchange, and add them up after it, with gradients.

Knows: ops.batch.rows, autograd. Does not know: why rows are selected, codecs, process groups.
"""

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from trec_qcomm.comm.streams import use_here
from trec_qcomm.ops.batch.rows import Rows, add, take


def take_rows(values: Tensor, rows: Rows) -> Tensor:
    """Return the selected rows one after the other, [rows.num_values].

    Rows that are not selected get a gradient of 0.
    """
    packed: Tensor = _Take.apply(values, rows)  # type: ignore[no-untyped-call]
    return packed


def add_rows(packed: Tensor, rows: Rows, shape: tuple[int, ...]) -> Tensor:
    """Return the sums of packed rows at their places; 0 where no row was sent.

    Args:
        packed: [rows.num_values].
        rows: places of the rows in the result, in rank order, so that sums do not depend on the
            order of arrival.
        shape: shape of the result.
    """
    sums: Tensor = _Add.apply(packed, rows, shape)  # type: ignore[no-untyped-call]
    return sums


class _Take(Function):
    """Autograd node that takes rows; backward adds their gradients into zeros."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rows: Rows) -> Tensor:
        use_here(rows.position)  # made before the lookup
        ctx.rows, ctx.shape = rows, values.shape
        packed = values.new_empty(rows.num_values)
        take(values.contiguous(), rows, packed)
        return packed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        rows_grad = grad.new_zeros(ctx.shape)
        add(grad.contiguous(), ctx.rows, rows_grad)
        return rows_grad, None


class _Add(Function):
    """Autograd node that adds rows into zeros; backward takes their gradients."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, rows: Rows, shape: tuple[int, ...]) -> Tensor:
        if rows.groups is not None:
            use_here(rows.position, rows.groups.number)  # made when the exchange began
        ctx.rows = rows
        sums = packed.new_zeros(shape)
        add(packed, rows, sums)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        packed_grad = grad.new_empty(ctx.rows.num_values)
        take(grad.contiguous(), ctx.rows, packed_grad)
        return packed_grad, None, None
