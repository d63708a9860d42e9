"""Find distinct bags of ids, take them, expand their rows to all samples, and sum gradients back.

A bag is the ids of one sample for one feature, in order, with their per-sample weights if there are
any. Equal bags of one feature give equal rows, whatever the table holds. So only the distinct bags
need to be looked up and sent. The rank that owns the samples keeps `inverse`.

Exact: bags are equal if their ids and the bits of their weights are equal; a hash alone never
decides.
Shapes: G groups (features) of n_g bags, B bags in all; N ids; U distinct bags.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.core.segments import described, exclusive_cumsum
from trec_qcomm.ops.batch.unique import cpu, cpu_order, reference
from trec_qcomm.ops.batch.unique.reference import BagBlocks as BagBlocks
from trec_qcomm.ops.batch.unique.reference import UniqueBags as UniqueBags
from trec_qcomm.ops.dispatch import Backend, arrays, choose_backend, gpu_kernels

_IDS = (torch.int32, torch.int64)


def unique_bags(
    values: Tensor,
    lengths: Tensor,
    num_bags: Tensor,
    max_share: Tensor,
    *,
    weights: Tensor | None = None,
) -> UniqueBags:
    """Find the distinct bags of each group. Waits for a GPU once.

    Args:
        values: [N] int32 or int64, the ids.
        lengths: [B] int32 or int64, how many ids each bag has.
        num_bags: [G] int64 on CPU, how many bags each group has, >= 0; they sum to B.
        max_share: [G] float64 on CPU. If more than this share of a group's bags is distinct, the
            group is left as it is: all its bags count as distinct. With 1, all repeated bags are
            merged. With 0, no bag is merged, and the ids are not looked at.
        weights: [N] float32, or None.
    Raises: ValueError: another shape, dtype or device.
    Speed: 3 to 5 ns an id where all bags of a group hold one id, on one core.
    """
    _check_bags(values, lengths, weights)
    backend = choose_backend(values)
    _check_groups(num_bags, max_share, len(lengths))
    bits = values.new_empty(0, dtype=torch.int32) if weights is None else weights.view(torch.int32)
    if backend == "reference":
        _check_sum(int(lengths.sum()), values)
        first, counts, inverse = reference.unique_bags(values, lengths, num_bags, max_share, bits)
        return UniqueBags(first, counts, inverse)
    if backend == "gpu":
        kernels = gpu_kernels(__name__)
        *fields, num_ids, negative = kernels.unique_bags(values, lengths, num_bags, max_share, bits)
        _check_sum(num_ids, values)
        if negative:
            raise ValueError("lengths: some are negative")
        return UniqueBags(*fields)
    first, inverse = torch.empty(2, len(lengths), dtype=torch.int64)
    counts = torch.empty_like(num_bags)
    most = int(num_bags.max()) if len(num_bags) else 0
    # Contiguous: another layout is another type, for which a kernel would be compiled again.
    inputs = (values, _as_int64(lengths), num_bags, max_share, bits)
    bags = (tensor.contiguous().numpy() for tensor in inputs)
    written = (tensor.numpy() for tensor in (first, counts, inverse))
    total = cpu.unique_bags(*bags, *_hash_tables(most), most, *written)
    if total < 0:
        _check_sum(int(lengths.sum()), values)
        raise ValueError("lengths: some are negative")
    return UniqueBags(first[:total], counts, inverse)


def sort_by_id(bags: UniqueBags, values: Tensor, lengths: Tensor, num_bags: Tensor) -> UniqueBags:
    """Return the same bags, with the bags of a group in the order of their ids.

    Groups with a bag of several ids stay as they are. Bags without an id come first, and equal bags
    keep their order.

    Args: bags: the result of `unique_bags` for the other arguments.
    Raises: ValueError: another shape, dtype or device.
    """
    _check_bags(values, lengths, None)
    backend = choose_backend(values)
    if backend == "gpu":
        given = bags.first, bags.counts, bags.inverse, values, lengths, num_bags
        first, inverse = gpu_kernels(__name__).sort_by_id(*given)
        return UniqueBags(first, bags.counts, inverse, bags.num_ids)
    if backend == "reference":
        first, inverse = reference.sort_by_id(bags, values, lengths, num_bags)
        return UniqueBags(first, bags.counts, inverse)
    first, inverse = torch.empty_like(bags.first), torch.empty_like(bags.inverse)
    inputs = values.to(torch.int64), _as_int64(lengths), num_bags, bags.counts
    ordered = *inputs, bags.first, bags.inverse, first, inverse
    most = int(num_bags.max()) if len(num_bags) else 0
    cpu_order.sort_by_id(*(tensor.contiguous().numpy() for tensor in ordered), most)
    return UniqueBags(first, bags.counts, inverse)


def _as_int64(lengths: Tensor) -> Tensor:
    """Return the lengths contiguous and as int64, so that one kernel is compiled for all."""
    return lengths.to(torch.int64).contiguous()


def _hash_tables(most: int) -> tuple[Any, Any]:
    """Return memory for the hash table of a group with so many bags: four slots a bag or more.

    It is int16 where that holds the number of each bag, or else int32; the other one is empty. One
    kernel takes both, so that no step compiles another one because its batch is larger.
    """
    slots = max(16, 1 << (4 * most - 1).bit_length()) if most else 16
    if most < 1 << 15:
        return np.empty(slots, np.int16), _NO_WIDE
    return _NO_NARROW, np.empty(slots, np.int32)


_NO_NARROW, _NO_WIDE = np.empty(0, np.int16), np.empty(0, np.int32)


def take_bags(
    values: Tensor,
    lengths: Tensor,
    bags: Tensor,
    *,
    weights: Tensor | None = None,
    num_ids: int | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the ids, lengths and weights of some bags, one bag after the other.

    Args:
        values, lengths, weights: all bags, as `unique_bags` takes them.
        bags: [U] int64, indices of the bags to take.
        num_ids: how many ids these bags have, if the caller knows; None makes the host wait for a
            GPU.
    Returns: values, lengths and weights (None without weights) of the bags, in the same dtypes.
    Raises: ValueError: another shape, dtype or device.
    """
    _check_bags(values, lengths, weights)
    backend = choose_backend(values)
    if backend == "gpu":
        taken_bags: tuple[Tensor, Tensor, Tensor | None] = gpu_kernels(__name__).take_bags(
            values, lengths, bags, weights, num_ids
        )
        return taken_bags
    taken = lengths.index_select(0, bags)
    if backend == "reference":
        index = reference.positions(lengths, bags)
    elif len(values) == len(lengths) and cpu.all_ones(_as_int64(lengths).numpy()):
        index = bags
    else:
        index = torch.empty(int(taken.sum()), dtype=torch.int64)
        starts = exclusive_cumsum(_as_int64(lengths))
        cpu.positions(*arrays(starts, bags, index))
    picked = weights.index_select(0, index) if weights is not None else None
    return values.index_select(0, index), taken, picked


