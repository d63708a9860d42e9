"""Lookups that are padded equal FBGEMM's own of a batch size for every feature, bit for bit."""

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch.profiler import ProfilerActivity, profile

from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.integration.ids.lookup_rows import pad_lookups

NUM_ROWS = 30
# Bags of each feature from each rank.
SIZES = {
    "one rank": ((4, 8), [[3], [5]]),
    "dims and sizes differ": ((4, 12, 8), [[3, 0, 2], [1, 7, 4], [0, 0, 5]]),
    "a feature without bags": ((8, 8), [[0, 0], [2, 3]]),
    "equal sizes": ((4, 4), [[2, 2], [2, 2]]),
    "one feature": ((16,), [[6, 1]]),
}


def lookup_of(dims, pooling=PoolingMode.SUM, optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD):
    torch.manual_seed(0)
    lookup = SplitTableBatchedEmbeddingBagsCodegen(
        [(NUM_ROWS, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for dim in dims],
        optimizer=optimizer,
        pooling_mode=pooling,
        weights_precision=SparseType.FP32,
        learning_rate=0.1,
    )
    for weights in lookup.split_embedding_weights():
        weights.uniform_(-1, 1)
    return lookup


def batch(sizes, weighted):
    generator = torch.Generator().manual_seed(1)
    num_bags = sum(map(sum, sizes))
    lengths = torch.randint(0, 4, (num_bags,), generator=generator)
    offsets = exclusive_cumsum(lengths)
    indices = torch.randint(0, NUM_ROWS, (int(offsets[-1]),), generator=generator)
    weights = torch.rand(len(indices), generator=generator) if weighted else None
    return {"indices": indices, "offsets": offsets, "per_sample_weights": weights}


def train(lookup, sizes, weighted):
    """Return the rows of two steps and the tables after them."""
    rows_by_step = []
    for _ in range(2):
        rows = lookup(**batch(sizes, weighted), batch_size_per_feature_per_rank=sizes)
        rows.backward(torch.randn(rows.shape, generator=torch.Generator().manual_seed(2)))
        rows_by_step.append(rows.detach())
    return rows_by_step + [weights.clone() for weights in lookup.split_embedding_weights()]


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("pooling", [PoolingMode.SUM, PoolingMode.MEAN], ids=["sum", "mean"])
@pytest.mark.parametrize("name", SIZES)
def test_equals_fbgemm(name, pooling, weighted):
    dims, sizes = SIZES[name]
    plain, padded = lookup_of(dims, pooling), lookup_of(dims, pooling)
    pad_lookups(torch.nn.ModuleList([padded]))
    expected, ours = train(plain, sizes, weighted), train(padded, sizes, weighted)
    assert all(map(torch.equal, expected, ours))


def test_asks_nothing_for_each_bag():
    dims, sizes = SIZES["dims and sizes differ"]
    counts = []
    for factor in (1, 10):
        lookup = lookup_of(dims)
        pad_lookups(lookup)
        more = [[factor * size for size in row] for row in sizes]
        train(lookup, more, False)  # what is made once
        with profile(activities=[ProfilerActivity.CPU]) as trace:
            train(lookup, more, False)
        counts.append(sum(event.count for event in trace.key_averages()))
    assert counts[0] == counts[1]


def test_a_whole_batch_is_left_alone():
    dims = (4, 8)
    plain, padded = lookup_of(dims), lookup_of(dims)
    pad_lookups(padded)
    ids = batch([[3, 2], [3, 2]], False)
    assert torch.equal(plain(**ids), padded(**ids))
