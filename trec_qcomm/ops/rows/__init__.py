"""Some rows out of a buffer: which, packed one behind the other, and added back to their places.

Rows lie in groups: row i of group g begins at value start[g] + i * stride[g]. `take` and `add` are
each other's adjoint, so each is the other's backward.
Shapes: G groups of n_g rows, N in all; U chosen rows, in S segments of rows of equal length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.ops.binding import Backend, arrays
from trec_qcomm.ops.rows import cpu, reference


@dataclass(frozen=True, eq=False)
class Rows:
    """U rows in S segments.

    Args: counts: [S] int64, rows in each.  dim: [S] int64, values of a row.
        position: [U] int64, the first value of each row in its buffer.
    Derived: num_values: of all of them, packed.
    """

    counts: Tensor
    dim: Tensor
    position: Tensor

    @property
    def num_values(self) -> int:
        """Sum of counts times dim."""
        return int((self.counts * self.dim).sum())


def choose(
    chosen: Tensor,
    first: Tensor,
    num_rows: Tensor,
    start: Tensor,
    stride: Tensor,
    dim: Tensor,
    *,
    backend: Backend = "cpu",
) -> Rows:
    """The chosen rows of each group, group by group, in ascending order.

    Args:    chosen: [N] bool.  first, num_rows, start, stride, dim: [G] int64; group g is about
             chosen[first[g] : first[g] + num_rows[g]].  The groups may be in any order.
    Raises:  ValueError: a shape, dtype or device that is not the above.
    """
    if chosen.dtype != torch.bool or chosen.dim() != 1 or not chosen.is_contiguous():
        raise ValueError(f"chosen: expected contiguous 1-D bool, got {chosen.dtype}")
    for name, tensor in (
        ("first", first),
        ("num_rows", num_rows),
        ("start", start),
        ("stride", stride),
        ("dim", dim),
    ):
        if tensor.dtype != torch.int64 or tensor.shape != dim.shape:
            raise ValueError(f"{name}: expected {list(dim.shape)} int64")
    if len(dim) and (
        bool((torch.stack([first, num_rows]) < 0).any())
        or int((first + num_rows).max()) > len(chosen)
    ):
        raise ValueError("first, num_rows: a group reaches beyond chosen")
    if backend == "reference":
        counts, position = reference.choose(chosen, first, num_rows, start, stride)
        return Rows(counts, dim, position)
    counts = torch.empty_like(num_rows)
    position = torch.empty(int(num_rows.sum()), dtype=torch.int64)
    total = cpu.choose(*arrays(chosen, first, num_rows, start, stride, counts, position))
    return Rows(counts, dim, position[:total])


def take(values: Tensor, rows: Rows, out: Tensor, *, backend: Backend = "cpu") -> None:
    """Pack: copy each row from its position in `values` to `out`, one behind the other.

    Args:   values: float32, contiguous, any shape.  out: float32, [rows.num_values].
    Raises: ValueError: a dtype, device or size, or a row beyond `values`.
    """
    _check(values, rows, out)
    if backend == "reference":
        reference.take(values, rows, out)
    else:
        cpu.take(*arrays(values, rows.position, exclusive_cumsum(rows.counts), rows.dim, out))


def add(packed: Tensor, rows: Rows, out: Tensor, *, backend: Backend = "cpu") -> None:
    """Unpack: add each packed row to what is at its position in `out`, in their order.

    Args:     packed: float32, [rows.num_values].  out: float32, contiguous, any shape.
    Numerics: one float32 rounding an addition.
    Raises:   ValueError: as `take`.
    """
    _check(out, rows, packed)
    if backend == "reference":
        reference.add(packed, rows, out)
    else:
        cpu.add(*arrays(packed, rows.position, exclusive_cumsum(rows.counts), rows.dim, out))


def _check(values: Tensor, rows: Rows, packed: Tensor) -> None:
    for tensor in (values, packed):
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ValueError(f"rows: expected contiguous float32, got {tensor.dtype}")
        if tensor.device.type != "cpu":
            raise ValueError(f"device {tensor.device}: kernels exist for cpu only")
    if packed.numel() != rows.num_values or int(rows.counts.sum()) != len(rows.position):
        raise ValueError(f"rows: {packed.numel()} values where {rows.num_values} are due")
    if len(rows.position):
        ends = rows.position + torch.repeat_interleave(rows.dim, rows.counts)
        if int(rows.position.min()) < 0 or int(ends.max()) > values.numel():
            raise ValueError(f"rows: some lie beyond the {values.numel()} values")


__all__ = ["Rows", "add", "choose", "take"]
