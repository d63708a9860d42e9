"""Sort distinct bags by id, with torch's sorts. The host does not wait."""

import torch
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.ops.device import upload


def sort_by_id(
    first: Tensor,
    counts: Tensor,
    inverse: Tensor,
    values: Tensor,
    lengths: Tensor,
    num_bags: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return first and inverse in the order of ids. The arguments are those of reference.py."""
    if not len(values):
        return first, inverse
    bag_ends, ends = (exclusive_cumsum(numbers)[1:] for numbers in (num_bags, counts))
    bag_ends, ends, starts = upload(values.device, bag_ends, ends, exclusive_cumsum(counts)[:-1])
    group_of_bag = _groups(len(lengths), bag_ends)
    group = _groups(len(first), ends)
    num_long = torch.zeros_like(ends).index_add_(0, group_of_bag, (lengths > 1).to(torch.int64))
    is_whole = num_long[group] > 0  # groups that stay in their order
    length = lengths[first]
    at = (lengths.cumsum(0, dtype=torch.int64)[first] - length).clamp(0, len(values) - 1)
    has_id = length > 0
    key = torch.where(has_id & ~is_whole, values[at], 0)
    order = torch.sort(key, stable=True).indices
    major = 2 * group + (has_id | is_whole)
    order = order[torch.sort(major[order], stable=True).indices]
    rank = torch.empty_like(first)
    rank[order] = torch.arange(len(first), device=first.device)
    return first[order], rank[inverse + starts[group_of_bag]] - starts[group_of_bag]


def _groups(size: int, ends: Tensor) -> Tensor:
    """Return [size] int64, the group of each number. ends: [G], ends of the groups."""
    return torch.bucketize(torch.arange(size, device=ends.device), ends, right=True)
