"""Choice of the rows of a lookup's result that are sent. Both ends derive it from their ids.

A row-wise sharded table gives every rank a partial row for every bag. Where none of the bag's ids
lie on that rank it is 0, and not sent. Where equal bags are merged after the lookup, only the row
of the first of them is sent.
Shapes: F features of a rank's lookup, P ranks, B_r samples of rank r and B in all. A lookup's
result is [B, D] with samples rank by rank; or, where every feature has a batch size of its own,
the rows of rank 0's first feature, of its second, ..., of rank 1's first feature, ...
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trec_qcomm.comm.streams import use_here
from trec_qcomm.core.segments import exclusive_cumsum, int64_tensor
from trec_qcomm.integration.compat import KeyedJaggedTensor
from trec_qcomm.integration.ids.batch_notes import SentIds
from trec_qcomm.ops.batch.rows import Choice, begin_choice


def batch_sizes(received: KeyedJaggedTensor, per_rank: Sequence[int], num_ranks: int) -> Tensor:
    """Return [F, P] int64: how many bags of each feature came from each rank.

    Args:
        received: the ids after the input dist
        per_rank: P batch sizes; empty where they are equal or differ by feature
    """
    num_features = len(received.keys())
    if received.variable_stride_per_key():
        sizes = received.stride_per_key_per_rank()
        return torch.tensor([list(row) for row in sizes], dtype=torch.int64)
    even = [received.stride() // num_ranks] * num_ranks
    return int64_tensor(list(per_rank) or even).repeat(num_features, 1)


def rows_to_send(chosen: Tensor, sizes: Tensor, dims: Tensor, *, variable: bool) -> Choice:
    """Choose rows of a lookup's result, for each rank, for each feature.

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
