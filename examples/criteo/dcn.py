"""DLRM-DCNv2: a DLRM whose interaction is a deep cross network of low rank.

With tables of one dim it is torchrec's DLRM_DCN, part by part and name by name, so either loads the
weights of the other. That one stacks pooled rows as [B, F, D] first, and so cannot have tables of
different dims; a cross network takes all columns side by side anyway, so this one just joins them.
Knows: TorchRec's layers. Does not know: sharding, options, data.
Shapes: B samples, F features, D columns of a table, S columns of all features together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.models.dlrm import DenseArch, OverArch
from torchrec.modules.crossnet import LowRankCrossNet
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


class JoinedRows(nn.Module):
    """Pooled rows of all features, side by side."""

    def __init__(self, embedding_bag_collection: EmbeddingBagCollection) -> None:
        super().__init__()
        self.embedding_bag_collection = embedding_bag_collection
        tables = embedding_bag_collection.embedding_bag_configs()
        dims = {name: table.embedding_dim for table in tables for name in table.feature_names}
        self.sparse_feature_names = [*dims]
        self.dims = [*dims.values()]

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Return [B, S] float32."""
        rows = self.embedding_bag_collection(features).to_dict()
        return torch.cat([rows[name] for name in self.sparse_feature_names], dim=1)


class CrossInteraction(nn.Module):
    """Cross network over dense and pooled columns."""

    def __init__(self, num_columns: int, num_layers: int, low_rank: int) -> None:
        super().__init__()
        self.crossnet = LowRankCrossNet(num_columns, num_layers, low_rank)

    def forward(self, dense_features: Tensor, sparse_features: Tensor) -> Tensor:
        """Return [B, N] of [B, N - S] and [B, S]."""
        crossed: Tensor = self.crossnet(torch.cat((dense_features, sparse_features), dim=1))
        return crossed


class DCN(nn.Module):
    """A DLRM-DCNv2 whose tables may have different dims. See the head of the file.

    Args:
        collection: tables, each with its features.
        num_dense: number of dense features.
        dense_arch, over_arch: sizes of the layers, the last ones included.
        num_layers, low_rank: depth of the cross network, and rank of its matrices.
    """

    def __init__(
        self,
        collection: EmbeddingBagCollection,
        *,
        num_dense: int,
        dense_arch: Sequence[int],
        over_arch: Sequence[int],
        num_layers: int,
        low_rank: int,
    ) -> None:
        super().__init__()
        self.sparse_arch = JoinedRows(collection)
        num_columns = sum(self.sparse_arch.dims) + dense_arch[-1]
        self.dense_arch = DenseArch(num_dense, [*dense_arch])
        self.inter_arch = CrossInteraction(num_columns, num_layers, low_rank)
        self.over_arch = OverArch(num_columns, [*over_arch])

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Return [B, 1] logits."""
        rows = self.sparse_arch(sparse_features)
        logits: Tensor = self.over_arch(self.inter_arch(self.dense_arch(dense_features), rows))
        return logits


def dim_of_rows(num_rows: int, largest: int) -> int:
    """Return 6 * num_rows ** 1/4, as a multiple of 4 from 4 to `largest`.

    Source: Wang et al. 2017, Deep & Cross Network, section 4.1; TorchRec needs multiples of 4.
    """
    return max(4, min(largest, 4 * round(1.5 * num_rows**0.25)))
