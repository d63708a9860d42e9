"""Samples in columns, in memory or mapped from files, and the batch that a slice of them is.

Knows: arrays, KeyedJaggedTensor. Does not know: files, ranks, how ids are made.
A slice copies nothing; what a batch takes is copied once, to the dtypes of a training.
Shapes: N samples, B of a batch, 26 features, P ids that a sample has of a feature.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec.datasets.utils import Batch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from data.tsv import NUM_SPARSE, Ints

FEATURES = [f"C{k}" for k in range(1, NUM_SPARSE + 1)]
Array = NDArray[Any]


@dataclass(frozen=True)
class Columns:
    """N samples whose columns lie in one place each."""

    labels: Array  # [N], 0 or 1
    dense: NDArray[np.float32]  # [N, 13]
    ids: Array | tuple[Array, ...]  # [N, 26], or [N, P] of each feature where P is not always 1
    modulo: Ints | None = None  # [26], what ids are taken modulo in a batch

    def __len__(self) -> int:
        return len(self.labels)

    def cut(self, start: int, stop: int) -> Columns:
        """Return samples start to stop - 1."""
        ids = self.ids
        part = tuple(i[start:stop] for i in ids) if isinstance(ids, tuple) else ids[start:stop]
        return replace(self, labels=self.labels[start:stop], dense=self.dense[start:stop], ids=part)

    @property
    def pooling(self) -> list[int]:
        """[26] how many ids each sample has of a feature."""
        if isinstance(self.ids, tuple):
            return [ids.shape[1] for ids in self.ids]
        return [1] * NUM_SPARSE

    def blocks(self) -> tuple[Array, ...]:
        """Return [N, 26] in a tuple, or [N, P] of each feature."""
        return self.ids if isinstance(self.ids, tuple) else (self.ids,)

    def values(self) -> Ints:
        """Return a copy of all ids: those of the first feature, sample by sample, and so on."""
        blocks = self.blocks()
        if len(blocks) == 1:
            values = np.array(blocks[0].T, dtype=np.int64, order="C").reshape(-1)
        else:
            values = np.concatenate([ids.reshape(-1) for ids in blocks], dtype=np.int64)
        if self.modulo is not None:
            values %= np.repeat(self.modulo, np.array(self.pooling) * len(self))
        return values

    def ids_of(self, feature: int) -> Array:
        """[N, P] the ids of a feature."""
        if isinstance(self.ids, tuple):
            return self.ids[feature]
        return self.ids[:, feature : feature + 1]


class Samples:
    """Samples in time order, in one or more pieces, such as mapped files.

    Args: pieces: at least one; all have the same pooling.
    """

    def __init__(self, pieces: Sequence[Columns]) -> None:
        self.pieces = tuple(pieces)
        self._ends = list(accumulate(map(len, self.pieces)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, part: slice) -> Samples:
        """Return the samples of a slice without a step; nothing is read or copied."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"step {step}: samples are taken one after another")
        first = min(bisect_right(self._ends, start), len(self.pieces) - 1)
        last = max(bisect_left(self._ends, stop), first)
        begins = [self._ends[k] - len(self.pieces[k]) for k in range(first, last + 1)]
        cuts = zip(self.pieces[first : last + 1], begins, strict=True)
        return Samples([p.cut(max(start - b, 0), max(stop - b, 0)) for p, b in cuts])

    @property
    def pooling(self) -> list[int]:
        """[26] how many ids each sample has of a feature."""
        return self.pieces[0].pooling

    @property
    def labels(self) -> Array:
        """[N] 0 or 1."""
        return _joined([piece.labels for piece in self.pieces])

    @property
    def dense(self) -> NDArray[np.float32]:
        """[N, 13] the transformed integers."""
        return _joined([piece.dense for piece in self.pieces])

    def ids_of(self, feature: int) -> Array:
        """[N, P] the ids of a feature."""
        return _joined([piece.ids_of(feature) for piece in self.pieces])

    def replaced(self, feature: int, ids: Array) -> Samples:
        """Return the samples with other ids [N, P] of a feature, in memory."""
        pieces, at = [], 0
        for piece in self.pieces:
            more = ids[at : at + len(piece)]
            if isinstance(piece.ids, tuple):
                changed: Any = (*piece.ids[:feature], more, *piece.ids[feature + 1 :])
            else:
                changed = np.array(piece.ids)
                changed[:, feature] = more[:, 0]
            pieces.append(replace(piece, ids=changed))
            at += len(piece)
        return Samples(pieces)

    def to_batch(self) -> Batch:
        """Return labels [B] float32, dense [B, 13] float32, and the ids of C1..C26, int64."""
        columns = self.pieces[0] if len(self.pieces) == 1 else _concatenated(self.pieces)
        lengths = np.repeat(np.array(columns.pooling, np.int32), len(columns))
        sparse = KeyedJaggedTensor(
            keys=FEATURES,
            values=torch.from_numpy(columns.values()),
            lengths=torch.from_numpy(lengths),
            stride=len(columns),
        )
        dense = torch.from_numpy(np.array(columns.dense, np.float32))
        return Batch(dense, sparse, torch.from_numpy(np.array(columns.labels, np.float32)))


def _concatenated(pieces: Sequence[Columns]) -> Columns:
    blocks = [_joined(arrays) for arrays in zip(*(p.blocks() for p in pieces), strict=True)]
    labels, dense = _joined([p.labels for p in pieces]), _joined([p.dense for p in pieces])
    ids = blocks[0] if len(blocks) == 1 else tuple(blocks)
    return Columns(labels, dense, ids, pieces[0].modulo)


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
