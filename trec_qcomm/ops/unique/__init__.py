"""Distinct bags of ids: find them, take them, spread their rows over all samples and sum back.

A bag is the ordered ids, and per-sample weights where there are any, of one sample for one
feature. Equal bags of one feature give equal rows whatever the weights of the table are, so only
the distinct ones need to be looked up and sent; who owns the samples keeps `inverse`.

Exact: two bags are equal if their ids and the bits of their weights are, never by a hash alone.
Shapes: G groups (features) of n_g bags, B bags in all; N ids; U distinct bags.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.ops.binding import Backend, arrays, choose_backend, gpu_kernels
from trec_qcomm.ops.unique import cpu, reference

_IDS = (torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class UniqueBags:
    """The distinct bags of every group, in order of first occurrence.

    Args: first: [U] int64, the bag (of all B) that each distinct one occurs at first.
        counts: [G] int64, how many are distinct in each group; they sum up to U.
        inverse: [B] int64, the number within its group of the distinct bag that each bag equals.
        num_ids: [G] int64, how many ids the distinct bags of each group have; only from a GPU.
    counts and num_ids are on CPU, the others in the memory of the ids.
    """

    first: Tensor
    counts: Tensor
    inverse: Tensor
    num_ids: Tensor | None = None


def unique_bags(
    values: Tensor,
    lengths: Tensor,
    num_bags: Tensor,
    max_share: Tensor,
    *,
    weights: Tensor | None = None,
    backend: Backend | None = None,
) -> UniqueBags:
    """Find the distinct bags of each group. Waits for a GPU once.

    Args:    values: [N] int32 or int64 ids.  lengths: [B] of the same types, ids in each bag.
             num_bags: [G] int64 on CPU n_g >= 0, summing up to B.  max_share: [G] float64 on CPU;
             a group of which more than this share is distinct is left as it is (all its bags count
             as distinct): with 1 whatever repeats is merged, with 0 nothing, without a look.
             weights: [N] float32 or None.
    Raises:  ValueError: a shape, dtype or device that is not the above.
    Speed:   3 to 5 ns an id where all bags of a group hold one id, on one core.
    """
    _check_bags(values, lengths, weights)
    backend = choose_backend(backend, values)
    _check_groups(num_bags, max_share, len(lengths))
    bits = values.new_empty(0, dtype=torch.int32) if weights is None else weights.view(torch.int32)
    if backend == "reference":
        _check_sum(int(lengths.sum()), values)
        first, counts, inverse = reference.unique_bags(values, lengths, num_bags, max_share, bits)
        return UniqueBags(first, counts, inverse)
    if backend == "gpu":
        kernels = gpu_kernels(__name__)
        *found, num_ids, negative = kernels.unique_bags(values, lengths, num_bags, max_share, bits)
        _check_sum(num_ids, values)
        if negative:
            raise ValueError("lengths: some are negative")
        return UniqueBags(*found)
    first, inverse = torch.empty(2, len(lengths), dtype=torch.int64)
    counts = torch.empty_like(num_bags)
    tensors = (values, lengths, num_bags, max_share, bits, first, counts, inverse)
    total = cpu.unique_bags(*(tensor.numpy() for tensor in tensors))
    if total < 0:
        _check_sum(int(lengths.sum()), values)
        raise ValueError("lengths: some are negative")
    return UniqueBags(first[:total], counts, inverse)


def take_bags(
    values: Tensor,
    lengths: Tensor,
    bags: Tensor,
    *,
    weights: Tensor | None = None,
    num_ids: int | None = None,
    backend: Backend | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The ids, lengths and weights of some bags, one behind the other.

    Args:    as `unique_bags`.  bags: [U] int64, numbers of bags.  num_ids: how many ids these have,
             where the caller knows; else a GPU is waited for.
    Returns: values, lengths and weights (None without weights) of these, dtypes kept.
    Raises:  ValueError: a shape, dtype or device that is not the above.
    """
    _check_bags(values, lengths, weights)
    backend = choose_backend(backend, values)
    if backend == "gpu":
        taken_bags: tuple[Tensor, Tensor, Tensor | None] = gpu_kernels(__name__).take_bags(
            values, lengths, bags, weights, num_ids
        )
        return taken_bags
    taken = lengths.index_select(0, bags)
    if backend == "reference":
        index = reference.positions(lengths, bags)
    elif len(values) == len(lengths) and cpu.all_ones(lengths.numpy()):
        index = bags
    else:
        index = torch.empty(int(taken.sum()), dtype=torch.int64)
        starts = exclusive_cumsum(lengths.to(torch.int64))
        cpu.positions(*arrays(starts, bags, index))
    picked = weights.index_select(0, index) if weights is not None else None
    return values.index_select(0, index), taken, picked


@dataclass(frozen=True, eq=False)
class BagBlocks:
    """Where the rows of S blocks lie: packed, distinct bag by distinct bag; and in a matrix of all
    samples, where block s is the columns column[s] : column[s] + dim[s].

    Args: all [S] int64 on CPU.  start: of the packed rows in their buffer, in values.
        num_rows: distinct bags.  dim: values a row.  column: in the matrix.  group: row of
        `inverse`.
    """

    start: Tensor
    num_rows: Tensor
    dim: Tensor
    column: Tensor
    group: Tensor

    @property
    def vectors(self) -> tuple[Tensor, ...]:
        """All five."""
        return self.start, self.num_rows, self.dim, self.column, self.group


