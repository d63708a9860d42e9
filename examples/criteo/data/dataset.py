"""From raw rows to the batches of each rank: split, category ids, dense features, slices.

Knows: the 6/7 : 1/7 split in time order, vocabularies, which rows a rank takes. Does not know: the
text format (tsv.py), the model. The rows lie in a temporary file that is mapped, not held, so a
data set may be larger than memory; the file takes 261 bytes a row in $TMPDIR for each rank.
Shapes: N rows, B rows of one batch on this rank, W ranks, 26 categories, 13 integers.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec.datasets.utils import Batch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from data.tsv import NUM_SPARSE, ROW, Ints, LineCount, Rows, list_files, read_file

logger = logging.getLogger(__name__)

FEATURES = [f"C{k}" for k in range(1, NUM_SPARSE + 1)]
OUT_OF_VOCABULARY = 0
_CHUNK_ROWS = 1 << 18


class CategoryIds(Protocol):
    """Turns the categories of one column into rows of its embedding table."""

    @property
    def num_ids(self) -> int:
        """The rows of the table."""

    def lookup(self, categories: Ints) -> Ints:
        """Categories [N] -> ids [N] in 0..num_ids-1."""


@dataclass(frozen=True)
class Vocabulary:
    """The frequent categories of one column of the train part; all others are id 0.

    A missing category is a category like all others: frequent enough, it has an id of its own.
    """

    categories: Ints  # [V] sorted; categories[i] has id i + 1

    @property
    def num_ids(self) -> int:
        return len(self.categories) + 1

    def lookup(self, categories: Ints) -> Ints:
        if not len(self.categories):
            return np.full_like(categories, OUT_OF_VOCABULARY)
        at = np.searchsorted(self.categories, categories)
        known = self.categories[np.minimum(at, len(self.categories) - 1)] == categories
        return np.where(known, at + 1, OUT_OF_VOCABULARY)


@dataclass(frozen=True)
class HashBuckets:
    """A fixed number of ids: splitmix64 of the category, missing included, modulo num_ids."""

    num_ids: int

    def lookup(self, categories: Ints) -> Ints:
        x = categories.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((x ^ (x >> np.uint64(31))) % np.uint64(self.num_ids)).astype(np.int64)


@dataclass(frozen=True)
class Dataset:
    """Rows ready to train on: categories are ids, integers are transformed, time order is kept."""

    rows: Rows  # [N] ROW
    num_train: int  # the first rows; the others are the test part
    num_embeddings: list[int]  # [26] rows of each table

    @property
    def train(self) -> Rows:
        """The first 6/7 of the rows."""
        return self.rows[: self.num_train]

    @property
    def test(self) -> Rows:
        """The last 1/7 of the rows."""
        return self.rows[self.num_train :]

    @property
    def features(self) -> list[str]:
        """[26] the names of the features, in the order of the tables."""
        return FEATURES

    @property
    def pooling(self) -> list[int]:
        """[26] how many ids a sample has at most of each feature."""
        return [1] * NUM_SPARSE

    def first(self, num_rows: int) -> Dataset:
        """Return the data set of the first rows alone, split alike. Ids stay as they are."""
        rows = self.rows[:num_rows]
        return Dataset(rows, _num_train(rows), self.num_embeddings)


@dataclass(frozen=True)
class Batches(Sequence[Batch]):
    """The batches of one rank, by index, so that a resumed run starts where it stopped.

    Global batch i is rows [i W B, (i+1) W B) of the part, and rank r takes the r-th of W contiguous
    slices. With `drop_last` (training: every step is of one size) rows that do not fill a global
    batch are left out; without it (evaluation: every row is scored once) the last global batch is
    shared out evenly, so that ranks differ by one row and a rank may have none.
    """

    rows: Rows
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
        return to_batch(batch[start : len(batch) * (self.rank + 1) // self.world_size])


def to_batch(rows: Rows) -> Batch:
    """Rows [B] -> labels [B] float32, dense [B, 13] float32, C1..C26 with one id a sample."""
    ids = torch.from_numpy(rows["categories"].T.copy())
    sparse = KeyedJaggedTensor(
        keys=FEATURES,
        values=ids.reshape(-1),
        lengths=torch.ones(ids.numel(), dtype=torch.int32),
        stride=len(rows),
    )
    labels: Tensor = torch.from_numpy(rows["label"].astype(np.float32))
    return Batch(torch.from_numpy(rows["dense"].copy()), sparse, labels)


def load_tsv(path: Path, *, min_count: int, hash_buckets: int | None) -> Dataset:
    """Read Criteo's TSV from a file, or from the files of a directory in sorted order.

    Raises: ValueError: no file, no rows, or more than 1 % of a file's lines are malformed.
    """
    with tempfile.TemporaryFile(prefix="criteo-") as file:
        for chunk in _read_files(list_files(path)):
            file.write(chunk.tobytes())
        num_rows = file.tell() // ROW.itemsize
        file.flush()
        if num_rows == 0:
            raise ValueError(f"{path}: no rows")
        rows: Rows = np.memmap(file, dtype=ROW, mode="r+", shape=(num_rows,))
    return prepare(rows, min_count=min_count, hash_buckets=hash_buckets)


def prepare(rows: Rows, *, min_count: int, hash_buckets: int | None) -> Dataset:
    """Split raw rows, number their categories and transform their integers, all in place.

    Args:    rows: [N] ROW as the reader yields them, in time order.
             min_count: categories with fewer rows in the train part are out of vocabulary.
             hash_buckets: hash every column into so many ids; there is no vocabulary then.
    """
    num_train = _num_train(rows)
    columns: list[CategoryIds]
    if hash_buckets is None:
        columns = [*build_vocabularies(rows[:num_train], min_count)]
    else:
        columns = [HashBuckets(hash_buckets)] * NUM_SPARSE
    for chunk in _chunks(rows):
        chunk["dense"] = transform_dense(chunk["dense"])
        for k, column in enumerate(columns):
            chunk["categories"][:, k] = column.lookup(chunk["categories"][:, k])
    return Dataset(rows, num_train, [column.num_ids for column in columns])


def build_vocabularies(train: Rows, min_count: int) -> list[Vocabulary]:
    """One vocabulary a column: the categories that at least `min_count` of the rows have."""
    counted = [(np.empty(0, np.int64), np.empty(0, np.int64))] * NUM_SPARSE
    for chunk in _chunks(train):
        for k in range(NUM_SPARSE):
            counted[k] = _add_counts(*counted[k], chunk["categories"][:, k])
    return [Vocabulary(values[counts >= min_count]) for values, counts in counted]


def transform_dense(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """log(1 + x) of the integers; a negative or missing one counts as 0."""
    return np.log1p(np.maximum(np.nan_to_num(raw, nan=0.0), 0.0))


def _num_train(rows: Rows) -> int:
    return len(rows) * 6 // 7


def _read_files(paths: Iterable[Path]) -> Iterator[Rows]:
    for path in paths:
        count = LineCount(path)
        yield from read_file(path, count)
        logger.log(logging.WARNING if count.num_malformed else logging.INFO, "%s", count)


def _add_counts(values: Ints, counts: Ints, more: Ints) -> tuple[Ints, Ints]:
    new_values, new_counts = np.unique(more, return_counts=True)
    merged, at = np.unique(np.concatenate([values, new_values]), return_inverse=True)
    total = np.bincount(at, weights=np.concatenate([counts, new_counts]), minlength=len(merged))
    return merged, total.astype(np.int64)


def _chunks(rows: Rows) -> Iterator[Rows]:
    return (rows[at : at + _CHUNK_ROWS] for at in range(0, len(rows), _CHUNK_ROWS))
