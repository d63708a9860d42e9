"""What becomes of raw columns: category ids, log(1 + x) of the integers, the split.

Knows: vocabularies, hashing, which rows train. Does not know: files, processes, torch.
Raw categories are columns of 32 bits, and one more column with a bit for each that is missing; so
a column can be counted, and numbered, without the others.
Shapes: N rows, V categories of a vocabulary, 26 columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data.kernels import NUM_BITS, find_ids, merge_counts, to_columns
from data.tsv import NUM_SPARSE, Bools, Rows

OUT_OF_VOCABULARY = 0
LARGEST_ID = 2**31 - 1  # files have int32, as TorchRec's

RawColumns = NDArray[np.uint32]  # [27, N]: categories, then the bits of those that are missing
Categories = NDArray[np.uint32]
Ids = NDArray[np.int32]


class CategoryIds(Protocol):
    """Turns the categories of one column into rows of its embedding table."""

    @property
    def num_ids(self) -> int:
        """The rows of the table."""

    def lookup(self, categories: Categories, missing: Bools) -> Ids:
        """Categories [N] and which of them are missing [N] -> ids [N] in 0..num_ids-1."""


@dataclass(frozen=True)
class Vocabulary:
    """The frequent categories of one column of the train part; all others are id 0.

    A missing category is a category like all others: frequent enough, it has an id of its own, 1.
    """

    categories: Categories  # [V] ascending; the ids follow one another
    has_missing: bool

    @property
    def num_ids(self) -> int:
        return len(self.categories) + 1 + self.has_missing

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        leading = np.arange((1 << NUM_BITS) + 1, dtype=np.uint64) << np.uint64(32 - NUM_BITS)
        return np.searchsorted(self.categories, leading)

    def lookup(self, categories: Categories, missing: Bools) -> Ids:
        ids = np.empty(len(categories), np.int32)
        find_ids(self.categories, self._starts, categories, 1 + self.has_missing, ids)
        ids[missing] = 1 if self.has_missing else OUT_OF_VOCABULARY
        return ids


@dataclass(frozen=True)
class HashBuckets:
    """A fixed number of ids: splitmix64 of the category, missing included, modulo num_ids."""

    num_ids: int

    def lookup(self, categories: Categories, missing: Bools) -> Ids:
        x = categories.astype(np.uint64)
        x[missing] = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
        x += np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((x ^ (x >> np.uint64(31))) % np.uint64(self.num_ids)).astype(np.int32)


@dataclass(frozen=True)
class AsTheyAre:
    """Categories that are ids already; a missing one is id 0, as in TorchRec's files."""

    num_ids: int

    def lookup(self, categories: Categories, missing: Bools) -> Ids:
        return np.where(missing, 0, categories).astype(np.int32)


@dataclass
class CategoryCounts:
    """The categories of one column with their counts, up to `limit`, as more rows are added.

    They are sorted lists that are merged as they grow, so that each category is merged a few times
    only. All lists, and the one that two are merged into, take at most 24 bytes a category.
    """

    limit: int
    num_missing: int = 0
    _lists: list[tuple[Categories, NDArray[np.uint32]]] = field(default_factory=list)

    def add(self, categories: Categories, missing: Bools) -> None:
        """Count N more rows."""
        self.num_missing += int(missing.sum())
        values = np.sort(categories[~missing])
        first = np.flatnonzero(np.r_[True, values[1:] != values[:-1]][: len(values)])
        counts = np.minimum(np.diff(first, append=len(values)), self.limit)
        self._lists.append((values[first], counts.astype(np.uint32)))
        while len(self._lists) > 1 and 2 * len(self._lists[-1][0]) > len(self._lists[-2][0]):
            self._merge_last()

    def vocabulary(self) -> Vocabulary:
        """Return the categories that have been counted `limit` times."""
        while len(self._lists) > 1:
            self._merge_last()
        values, counts = self._lists[0] if self._lists else (np.empty(0, np.uint32),) * 2
        return Vocabulary(values[counts >= self.limit], self.num_missing >= self.limit)

    def _merge_last(self) -> None:
        right, left = self._lists.pop(), self._lists.pop()
        size = len(left[0]) + len(right[0])
        merged, total = np.empty(size, np.uint32), np.empty(size, np.uint32)
        num = merge_counts(*left, *right, self.limit, merged, total)
        self._lists.append((merged[:num], total[:num]))


def raw_columns(rows: Rows) -> RawColumns:
    """Return the categories of rows as columns."""
    columns = np.empty((NUM_SPARSE + 1, len(rows)), np.uint32)
    to_columns(rows["categories"], columns)
    return columns


def missing_of(columns: RawColumns, k: int) -> Bools:
    """Return which rows have no category in a column."""
    missing: Bools = (columns[NUM_SPARSE] >> np.uint32(k) & np.uint32(1)).astype(np.bool_)
    return missing


def transform_dense(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """log(1 + x) of the integers; a negative or missing one counts as 0."""
    return np.log1p(np.maximum(np.nan_to_num(raw, nan=0.0), 0.0))


def num_train_of(num_rows: int) -> int:
    """Return how many rows train: the first 6/7."""
    return num_rows * 6 // 7


@dataclass(frozen=True, kw_only=True)
class IdChoice:
    """How ids are made of categories: a vocabulary, hashing, or as they are.

    Args:
        min_count: categories with fewer rows in the train part are out of vocabulary.
        hash_buckets: hash every column into so many ids; there is no vocabulary then.
        as_they_are: the categories are ids.
    Raises: ValueError: not exactly one is chosen, or it is not positive.
    """

    min_count: int | None = None
    hash_buckets: int | None = None
    as_they_are: bool = False

    def __post_init__(self) -> None:
        if (self.min_count is None) + (self.hash_buckets is None) + (not self.as_they_are) != 2:
            raise ValueError("ids: expected one of min_count, hash_buckets, as_they_are")
        for name in ("min_count", "hash_buckets"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= LARGEST_ID:
                raise ValueError(f"{name} {value}: expected 1 to {LARGEST_ID}")

    def __str__(self) -> str:
        (name, value), *_ = self.to_json().items()
        return "as_they_are" if self.as_they_are else f"{name}_{value}"

    def to_json(self) -> dict[str, Any]:
        """Return what was chosen, by name."""
        return {name: value for name, value in vars(self).items() if value}
