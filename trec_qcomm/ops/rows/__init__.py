"""Some rows out of a buffer: which, packed one behind the other, and added back to their places.

Rows lie in groups: row i of group g begins at value start[g] + i * stride[g]. `take` and `add` are
each other's adjoint, so each is the other's backward.
Numerics: one float32 rounding an addition; of NaN, see ops.rank_sum.
Shapes: G groups of n_g rows, N in all; U chosen rows, in S segments of rows of equal length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.ops.binding import Backend, arrays, choose_backend, gpu_kernels
from trec_qcomm.ops.rows import cpu, reference
from trec_qcomm.ops.rows.places import Groups, Places


@dataclass(frozen=True, eq=False)
class Rows:
    """U rows in S segments.

    Args: counts: [S] int64 on CPU, rows in each.  dim: [S] int64 on CPU, values of a row.
        position: [U] int64 in the memory of the rows, the first value of each in its buffer.
        groups: what they were chosen from; `add` needs it on a GPU.
    Derived: num_values: of all of them, packed.
    """

    counts: Tensor
    dim: Tensor
    position: Tensor
    groups: Groups | None = None

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
    backend: Backend | None = None,
) -> Rows:
    """The chosen rows of each group, group by group, in ascending order. Waits for a GPU once.

    Args:    chosen: [N] bool.  first, num_rows, start, stride, dim: [G] int64 on CPU; group g is
             about chosen[first[g] : first[g] + num_rows[g]].  The groups may be in any order.
    Raises:  ValueError: a shape, dtype or device that is not the above.
    """
    if chosen.dtype != torch.bool or chosen.dim() != 1 or not chosen.is_contiguous():
        raise ValueError(f"chosen: expected contiguous 1-D bool, got {chosen.dtype}")
    backend = choose_backend(backend, chosen)
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
        bool((torch.stack([first, num_rows]) < 0).any())
        or int((first + num_rows).max()) > len(chosen)
    ):
        raise ValueError("first, num_rows: a group reaches beyond chosen")
    if backend == "reference":
        counts, position = reference.choose(chosen, first, num_rows, start, stride)
        return Rows(counts, dim, position)
    if backend == "gpu":
        found = gpu_kernels(__name__).choose(chosen, first, num_rows, start, stride)
        counts, position, number = found
        return Rows(counts, dim, position, Groups(num_rows, start, stride, dim, number))
    counts = torch.empty_like(num_rows)
    position = torch.empty(int(num_rows.sum()), dtype=torch.int64)
    total = cpu.choose(*arrays(chosen, first, num_rows, start, stride, counts, position))
    return Rows(counts, dim, position[:total])


def take(values: Tensor, rows: Rows, out: Tensor, *, backend: Backend | None = None) -> None:
    """Pack: copy each row from its position in `values` to `out`, one behind the other.

    Args:   values: float32, contiguous, any shape.  out: float32, [rows.num_values].
    Raises: ValueError: a dtype, device or size, or a row beyond `values`.
    """
    backend = _check(values, rows, out, backend)
    if backend == "reference":
        reference.take(values, rows, out)
    elif backend == "gpu":
        gpu_kernels(__name__).take(values, rows, out, vector=_vector(rows))
    else:
        cpu.take(*arrays(values, rows.position, exclusive_cumsum(rows.counts), rows.dim, out))


def add(packed: Tensor, rows: Rows, out: Tensor, *, backend: Backend | None = None) -> None:
    """Unpack: add each packed row to what is at its position in `out`, in their order.

    On a GPU the groups that the rows were chosen from must have the same places, if they begin at
    the same value, or else none in common.
    Args:     packed: float32, [rows.num_values].  out: float32, contiguous, any shape.
    Raises:   ValueError: as `take`; on a GPU, rows that `choose` did not make there.
    """
    backend = _check(out, rows, packed, backend)
    if backend == "reference":
        reference.add(packed, rows, out)
    elif backend == "gpu":
        if rows.groups is None:
            raise ValueError("rows.add: rows.groups: expected, on a GPU, those of rows.choose")
        places = Places.of(rows.groups)
        gpu_kernels(__name__).add(
            packed, rows, out, places, rows.groups.number, vector=_vector(rows)
        )
    else:
        cpu.add(*arrays(packed, rows.position, exclusive_cumsum(rows.counts), rows.dim, out))


def _vector(rows: Rows) -> int:
    """4 where every row is known to begin at a multiple of it, packed and in its buffer, else 1."""
    groups = rows.groups
    known = groups is not None and not bool(((groups.start | groups.stride) % 4).any())
    return 4 if known and not bool((rows.dim % 4).any()) else 1


def _check(values: Tensor, rows: Rows, packed: Tensor, backend: Backend | None) -> Backend:
    for tensor in (values, packed):
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ValueError(f"rows: expected contiguous float32, got {tensor.dtype}")
        if tensor.device != rows.position.device:
            raise ValueError(f"rows: on {rows.position.device}, and values on {tensor.device}")
    if packed.numel() != rows.num_values or int(rows.counts.sum()) != len(rows.position):
        raise ValueError(f"rows: {packed.numel()} values where {rows.num_values} are due")
    if len(rows.position):
        lowest, end = _span(rows)
        if lowest < 0 or end > values.numel():
            raise ValueError(f"rows: some lie beyond the {values.numel()} values")
    return choose_backend(backend, values)


def _span(rows: Rows) -> tuple[int, int]:
    """Where their values lie; with groups those of all rows that could be chosen, as nobody waits
    for positions on a GPU."""
    if rows.groups is not None:
        return rows.groups.span
    ends = rows.position.cpu() + torch.repeat_interleave(rows.dim, rows.counts)
    return int(rows.position.min()), int(ends.max())


__all__ = ["Groups", "Rows", "add", "choose", "take"]