def expand(
    rows: Tensor, blocks: BagBlocks, inverse: Tensor, out: Tensor, *, backend: Backend | None = None
) -> None:
    """Write the row of each sample's bag: out[b, columns of s] = rows of s [inverse[group, b]].

    Args:   rows: 1-D float32, packed.  inverse: [F, B] int64.  out: [B, W] float32, contiguous;
            columns of no block stay as they are.
    Raises: ValueError: a shape, dtype or device, or a block beyond `rows`, `out` or `inverse`.
    """
    backend = _check_blocks(rows, blocks, inverse, out, backend)
    if backend == "cpu":
        cpu.expand(*arrays(rows, *blocks.vectors), inverse.numpy(), out.detach().numpy())
    else:
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        kernels.expand(rows, blocks, inverse, out)


def sum_by_bag(
    matrix: Tensor,
    blocks: BagBlocks,
    inverse: Tensor,
    out: Tensor,
    *,
    backend: Backend | None = None,
) -> None:
    """The reverse of `expand`: each packed row becomes the sum over the samples that have it.

    Args:     as `expand`, with the roles of rows and matrix exchanged; rows of no block stay.
    Numerics: float32, in the order of the samples, added to 0; of NaN, see ops.rank_sum.
    """
    backend = _check_blocks(out, blocks, inverse, matrix, backend)
    if backend == "cpu":
        cpu.sum_by_bag(
            matrix.detach().numpy(), *arrays(*blocks.vectors), inverse.numpy(), *arrays(out)
        )
    else:
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        kernels.sum_by_bag(matrix, blocks, inverse, out)


def _check_sum(num_ids: int, values: Tensor) -> None:
    if num_ids != len(values):
        raise ValueError(f"lengths: sum up to {num_ids}, there are {len(values)} ids")


def _check_groups(num_bags: Tensor, max_share: Tensor, total: int) -> None:
    sizes = num_bags.tolist()
    if num_bags.dtype != torch.int64 or min(sizes, default=0) < 0 or sum(sizes) != total:
        raise ValueError(f"num_bags: expected int64 >= 0 that sum up to {total}")
    if max_share.dtype != torch.float64 or max_share.shape != num_bags.shape:
        raise ValueError(f"max_share: expected [{len(num_bags)}] float64")
    if bool(max_share.isnan().any()):
        raise ValueError("max_share: some are NaN")
    if num_bags.is_cuda or max_share.is_cuda:
        raise ValueError("num_bags, max_share: expected on CPU")


def _check_bags(values: Tensor, lengths: Tensor, weights: Tensor | None) -> None:
    for name, tensor in (("values", values), ("lengths", lengths)):
        if tensor.dtype not in _IDS or tensor.dim() != 1 or not tensor.is_contiguous():
            raise ValueError(f"{name}: expected contiguous 1-D int32 or int64, got {tensor.dtype}")
    if lengths.device != values.device:
        raise ValueError(f"lengths: on {lengths.device}, and the ids on {values.device}")
    if weights is not None and (
        weights.dtype != torch.float32
        or weights.shape != values.shape
        or not weights.is_contiguous()
        or weights.device != values.device
    ):
        raise ValueError(f"weights: expected contiguous [{len(values)}] float32, beside the ids")


def _check_blocks(
    rows: Tensor, blocks: BagBlocks, inverse: Tensor, matrix: Tensor, backend: Backend | None
) -> Backend:
    for name, tensor, dims in (("rows", rows, 1), ("matrix", matrix, 2)):
        if tensor.dtype != torch.float32 or tensor.dim() != dims or not tensor.is_contiguous():
            raise ValueError(f"{name}: expected contiguous {dims}-D float32, got {tensor.dtype}")
        if tensor.device != inverse.device:
            raise ValueError(f"{name}: on {tensor.device}, and inverse on {inverse.device}")
    if inverse.dtype != torch.int64 or inverse.dim() != 2 or not inverse.is_contiguous():
        raise ValueError(f"inverse: expected contiguous [F, B] int64, got {inverse.dtype}")
    if inverse.shape[1] != matrix.shape[0]:
        raise ValueError(f"inverse: of {inverse.shape[1]} samples, the matrix has {len(matrix)}")
    if len(blocks.start) and (
        bool((torch.stack(blocks.vectors) < 0).any())
        or int((blocks.start + blocks.num_rows * blocks.dim).max()) > rows.numel()
        or int((blocks.column + blocks.dim).max()) > matrix.shape[1]
        or int(blocks.group.max()) >= inverse.shape[0]
    ):
        raise ValueError("blocks: reach beyond the rows, the matrix or inverse")
    return choose_backend(backend, rows)


__all__ = ["BagBlocks", "UniqueBags", "expand", "sum_by_bag", "take_bags", "unique_bags"]
