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
from numpy.typing import NDArray
from torchrec.datasets.utils import Batch

from data.dataset import Dataset
from data.samples import Array, Columns, Samples
from data.tsv import Ints

POOLING = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
_DRAWN_FROM = 1 << 16  # training samples whose ids are drawn


@dataclass(frozen=True)
class BagRecipe:
    """How bags are made.

    Args:
        pooling: [26] ids of a bag.
        fixed_share: share of the samples whose bags depend on the first id alone.
        seed: seed of all draws.
        drawn_from: ids of each feature, as often as they occur.
    """

    pooling: tuple[int, ...]
    fixed_share: float
    seed: int
    drawn_from: tuple[Array, ...]

    def bags(self, feature: int, ids: Array, first_row: int) -> Ints:
        """Return bags [N, P] of a feature. Args: ids: [N], of the rows from `first_row` on."""
        size = self.pooling[feature]
        rows = np.arange(first_row, first_row + len(ids), dtype=np.uint64)
        salt = np.uint64((self.seed * len(self.pooling) + feature + 1) << 40)
        is_fixed = _mixed(rows ^ salt) < self.fixed_share * 2.0**64
        key = np.where(is_fixed, ids.astype(np.uint64), rows | np.uint64(1 << 63))
        draws = _mixed(_mixed(key ^ salt)[:, None] + np.arange(1, size, dtype=np.uint64))
        drawn = self.drawn_from[feature][(draws % np.uint64(_DRAWN_FROM)).astype(np.int64)]
        return np.concatenate([ids[:, None], drawn], axis=1, dtype=np.int64)


@dataclass(frozen=True)
class BagColumns(Columns):
    """Samples with one id a feature, of which bags are made.

    Args: recipe: how.  first_row: number of the first sample in the whole data.
    """

    recipe: BagRecipe | None = None
    first_row: int = 0

    def cut(self, start: int, stop: int) -> Columns:
        return replace(super().cut(start, stop), first_row=self.first_row + start)

    @property
    def pooling(self) -> list[int]:
        assert self.recipe is not None
        return list(self.recipe.pooling)

    def blocks(self) -> tuple[Array, ...]:
        return tuple(self.ids_of(feature) for feature in range(len(self.pooling)))

    def ids_of(self, feature: int) -> Array:
        assert self.recipe is not None
        return self.recipe.bags(feature, super().ids_of(feature)[:, 0], self.first_row)


def with_bags(
    dataset: Dataset, *, fixed_share: float = 1.0, seed: int = 0, pooling: Sequence[int] = POOLING
) -> Dataset:
    """Return the samples of a data set with bags in the place of single ids.

    Args: fixed_share: share of the samples whose bags depend on the first id alone.
    Raises: ValueError: the samples have several ids already, or a share is not from 0 to 1.
    """
    if any(number != 1 for number in dataset.pooling):
        raise ValueError("multi_hot: the samples have several ids of a feature already")
    if not 0 <= fixed_share <= 1:
        raise ValueError(f"multi_hot {fixed_share}: expected a share from 0 to 1")
    first = dataset.train[:_DRAWN_FROM]
    columns = (first.ids_of(feature)[:, 0] for feature in range(len(pooling)))
    drawn_from = tuple(np.resize(np.asarray(ids), _DRAWN_FROM) for ids in columns)
    recipe = BagRecipe(tuple(pooling), fixed_share, seed, drawn_from)
    pieces, at = [], 0
    for piece in dataset.rows.pieces:
        ids = (piece.labels, piece.dense, piece.ids, piece.modulo)
        pieces.append(BagColumns(*ids, recipe, at))
        at += len(piece)
    return replace(dataset, rows=Samples(pieces))


def distinct_shares(batch: Batch) -> dict[str, tuple[float, float]]:
    """Return, by feature, the share of the bags of a batch that differ, and that of the ids."""
    shares = {}
    for feature, jagged in batch.sparse_features.to_dict().items():
        values = jagged.values().numpy()
        bags = values.reshape(len(jagged.lengths()), -1)
        num_bags, num_ids = len(np.unique(bags, axis=0)), len(np.unique(values))
        shares[feature] = (num_bags / len(bags), num_ids / len(values))
    return shares


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64 of numbers."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
