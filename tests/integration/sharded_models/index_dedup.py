"""The operator of use_index_dedup for CPU, which FBGEMM has for CUDA only."""

import torch
from torch import Tensor


def jagged_unique_indices(
    hash_size_cumsum: Tensor, hash_size_offsets: Tensor, offsets: Tensor, indices: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Find the distinct ids of each table, over all its features.

    Their number is spread over the table's bags.

    Args:    hash_size_cumsum: [F + 1], equal for features of one table.  hash_size_offsets:
             [F + 1], the features of each table.  offsets: [F * B + 1], B > 0.  indices: [N].
    Returns: lengths: [F * B].  offsets: [F * B + 1].  unique ids: [U].  inverse: [N].
    """
    bags_per_feature = (offsets.numel() - 1) // (hash_size_cumsum.numel() - 1)
    low = torch.repeat_interleave(hash_size_cumsum[:-1], offsets[::bags_per_feature].diff())
    linear, inverse = torch.unique(indices + low, return_inverse=True)
    lengths = torch.zeros(offsets.numel() - 1, dtype=offsets.dtype)
    unique = linear.clone()
    for begin, end in zip(hash_size_offsets.tolist(), hash_size_offsets[1:].tolist(), strict=False):
        if begin == end:
            continue
        first, last = hash_size_cumsum[begin], hash_size_cumsum[end]
        inside = (linear >= first) & (linear < last)
        unique[inside] -= first
        each, rest = divmod(int(inside.sum()), (end - begin) * bags_per_feature)
        spread = lengths[begin * bags_per_feature : end * bags_per_feature]
        spread.fill_(each)
        spread[:rest] += 1
    ends = torch.zeros(offsets.numel(), dtype=offsets.dtype)
    torch.cumsum(lengths, 0, out=ends[1:])
    return lengths, ends, unique, inverse


def run_on_cpu() -> None:
    """Register the operator in this process."""
    name = "fbgemm::jagged_unique_indices"
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
        torch.library.impl(name, "CPU")(jagged_unique_indices)
