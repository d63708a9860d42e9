"""Samples that train and samples that are the test, and the batches that a rank takes of them.

Knows: the split in time order, which rows a rank takes, rows in memory. Does not know: the text
format (tsv.py), files (folder.py), the model.
Shapes: N rows, B rows of one batch on this rank, W ranks, 26 categories, 13 integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torchrec.datasets.utils import Batch

from data.ids import (
    CategoryCounts,
    CategoryIds,
    HashBuckets,
    missing_of,
    num_train_of,
    raw_columns,
    transform_dense,
)
from data.samples import FEATURES, Columns, Samples
from data.tsv import NUM_SPARSE, Rows


@dataclass(frozen=True)
class Dataset:
    """Samples ready to train on: categories are ids, integers are transformed, time order is kept.

    Args:
        rows: all samples.
        num_train: number of the first ones, which train; the others are the test part.
        num_embeddings: [26] rows of each table.
    """

    rows: Samples
    num_train: int
    num_embeddings: list[int]

    @property
    def train(self) -> Samples:
        """The samples to train on."""
        return self.rows[: self.num_train]

    @property
    def test(self) -> Samples:
        """The samples to score."""
        return self.rows[self.num_train :]

    @property
    def features(self) -> list[str]:
        """[26] the names of the features, in the order of the tables."""
        return FEATURES

    @property
    def pooling(self) -> list[int]:
        """[26] how many ids a sample has at most of each feature."""
        return self.rows.pooling

    def first(self, num_rows: int) -> Dataset:
        """Return the data set of the first rows alone, of which 6/7 train. Ids stay as they are."""
        rows = self.rows[:num_rows]
        return Dataset(rows, num_train_of(len(rows)), self.num_embeddings)


@dataclass(frozen=True)
class Batches(Sequence[Batch]):
    """The batches of one rank, by index, so that a resumed run starts where it stopped.

    Global batch i is rows [i W B, (i+1) W B) of the part, and rank r takes the r-th of W contiguous
    slices. With `drop_last` (training: every step is of one size) rows that do not fill a global
    batch are left out; without it (evaluation: every row is scored once) the last global batch is
    shared out evenly, so that ranks differ by one row and a rank may have none.
    """

    rows: Samples
    batch_size: int  # per rank
    rank: int
    world_size: int
    drop_last: bool

    def __len__(self) -> int:
        size = self.batch_size * self.world_size
        return len(self.rows) // size if self.drop_last else -(-len(self.rows) // size)

    def __getitem__(self, index: int) -> Batch:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        size = self.batch_size * self.world_size
        batch = self.rows[index * size : (index + 1) * size]
        start = len(batch) * self.rank // self.world_size
        return batch[start : len(batch) * (self.rank + 1) // self.world_size].to_batch()


def prepare(rows: Rows, *, min_count: int, hash_buckets: int | None) -> Dataset:
    """Split raw rows in memory, number their categories and transform their integers.

    Args:    rows: [N] ROW as the reader yields them, in time order.
             min_count: categories with fewer rows in the train part are out of vocabulary.
             hash_buckets: hash every column into so many ids; there is no vocabulary then.
    """
    num_train, raw = num_train_of(len(rows)), raw_columns(rows)
    ids = np.empty((len(rows), NUM_SPARSE), np.int32)
    num_embeddings = []
    for k in range(NUM_SPARSE):
        missing = missing_of(raw, k)
        column: CategoryIds
        if hash_buckets is None:
            counts = CategoryCounts(min_count)
            counts.add(raw[k, :num_train], missing[:num_train])
            column = counts.vocabulary()
        else:
            column = HashBuckets(hash_buckets)
        ids[:, k] = column.lookup(raw[k], missing)
        num_embeddings.append(column.num_ids)
    columns = Columns(rows["label"], transform_dense(rows["dense"]), ids)
    return Dataset(Samples([columns]), num_train, num_embeddings)
