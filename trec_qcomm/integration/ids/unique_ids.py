"""Distinct ids of unpooled features: each is looked up and sent once, as TorchRec's use_index_dedup
does, but with a choice for every table and on CPU, where FBGEMM has no operator for it.
"""

import torch
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.integration.compat import KeyedJaggedTensor
from trec_qcomm.ops.unique import UniqueBags, unique_bags


def distinct_ids(
    features: KeyedJaggedTensor, shares: Tensor
) -> tuple[UniqueBags, KeyedJaggedTensor, Tensor]:
    """The distinct ids of each of F features.

    Args:    shares: [F] float64, see ops.unique.unique_bags, of which each id is a bag here.
    Returns: what was found; a batch of as many samples that holds each id once, spread over its
             samples, of which none means anything; and [N] int64, which id of that batch each of
             the N ids is.
    """
    values = features.values()
    num_ids = torch.tensor(features.length_per_key(), dtype=torch.int64)
    one_each = torch.ones_like(values, dtype=torch.int32)
    unique = unique_bags(values, one_each, num_ids, shares)
    first = exclusive_cumsum(unique.counts)[:-1]
    before = torch.repeat_interleave(first, num_ids)
    reverse = unique.inverse + before.to(values.device)
    lengths = _spread(unique.counts, features.stride()).to(features.lengths())
    distinct = KeyedJaggedTensor(
        features.keys(), values.index_select(0, unique.first), lengths=lengths.reshape(-1)
    )
    return unique, distinct, reverse


def _spread(counts: Tensor, num_samples: int) -> Tensor:
    """[F] counts -> [F, B] that sum up to them, as even as can be."""
    sample = torch.arange(num_samples)
    if not num_samples:
        return counts.new_zeros(len(counts), 0)
    return (counts // num_samples)[:, None] + (sample < (counts % num_samples)[:, None])
