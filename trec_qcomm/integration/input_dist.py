"""Input dist: ids travel as in TorchRec, and their bytes are counted."""

import torch
import torch.distributed as dist

from trec_qcomm.core.stats import Traffic
from trec_qcomm.integration.compat import (
    Awaitable,
    KeyedJaggedTensor,
    TwSparseFeaturesDist,
    input_dist_tensors,
)


class CountedTwSparseFeaturesDist(TwSparseFeaturesDist):
    """TorchRec's dist of ids; every forward adds what goes to other ranks to `traffic`."""

    def __init__(
        self, pg: dist.ProcessGroup, features_per_rank: list[int], *, traffic: Traffic
    ) -> None:
        super().__init__(pg, features_per_rank)
        self._rank, self._world_size, self._traffic = pg.rank(), pg.size(), traffic

    def forward(
        self, sparse_features: KeyedJaggedTensor
    ) -> Awaitable[Awaitable[KeyedJaggedTensor]]:
        """As the base class. Counts lengths, ids and weights, and the sizes sent before them."""
        awaitable = super().forward(sparse_features)
        splits_and_tensors = input_dist_tensors(awaitable)
        nbytes = sum(
            (sum(splits) - splits[self._rank]) * tensor.element_size()
            for splits, tensor in splits_and_tensors
        )
        num_sizes = len(splits_and_tensors) + (not sparse_features.variable_stride_per_key())
        nbytes += 8 * num_sizes * (self._world_size - 1)
        count = torch.tensor([nbytes])
        self._traffic.add_bytes(torch.tensor([0]), count, count, 0)
        return awaitable