def expand(rows: Tensor, blocks: BagBlocks, inverse: Tensor, out: Tensor) -> None:
    """Write the row of each sample's bag: out[b, columns of s] = rows of s [inverse[group, b]].

    Args:
        rows: 1-D float32, the packed rows of all blocks.
        blocks: where each block's rows lie in `rows` and in `out`.
        inverse: [F, B] int64, the distinct bag of each of B samples, one row for each group.
        out: [B, W] float32, contiguous; columns that belong to no block stay as they are.
    Raises: ValueError: a wrong shape, dtype or device, or a block beyond `rows`, `out` or
        `inverse`.
    """
    backend = _check_blocks(rows, blocks, inverse, out)
    if backend == "cpu":
        cpu.expand(*arrays(rows, *blocks.vectors), inverse.numpy(), out.detach().numpy())
    else:
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        kernels.expand(rows, blocks, inverse, out)


def sum_by_bag(matrix: Tensor, blocks: BagBlocks, inverse: Tensor, out: Tensor) -> None:
    """Write to each packed row the sum over the samples that have its bag: `expand` reversed.

    Args:
        matrix: [B, W] float32, contiguous.
        blocks: where each block's rows lie in `matrix` and in `out`.
        inverse: [F, B] int64, the distinct bag of each of B samples, one row for each group.
        out: 1-D float32, the packed rows; values that belong to no block stay as they are.
    Numerics: float32, added to 0 in the order of the samples; NaN as in ops.batch.rank_sum.
    Raises: ValueError: a wrong shape, dtype or device, or a block beyond `out`, `matrix` or
        `inverse`.
    """
    backend = _check_blocks(out, blocks, inverse, matrix)
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
    if num_bags.is_cuda or max_share.is_cuda:
        raise ValueError("num_bags, max_share: expected on CPU")
    shares = max_share.numpy()
    if (shares != shares).any():
        raise ValueError("max_share: some are NaN")


def _check_bags(values: Tensor, lengths: Tensor, weights: Tensor | None) -> None:
    for name, tensor in (("values", values), ("lengths", lengths)):
        if tensor.dtype not in _IDS or tensor.dim() != 1 or not tensor.is_contiguous():
            got = described(tensor)
            raise ValueError(f"{name}: expected contiguous 1-D int32 or int64, got {got}")
    if lengths.device != values.device:
        raise ValueError(f"lengths: on {lengths.device}, and the ids on {values.device}")
    if weights is not None and (
        weights.dtype != torch.float32
        or weights.shape != values.shape
        or not weights.is_contiguous()
        or weights.device != values.device
    ):
        raise ValueError(f"weights: expected contiguous [{len(values)}] float32 on the ids' device")


def _check_blocks(rows: Tensor, blocks: BagBlocks, inverse: Tensor, matrix: Tensor) -> Backend:
    for name, tensor, dims in (("rows", rows, 1), ("matrix", matrix, 2)):
        if tensor.dtype != torch.float32 or tensor.dim() != dims or not tensor.is_contiguous():
            got = described(tensor)
            raise ValueError(f"{name}: expected contiguous {dims}-D float32, got {got}")
        if tensor.device != inverse.device:
            raise ValueError(f"{name}: on {tensor.device}, and inverse on {inverse.device}")
    if inverse.dtype != torch.int64 or inverse.dim() != 2 or not inverse.is_contiguous():
        raise ValueError(f"inverse: expected contiguous [F, B] int64, got {described(inverse)}")
    if inverse.shape[1] != matrix.shape[0]:
        raise ValueError(f"inverse: of {inverse.shape[1]} samples, the matrix has {len(matrix)}")
    vectors = arrays(*blocks.vectors)
    start, num_rows, dim, column, group = vectors
    if len(start) and (
        (start | num_rows | dim | column | group).min() < 0  # a sign in any of them
        or (start + num_rows * dim).max() > rows.numel()
        or (column + dim).max() > matrix.shape[1]
        or group.max() >= inverse.shape[0]
    ):
        raise ValueError("blocks: reach beyond the rows, the matrix or inverse")
    return choose_backend(rows)
