"""Choose some rows of a buffer, take them (packed), and add them back to their places.

Rows lie in groups: row i of group g begins at value start[g] + i * stride[g]. `take` and `add` are
each other's adjoint, so each is the other's backward.
Numerics: one rounding an addition, to the values' dtype; NaN as in ops.batch.rank_sum.
Shapes: G groups of n_g rows, N in all; U chosen rows, in S segments of rows of equal length.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from trec_qcomm.core.segments import VALUE_DTYPES, described
from trec_qcomm.ops.batch.rows import cpu, cpu_16_bit, reference
from trec_qcomm.ops.batch.rows.destinations import Destinations
from trec_qcomm.ops.batch.rows.destinations import RowGroups as RowGroups
from trec_qcomm.ops.batch.rows.destinations import Rows as Rows
from trec_qcomm.ops.batch.rows.destinations import single_rows as single_rows
from trec_qcomm.ops.dispatch import Backend, arrays, choose_backend, gpu_kernels


class Choice:
    """Chosen rows, whose number may still be on its way from a GPU.

    Args:
        counts: function that waits for the number of rows in each segment, [S] int64 on CPU.
        dim, groups: fields of Rows.
        position: [N] int64, which begins with the places of the chosen rows.
    """

    def __init__(
        self, counts: Callable[[], Tensor], dim: Tensor, position: Tensor, groups: RowGroups | None
    ) -> None:
        self._counts, self._dim, self._position, self._groups = counts, dim, position, groups

    def rows(self) -> Rows:
        """Wait for the number of rows, and return them."""
        counts = self._counts()
        return Rows(counts, self._dim, self._position[: int(counts.sum())], self._groups)


def choose(
    chosen: Tensor, first: Tensor, num_rows: Tensor, start: Tensor, stride: Tensor, dim: Tensor
) -> Rows:
    """Return the chosen rows of each group, group by group, in ascending order.

    Waits for a GPU once. Arguments and errors are those of `begin_choice`.
    """
    return begin_choice(chosen, first, num_rows, start, stride, dim).rows()


def begin_choice(
    chosen: Tensor, first: Tensor, num_rows: Tensor, start: Tensor, stride: Tensor, dim: Tensor
) -> Choice:
    """Choose rows of each group, group by group, in ascending order, without waiting for a GPU.

    Args:
        chosen: [N] bool, which rows to choose.
        first, num_rows: [G] int64 on CPU. chosen[first[g] : first[g] + num_rows[g]] belongs to the
            rows of group g. The groups may be in any order.
        start, stride: [G] int64 on CPU, where the rows of each group lie, in values.
        dim: [G] int64 on CPU, values of a row.
    Raises: ValueError: another shape, dtype or device.
    """
    if chosen.dtype != torch.bool or chosen.dim() != 1 or not chosen.is_contiguous():
        raise ValueError(f"chosen: expected contiguous 1-D bool, got {described(chosen)}")
    backend = choose_backend(chosen)
    for name, tensor in (
        ("first", first),
        ("num_rows", num_rows),
        ("start", start),
        ("stride", stride),
        ("dim", dim),
    ):
        if tensor.dtype != torch.int64 or tensor.shape != dim.shape or tensor.is_cuda:
            raise ValueError(f"{name}: expected {list(dim.shape)} int64 on CPU")
    if len(dim) and (
        min(first.numpy().min(), num_rows.numpy().min()) < 0
        or (first.numpy() + num_rows.numpy()).max() > len(chosen)
    ):
        raise ValueError("first, num_rows: a group reaches beyond chosen")
    if backend == "reference":
        counts, position = reference.choose(chosen, first, num_rows, start, stride)
        return Choice(lambda: counts, dim, position, None)
    if backend == "gpu":
        kernels = gpu_kernels(__name__)
        coming, position, number = kernels.choose(chosen, first, num_rows, start, stride)
        return Choice(coming, dim, position, RowGroups(num_rows, start, stride, dim, number))
    counts = torch.empty_like(num_rows)
    position = torch.empty(int(num_rows.numpy().sum()), dtype=torch.int64)
    cpu.choose(*arrays(chosen, first, num_rows, start, stride, counts, position))
    return Choice(lambda: counts, dim, position, None)


def take(values: Tensor, rows: Rows, out: Tensor) -> None:
    """Pack rows: copy each from its position in `values` to `out`, one after the other.

    Args:
        values: contiguous, any shape; float32, float16 or bfloat16.
        out: [rows.num_values], of the same dtype.
    Raises: ValueError: a wrong dtype, device or size, or a row beyond `values`.
    """
    backend = _check(values, rows, out)
    if backend == "reference":
        reference.take(values, rows, out)
    elif backend == "gpu":
        gpu_kernels(__name__).take(values, rows, out, vector=rows.vector)
    else:
        cpu.take(*arrays(values, rows.position, rows.first_row, rows.dim.contiguous(), out))


def add(packed: Tensor, rows: Rows, out: Tensor) -> None:
    """Unpack rows: add each packed row to the values at its position in `out`, in order.

    On a GPU, any two groups of the chosen rows must either have the same places, or have no place
    in common.

    Args:
        packed: [rows.num_values], float32, float16 or bfloat16.
        out: contiguous, any shape, of the same dtype.
    Raises: ValueError: a wrong dtype, device or size, a row beyond `out`, or on a GPU rows that
        `choose` did not make there.
    """
    backend = _check(out, rows, packed)
    if backend == "reference":
        reference.add(packed, rows, out)
    elif backend == "gpu":
        if rows.groups is None:
            raise ValueError("rows.add: rows.groups: expected, on a GPU, those of rows.choose")
        destinations = Destinations.from_groups(rows.groups)
        gpu_kernels(__name__).add(
            packed, rows, out, destinations, rows.groups.number, vector=rows.vector
        )
    else:
        where = rows.position, rows.first_row, rows.dim.contiguous()
        if out.dtype == torch.float32:
            cpu.add(*arrays(packed, *where, out))
        else:
            cpu_16_bit.add(*arrays(packed, *where, out), out.dtype == torch.float16)


def _check(values: Tensor, rows: Rows, packed: Tensor) -> Backend:
    backend = choose_backend(values)
    for tensor in (values, packed):
        if tensor.dtype not in VALUE_DTYPES or not tensor.is_contiguous():
            names = " or ".join(str(dtype).removeprefix("torch.") for dtype in VALUE_DTYPES)
            raise ValueError(f"rows: expected contiguous {names}, got {described(tensor)}")
        if tensor.dtype != values.dtype:
            raise ValueError(f"rows: {packed.dtype} where the values are {values.dtype}")
        if tensor.device != rows.position.device:
            raise ValueError(f"rows: on {rows.position.device}, and values on {tensor.device}")
    if packed.numel() != rows.num_values or rows.first_row[-1] != len(rows.position):
        raise ValueError(f"rows: {packed.numel()} values where {rows.num_values} are due")
    if len(rows.position):
        lowest, end = _span(rows)
        if lowest < 0 or end > values.numel():
            raise ValueError(f"rows: some lie beyond the {values.numel()} values")
    return backend


def _span(rows: Rows) -> tuple[int, int]:
    """Return where the rows' lowest value lies, and the end of the highest.

    With groups, it is the span of all rows that could have been chosen: reading the positions would
    make the host wait for the GPU.
    """
    if rows.groups is not None:
        return rows.groups.span
    position, counts, dim = arrays(rows.position.cpu(), rows.counts, rows.dim)
    if counts.min() < 0:
        return -1, 0
    return int(position.min()), int((position + dim.repeat(counts)).max())
