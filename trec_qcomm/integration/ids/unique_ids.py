"""Distinct ids of unpooled features: each is looked up and sent once.

TorchRec's use_index_dedup does the same, but not table by table, and not on CPU, where FBGEMM has
no operator for it.
"""

import torch
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.core.transfer import upload
from trec_qcomm.integration.compat import KeyedJaggedTensor
from trec_qcomm.ops.batch.unique import UniqueBags, sort_by_id, unique_bags


def distinct_ids(
    features: KeyedJaggedTensor, shares: Tensor, *, by_id: bool = False
) -> tuple[UniqueBags, KeyedJaggedTensor, Tensor]:
    """Find the distinct ids of each of F features.

    Args:
        shares: [F] float64, the largest share of distinct ids at which equal ones are merged
        by_id: whether they are sent in their order
    Returns: the distinct ids, each as a bag of one; a batch that holds each of them once, spread
             evenly over as many samples as before; and [N] int64, the place in that batch of each
             of the N ids.
    """
    values = features.values()
    num_ids = torch.tensor(features.length_per_key(), dtype=torch.int64)
    one_each = torch.ones_like(values, dtype=torch.int32)
    unique = unique_bags(values, one_each, num_ids, shares)
    if by_id:
        unique = sort_by_id(unique, values, one_each, num_ids)
    first = exclusive_cumsum(unique.counts)[:-1]
    before = torch.repeat_interleave(first, num_ids)
    spread = _spread(unique.counts, features.stride()).reshape(-1)
    before, lengths = upload(values.device, before, spread)
    reverse = unique.inverse + before
    distinct = KeyedJaggedTensor(
        features.keys(),
        values.index_select(0, unique.first),
        lengths=lengths.to(features.lengths().dtype),
    )
    return unique, distinct, reverse


def _spread(counts: Tensor, num_samples: int) -> Tensor:
    """Return [F, B] lengths that add up to the [F] counts, as even as can be."""
    sample = torch.arange(num_samples)
    if not num_samples:
        return counts.new_zeros(len(counts), 0)
    return (counts // num_samples)[:, None] + (sample < (counts % num_samples)[:, None])
