"""Choose the rows of a lookup's result that are sent, and the rows that are no padding.

A row-wise sharded table gives every rank a partial row for every bag. If none of the bag's ids lie
on a rank, its partial row is 0 and is not sent. If equal bags are merged after the lookup, only the
row of the first of them is sent. Both ends derive from their ids which rows these are.

**Padding.** For a batch with a size for every feature, FBGEMM 1.8 makes metadata of all bags. Only
its CUDA kernels read the metadata, but FBGEMM makes them on CPU, too, with several torch operators
for each bag. That took half of a step of 2 x 2048 samples of 26 features. FBGEMM then pads every
feature with empty bags to the size of the largest one, and takes the rows out of the result. Here
the same is done before and after the lookup, so that FBGEMM sees a batch of one size. Results are
equal bit for bit, forward and backward.

Shapes: F features of a rank's lookup, P ranks, B_r samples of rank r and B in all. A lookup's
result is [B, D] with samples rank by rank; or, where every feature has a batch size of its own,
the rows of rank 0's first feature, of its second, ..., of rank 1's first feature, ...
Of padding: rows of D_f values, W in all; B bags in all, M of the largest feature.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trec_qcomm.comm.rows.selected import take_rows
from trec_qcomm.comm.streams import use_here
from trec_qcomm.core.segments import exclusive_cumsum, int64_tensor
from trec_qcomm.integration.compat import KeyedJaggedTensor, SplitTableBatchedEmbeddingBagsCodegen
from trec_qcomm.integration.ids.batch_notes import SentIds
from trec_qcomm.ops.batch.rows import Choice, Rows, begin_choice, choose

_SIZES = "batch_size_per_feature_per_rank"


def batch_sizes(received: KeyedJaggedTensor, per_rank: Sequence[int], num_ranks: int) -> Tensor:
    """Return [F, P] int64, how many bags of each feature came from each rank.

    Args:
        received: the ids after the input dist
        per_rank: P batch sizes; empty if they are equal or differ by feature
    """
    num_features = len(received.keys())
    if received.variable_stride_per_key():
        sizes = received.stride_per_key_per_rank()
        return torch.tensor([list(row) for row in sizes], dtype=torch.int64)
    even = [received.stride() // num_ranks] * num_ranks
    return int64_tensor(list(per_rank) or even).repeat(num_features, 1)


def rows_to_send(chosen: Tensor, sizes: Tensor, dims: Tensor, *, variable: bool) -> Choice:
    """Choose the rows of a lookup's result to send, for each rank and each feature.

    Args:
        chosen: [F B] bool, feature by feature, samples rank by rank
        sizes: [F, P] int64, bags of each feature from each rank
        dims: [F] int64, the length of each feature's rows
        variable: whether the result has a batch size for every feature
    """
    first = exclusive_cumsum(sizes.reshape(-1))[:-1].view(sizes.shape).T
    num_rows, dim = sizes.T, dims.expand(sizes.shape[1], -1)
    if variable:
        start = exclusive_cumsum((num_rows * dim).reshape(-1))[:-1]
        stride = dim
    else:
        width, columns = int(dims.sum()), exclusive_cumsum(dims)[:-1]
        first_row = exclusive_cumsum(sizes[0])[:-1] if len(sizes) else sizes.new_zeros(0)
        start = first_row[:, None] * width + columns
        stride = torch.full_like(dim, width)
    return begin_choice(chosen, *(t.reshape(-1) for t in (first, num_rows, start, stride, dim)))


def rows_to_expect(
    sent: SentIds, dims: Tensor, num_ranks: int, *, variable: bool
) -> tuple[Choice, tuple[int, ...]]:
    """Choose where all ranks' partial rows belong in this rank's result, and its shape.

    Args:
        sent: ids of each of F features, split over the P ranks that have part of its table
        dims: [F] int64, the length of each feature's rows
        variable: whether the result has a batch size for every feature
    """
    use_here(sent.lengths)  # made by the input dist
    num_rows = int64_tensor(sent.num_bags)
    num_samples, width = num_rows[: len(dims)], int(dims.sum())
    if variable:
        start, stride = exclusive_cumsum(num_samples * dims)[:-1], dims
        shape: tuple[int, ...] = (int((num_samples * dims).sum()),)
    else:
        start, stride = exclusive_cumsum(dims)[:-1], torch.full_like(dims, width)
        shape = (int(num_samples[0]) if len(num_samples) else 0, width)
    first = exclusive_cumsum(num_rows)[:-1]
    places = (tensor.repeat(num_ranks) for tensor in (start, stride, dims))
    return begin_choice(sent.lengths != 0, first, num_rows, *places), shape


def pad_lookups(module: nn.Module) -> None:
    """Pad, from now on, the batches of all fused lookups of pooled rows in the module, on CPU."""
    for lookup in module.modules():
        if isinstance(lookup, SplitTableBatchedEmbeddingBagsCodegen) and lookup.use_cpu:
            _pad(lookup)


def _pad(lookup: Any) -> None:
    dims: Tensor = lookup.D_offsets.diff().to(torch.int64)
    waiting: list[Tensor] = []  # sizes of the batch that is being looked up

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def before(
        _lookup: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        waiting.clear()
        if options.get(_SIZES) is None or options.get("vbe_output") is not None:
            return None
        sizes = int64_tensor(chain.from_iterable(options[_SIZES])).view(len(dims), -1)
        waiting.append(sizes)
        offsets = padded_offsets(options["offsets"], sizes.sum(1))
        return args, options | {"offsets": offsets, _SIZES: None}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def after(
        _lookup: nn.Module, _args: tuple[Any, ...], _options: dict[str, Any], rows: Tensor
    ) -> Tensor | None:
        return take_rows(rows, rows_of(waiting.pop(), dims)) if waiting else None

    lookup.register_forward_pre_hook(before, with_kwargs=True)
    lookup.register_forward_hook(after, with_kwargs=True)


def padded_offsets(offsets: Tensor, num_bags: Tensor) -> Tensor:
    """Return [F M + 1] offsets, with empty bags after the last bag of each feature.

    Args:
        offsets: [B + 1], where each bag's ids begin
        num_bags: [F] int64, bags of each feature
    """
    sizes, most = num_bags.numpy(), int(num_bags.numpy().max(initial=0))
    begins = sizes.cumsum() - sizes
    bags = np.minimum(np.arange(most), sizes[:, None]) + begins[:, None]
    every = np.append(bags.reshape(-1), len(offsets) - 1)
    return offsets.index_select(0, torch.from_numpy(every))


def rows_of(sizes: Tensor, dims: Tensor) -> Rows:
    """Return the rows of a result [M, W] that are no padding, for each rank and each feature.

    Args:
        sizes: [F, P] int64, bags of each feature from each rank
        dims: [F] int64, the length of each feature's rows
    """
    bags, dim = sizes.numpy(), dims.numpy()
    width, columns = int(dim.sum()), dim.cumsum() - dim
    start = (bags.cumsum(1) - bags) * width + columns[:, None]
    by_rank = bags.T.ravel(), start.T.ravel(), np.full(bags.size, width), np.tile(dim, len(bags.T))
    num_rows, starts, stride, row_dims = (torch.from_numpy(numbers) for numbers in by_rank)
    every = torch.ones(int(bags.max(initial=0)), dtype=torch.bool)
    return choose(every, torch.zeros_like(num_rows), num_rows, starts, stride, row_dims)
