"""Samples in columns, the part that trains and the test, and the batches that a rank takes of them.

Knows: the split in time order, category ids, which rows a rank takes. Does not know: the text
format (tsv.py), files (folder.py), the model.
Shapes: N samples, B of a batch on this rank, W ranks, P ids that a sample has of a feature.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec.datasets.utils import Batch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from data.tsv import NUM_SPARSE, Rows

FEATURES = [f"C{k}" for k in range(1, NUM_SPARSE + 1)]
LARGEST_ID = 2**31 - 1  # files have int32, as TorchRec's

Array = NDArray[Any]
Change = Callable[[int, Array, int], Array]  # feature, its ids [B, P], first row -> other ids


@dataclass(frozen=True)
class Columns:
    """N samples whose columns lie in one place each."""

    labels: Array  # [N], 0 or 1
    dense: NDArray[np.float32]  # [N, 13]
    ids: tuple[Array, ...]  # [N, P] of each feature

    def __len__(self) -> int:
        return len(self.labels)

    def cut(self, start: int, stop: int) -> Columns:
        """Return samples start to stop - 1; nothing is copied."""
        ids = tuple(each[start:stop] for each in self.ids)
        return Columns(self.labels[start:stop], self.dense[start:stop], ids)


class Pieces(Protocol):
    """Samples in time order, in pieces of the same pooling."""

    def cuts(self, start: int, stop: int) -> list[Columns]:
        """Return samples `start` to `stop` - 1, in at least one piece."""


@dataclass(frozen=True)
class HeldPieces:
    """Pieces that are there, such as mapped files. Args: columns: at least one."""

    columns: Sequence[Columns]

    def cuts(self, start: int, stop: int) -> list[Columns]:
        cuts, at = [], 0
        for piece in self.columns:
            begin, end = max(start - at, 0), min(stop - at, len(piece))
            if begin < end:
                cuts.append(piece.cut(begin, end))
            at += len(piece)
        return cuts or [self.columns[0].cut(0, 0)]


@dataclass(frozen=True)
class Samples:
    """Samples in time order. A slice reads and copies nothing.

    Args:
        pieces: where they are.
        start, stop: which of their samples these are.
        change: what a batch has in the place of the ids that the pieces have.
    """

    pieces: Pieces
    start: int
    stop: int
    change: Change | None = None

    @classmethod
    def of_pieces(cls, pieces: Sequence[Columns], change: Change | None = None) -> Samples:
        """Return all samples of the pieces."""
        return cls(HeldPieces(pieces), 0, sum(map(len, pieces)), change)

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, part: slice) -> Samples:
        start, stop, _ = part.indices(len(self))
        return replace(self, start=self.start + start, stop=self.start + max(start, stop))

    def gather(self) -> Columns:
        """Return the samples in one piece, with the ids that a batch has."""
        cuts = self.pieces.cuts(self.start, self.stop)
        ids = [_joined([cut.ids[k] for cut in cuts]) for k in range(NUM_SPARSE)]
        if self.change is not None:
            ids = [self.change(k, each, self.start) for k, each in enumerate(ids)]
        labels, dense = _joined([c.labels for c in cuts]), _joined([c.dense for c in cuts])
        return Columns(labels, dense, tuple(ids))

    def to_batch(self) -> Batch:
        """Return labels [B] float32, dense [B, 13] float32, and the ids of C1..C26, int64."""
        columns = self.gather()
        pooling = np.array([each.shape[1] for each in columns.ids], np.int32)
        values = np.concatenate([each.reshape(-1) for each in columns.ids], dtype=np.int64)
        sparse = KeyedJaggedTensor(
            keys=FEATURES,
            values=torch.from_numpy(values),
            lengths=torch.from_numpy(np.repeat(pooling, len(self))),
            stride=len(self),
        )
        dense = torch.from_numpy(np.array(columns.dense, np.float32))
        return Batch(dense, sparse, torch.from_numpy(np.array(columns.labels, np.float32)))


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
    def pooling(self) -> list[int]:
        """[26] how many ids a sample has of each feature."""
        return [each.shape[1] for each in self.rows[:0].gather().ids]


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


class BatchReader:
    """The batches of steps `first` to `last` - 1, in order, read ahead by a thread.

    Step i takes batch i modulo the number of batches: epochs follow one another in the same order.
    So a resumed run starts where it stopped, and reads nothing before that.

    Args: pin: whether to put them into pinned memory, so that copies to a GPU are asynchronous.
    """

    def __init__(
        self, batches: Sequence[Batch], first: int, last: int, *, ahead: int = 2, pin: bool = False
    ) -> None:
        self.waited_s = 0.0  # seconds that __next__ has waited for the thread, in all
        self._batches, self._steps, self._pin = batches, iter(range(first, last)), pin
        device = (torch.cuda.current_device(),) if pin else ()  # else the thread would be of GPU 0
        setup = torch.cuda.set_device if pin else None
        self._thread = ThreadPoolExecutor(1, "reader", setup, device)
        self._ready: deque[Any] = deque()
        for _ in range(ahead):
            self._read_one()

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def __iter__(self) -> BatchReader:
        return self

    def __next__(self) -> Batch:
        if not self._ready:
            raise StopIteration
        begin = time.perf_counter()
        batch = self._ready.popleft().result()
        self.waited_s += time.perf_counter() - begin
        self._read_one()
        return batch

    def _read_one(self) -> None:
        step = next(self._steps, None)
        if step is not None:
            self._ready.append(self._thread.submit(self._read, step % len(self._batches)))

    def _read(self, index: int) -> Batch:
        batch = self._batches[index]
        return batch.pin_memory() if self._pin else batch


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

    def number(self, column: NDArray[np.int64], num_train: int) -> tuple[Array, int]:
        """Return the ids [N] int32 of a column of categories, and the rows of its table.

        In a vocabulary id 0 is a category that is rare in the train part, or unknown there. A
        missing category, -1, is a category like all others.
        """
        if self.hash_buckets is not None:
            hashed = splitmix64(column.astype(np.uint64)) % np.uint64(self.hash_buckets)
            return hashed.astype(np.int32), self.hash_buckets
        if self.as_they_are:
            largest = int(column.max(initial=0))
            if largest > LARGEST_ID:
                raise ValueError(f"has {largest:x}, which is no id; at most {LARGEST_ID:x} is one")
            return np.maximum(column, 0).astype(np.int32), largest + 1
        values, counts = np.unique(column[:num_train], return_counts=True)
        frequent = np.append(values[counts >= (self.min_count or 1)], np.iinfo(np.int64).max)
        places = np.searchsorted(frequent, column)
        ids = np.where(frequent[places] == column, places + 1, 0)
        return ids.astype(np.int32), len(frequent)


def prepare(rows: Rows, *, min_count: int, hash_buckets: int | None) -> Dataset:
    """Split raw rows in memory, number their categories and transform their integers.

    Args: rows: [N] ROW in time order.  The others are those of IdChoice; hashing goes before.
    """
    choice = IdChoice(min_count=min_count)
    if hash_buckets is not None:
        choice = IdChoice(hash_buckets=hash_buckets)
    num_train = num_train_of(len(rows))
    numbered = [choice.number(rows["categories"][:, k], num_train) for k in range(NUM_SPARSE)]
    ids = tuple(column[:, None] for column, _ in numbered)
    columns = Columns(rows["label"], transform_dense(rows["dense"]), ids)
    return Dataset(Samples.of_pieces([columns]), num_train, [size for _, size in numbered])


def transform_dense(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return log(1 + x) of the integers; a negative or missing one counts as 0."""
    return np.log1p(np.maximum(np.nan_to_num(raw, nan=0.0), 0.0))


def num_train_of(num_rows: int) -> int:
    """Return how many rows train: the first 6/7."""
    return num_rows * 6 // 7


def splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return numbers that look random, each the same for the same number."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
