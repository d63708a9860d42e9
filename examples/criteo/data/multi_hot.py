"""Bags of ids made of single ids, with the pooling factors of MLPerf's DLRMv2.

Knows: samples with one id a feature, and how to draw more. Does not know: files, models.
A bag has its sample's id first; the others are drawn as often as the ids occur in the data. In
MLPerf's data the id decides on the whole bag, so bags repeat within a batch as often as ids do
(`fixed_share` 1). Histories of users hardly ever repeat: `fixed_share` 0 draws each bag anew.
Bags are made when they are read, and are the same each time. Shapes: N samples, P ids of a bag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from data.dataset import Array, Change, Dataset, splitmix64

POOLING = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
_DRAWN_FROM = 1 << 16  # training samples whose ids are drawn


@dataclass(frozen=True)
class BagRecipe:
    """Makes bags of the ids of a feature; a Change of Samples.

    Args:
        pooling: [26] ids of a bag.
        fixed_share: share of the samples whose bags depend on the first id alone.
        seed: seed of all draws.
        drawn_from: ids of each feature, as often as they occur.
        before: change of the single ids.
    """

    pooling: tuple[int, ...]
    fixed_share: float
    seed: int
    drawn_from: tuple[Array, ...]
    before: Change | None

    def __call__(self, feature: int, ids: Array, first_row: int) -> Array:
        """Return bags [N, P] of a feature. Args: ids: [N, 1], of the rows from `first_row` on."""
        if self.before is not None:
            ids = self.before(feature, ids, first_row)
        size = self.pooling[feature]
        rows = np.arange(first_row, first_row + len(ids), dtype=np.uint64)
        salt = np.uint64((self.seed * len(self.pooling) + feature + 1) << 40)
        is_fixed = splitmix64(rows ^ salt) < self.fixed_share * 2.0**64
        key = np.where(is_fixed, ids[:, 0].astype(np.uint64), rows | np.uint64(1 << 63))
        draws = splitmix64(splitmix64(key ^ salt)[:, None] + np.arange(1, size, dtype=np.uint64))
        drawn = self.drawn_from[feature][(draws % np.uint64(_DRAWN_FROM)).astype(np.int64)]
        return np.concatenate([ids, drawn], axis=1, dtype=np.int64)


def with_bags(
    dataset: Dataset, *, fixed_share: float = 1.0, seed: int = 0, pooling: Sequence[int] = POOLING
) -> Dataset:
    """Return the samples of a data set with bags in the place of single ids.

    Args: fixed_share: share of the samples whose bags depend on the first id alone.
    Raises: ValueError: the samples have several ids already, or a share is not from 0 to 1.
    """
    if max(dataset.pooling) > 1:
        raise ValueError("multi_hot: the samples have several ids of a feature already")
    if not 0 <= fixed_share <= 1:
        raise ValueError(f"multi_hot {fixed_share}: expected a share from 0 to 1")
    first = dataset.train[:_DRAWN_FROM].gather()
    drawn_from = tuple(np.resize(each[:, 0], _DRAWN_FROM) for each in first.ids)
    recipe = BagRecipe(tuple(pooling), fixed_share, seed, drawn_from, dataset.rows.change)
    return replace(dataset, rows=replace(dataset.rows, change=recipe))
