"""Do what each collective does with the tensors of all ranks, bit for bit as gloo does it.

Each function is called once for a collective, when all ranks have come, with one argument a rank.

Knows: tensors of all ranks. Does not know: threads, process groups.
Shapes: N ranks; E elements of one tensor.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_MAX_SEGMENT_NBYTES = 1 << 20  # gloo's kMaxSegmentSize
_REDUCTIONS: list[tuple[dist.ReduceOp.RedOpType, Callable[[Tensor, Tensor], Tensor]]] = [
    (dist.ReduceOp.SUM, torch.add),
    (dist.ReduceOp.PRODUCT, torch.mul),
    (dist.ReduceOp.MIN, torch.minimum),
    (dist.ReduceOp.MAX, torch.maximum),
    (dist.ReduceOp.BAND, torch.bitwise_and),
    (dist.ReduceOp.BOR, torch.bitwise_or),
    (dist.ReduceOp.BXOR, torch.bitwise_xor),
]


def copy(source: Tensor, target: Tensor) -> None:
    """Copy a message. Raises ValueError if sizes or dtypes differ."""
    if source.numel() != target.numel() or source.dtype != target.dtype:
        raise ValueError(
            f"a message of {source.numel()} {source.dtype} is received as "
            f"{target.numel()} {target.dtype}"
        )
    # detach: a collective writes its outputs without autograd's knowledge.
    target.detach().copy_(source.detach().view_as(target))


def exchange(sent: Sequence[Sequence[Tensor]], received: Sequence[Sequence[Tensor]]) -> None:
    """Copy message s of rank r to place r of rank s. Raises ValueError if they do not fit.

    As in gloo bytes may be fewer than their place.
    """
    for source, messages in enumerate(sent):
        for message, places in zip(messages, received, strict=True):
            place = places[source]
            are_fewer = message.dtype == torch.uint8 and len(message) < len(place)
            copy(message, place[: len(message)] if are_fewer else place)


def splits(values: Tensor, sizes: Sequence[int], num_ranks: int) -> list[Tensor]:
    """Return N views of an all-to-all's buffer. Args: sizes: rows of each; empty: all equal."""
    if sizes:
        return list(torch.split(values, list(sizes)))
    if len(values) % num_ranks:
        raise ValueError(f"{len(values)} rows do not split evenly over {num_ranks} ranks")
    return list(torch.split(values, max(len(values) // num_ranks, 1))) or [values] * num_ranks


def all_reduce(tensors: Sequence[Tensor], operation: dist.ReduceOp) -> None:
    """Reduce one tensor of each rank in place.

    gloo's ring cuts a tensor into N blocks. Block b starts at rank b - 1 and goes down by rank, and
    each rank adds its own part to the sum so far, up to rank b.
    """
    reduce = _reduction(operation)
    flat = [_in_memory_order(tensor.detach()) for tensor in tensors]
    num_ranks, total = len(flat), torch.empty_like(flat[0])
    block = _block_numel(flat[0], num_ranks)
    blocks = [torch.split(values, block) for values in flat]
    for b, out in enumerate(torch.split(total, block)):
        out.copy_(blocks[b - 1][b])
        for rank in range(b - 2, b - 1 - num_ranks, -1):
            out.copy_(reduce(blocks[rank % num_ranks][b], out))
    for values in flat:
        copy(total, values)


def all_reduce_coalesced(lists: Sequence[Sequence[Tensor]], operation: dist.ReduceOp) -> None:
    """Reduce the tensors of each rank in place, as one."""
    joined = [torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) for tensors in lists]
    all_reduce(joined, operation)
    for values, tensors in zip(joined, lists, strict=True):
        parts = torch.split(values, [tensor.numel() for tensor in tensors])
        for part, tensor in zip(parts, tensors, strict=True):
            copy(part, tensor)


def reduce_scatter(
    tensors: Sequence[Tensor], outputs: Sequence[Tensor], operation: dist.ReduceOp
) -> None:
    """Write part r of the reduced tensors to output r."""
    reduced = [tensor.detach().clone() for tensor in tensors]
    all_reduce(reduced, operation)
    for output, part in zip(outputs, splits(reduced[0], (), len(outputs)), strict=True):
        copy(part, output)


def _in_memory_order(tensor: Tensor) -> Tensor:
    """Return [E], a view. Raises ValueError: the tensor's memory has gaps, which gloo refuses."""
    by_stride = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    dense = tensor.permute(by_stride)
    if not dense.is_contiguous():
        raise ValueError(f"a tensor of strides {tensor.stride()} cannot be reduced")
    return dense.view(-1)


def _block_numel(values: Tensor, num_ranks: int) -> int:
    """Return the number of elements of gloo's block of a tensor, at least 1."""
    itemsize = values.element_size()
    nbytes = values.numel() * itemsize
    # gloo cuts a tensor into segments, at least two for each rank, and all of one size.
    num_segments = max(-(-nbytes // _MAX_SEGMENT_NBYTES), 2 * num_ranks)
    per_rank = -(-num_segments // num_ranks)
    segment_nbytes = -(-nbytes // (per_rank * num_ranks))
    return max(per_rank * -(-segment_nbytes // itemsize), 1)


def _reduction(operation: Any) -> Callable[[Tensor, Tensor], Tensor]:
    for kind, function in _REDUCTIONS:
        if operation == kind:
            return function
    raise ValueError(f"reduction {operation}: gloo has none such")
