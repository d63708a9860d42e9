"""Sequences of items: MovieLens files, or synthetic ones, and the batches of each rank.

Knows: files, users, time order. Does not know: models, ranks that run. Of each user the last item
is the test's, the one before the validation's, all others train (leave-one-out, as in SASRec).
Synthetic users have a planted structure that popularity does not know: the clusters of a user's
items are a Markov chain; each cluster has a few successors, and among these a user's taste chooses.
Within a cluster popularity is Zipf's. A user sees an item hardly ever twice, as with ratings.
Shapes: U users, I items, C clusters, N interactions of all users.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec import KeyedJaggedTensor

Ints = NDArray[np.int64]
MIN_COUNT = 5  # users and items with fewer interactions are left out
PLACES = {"validation": 2, "test": 1}  # place of the item to predict, from a user's end
CLUSTER_SIZE = 50  # items
NUM_SUCCESSORS = 4
CHAINED = 0.8  # share of steps that follow the chain; the others go where a user's taste leads
TASTE = 1.5  # standard deviation of the logarithm of a user's weight of a cluster
REDRAWS = 8  # of an item that the user has seen
SHORTEST, LONGEST = 20, 80  # items of a user


@dataclass(frozen=True)
class Sequences:
    """Items of each user in time order.

    Args:
        items: [N] int64, items of all users, one user after the other; 0 to num_items - 1.
        offsets: [U + 1] int64, where each user's items begin.
        num_items: number of items.
    """

    items: Ints
    offsets: Ints
    num_items: int

    @property
    def num_users(self) -> int:
        return len(self.offsets) - 1

    def parts(self, users: Ints, leave_out: int, longest: int) -> tuple[Ints, Ints]:
        """Return the last items of some users, one user after the other, and how many each has.

        Args:
            leave_out: number of items at the end of each that are not looked at.
            longest: most items of a user.
        """
        end = self.offsets[users + 1] - leave_out
        lengths = np.minimum(end - self.offsets[users], longest)
        skipped = np.repeat(end - np.cumsum(lengths), lengths)
        return self.items[skipped + np.arange(lengths.sum())], lengths

    def popularity(self) -> Ints:
        """Return [I], how often each item is trained on."""
        users = np.arange(self.num_users)
        items, _ = self.parts(users, max(PLACES.values()), len(self.items))
        return np.bincount(items, minlength=self.num_items)


def read_movielens(path: Path) -> Sequences:
    """Read ratings.dat (1M, 10M), ratings.csv (20M, 25M) or u.data (100K), in time order.

    Raises: ValueError: naming the file and the line that is no rating, or too few ratings.
    """
    with path.open(encoding="latin-1") as file:
        first = file.readline()
        separator = next((s for s in ("::", ",", "\t") if s in first), None)
        if separator is None:
            raise ValueError(
                f"{path}, line 1: expected user::item::rating::time, got {first!r:.60}"
            )
        skipped = int(not first[0].isdigit())  # a header
        lines = (line.replace("::", "\t") for line in file) if separator == "::" else file
        file.seek(0)
        how: Any = {"delimiter": separator.replace("::", "\t"), "usecols": (0, 1, 3)}
        try:
            rated = np.loadtxt(lines, np.int64, skiprows=skipped, ndmin=2, comments=None, **how)
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path}: expected user, item, rating, time: {error}") from None
    users, items, times = rated.T
    kept = _is_frequent(items)
    kept[kept] = _is_frequent(users[kept])
    if not kept.any():
        raise ValueError(f"{path}: no user has {MIN_COUNT} ratings of items with {MIN_COUNT}")
    users, items, times = users[kept], items[kept], times[kept]
    order = np.lexsort((times, users))  # stable: ratings of one second keep the file's order
    names, items = np.unique(items, return_inverse=True)
    counts = np.unique(users, return_counts=True)[1]
    return Sequences(items[order], np.cumsum([0, *counts]), len(names))


def _is_frequent(values: Ints) -> NDArray[np.bool_]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return counts[inverse] >= MIN_COUNT


def generate(num_users: int, num_items: int, *, seed: int) -> Sequences:
    """Return sequences of 20 to 80 items; equal arguments give equal ones.

    Raises: ValueError: no users, or fewer items than two clusters have.
    """
    if num_users < 1:
        raise ValueError(f"users {num_users}: must be positive")
    if num_items < 2 * CLUSTER_SIZE:
        raise ValueError(f"items {num_items}: must be {2 * CLUSTER_SIZE} or more")
    random = np.random.default_rng(seed)
    num_clusters = num_items // CLUSTER_SIZE
    order = random.random((num_clusters, num_clusters)).argsort(axis=1).argsort(axis=1)
    successors = (order < NUM_SUCCESSORS).astype(np.float64)  # [C, C], which may follow which
    tastes = np.exp(random.normal(0, TASTE, (num_users, num_clusters)))
    members = np.array_split(random.permutation(num_items), num_clusters)
    lengths = random.integers(SHORTEST, LONGEST + 1, num_users)
    clusters = _draw(random, tastes)
    seen = np.zeros((num_users, num_items), bool)
    sequences = np.zeros((num_users, LONGEST), np.int64)
    for step in range(LONGEST):
        sequences[:, step] = _items(random, members, clusters, seen)
        seen[np.arange(num_users), sequences[:, step]] = True
        is_chained = random.random(num_users) < CHAINED
        weights = np.where(is_chained[:, None], tastes * successors[clusters], tastes)
        clusters = _draw(random, weights)
    is_kept = np.arange(LONGEST) < lengths[:, None]
    return Sequences(sequences[is_kept], np.cumsum([0, *lengths]), num_items)


def _draw(random: np.random.Generator, weights: NDArray[np.float64]) -> Ints:
    """Return [U], a column of each row of [U, C] with chances in proportion to the weights."""
    sums = weights.cumsum(axis=1)
    return (sums < random.random((len(weights), 1)) * sums[:, -1:]).sum(axis=1)


def _items(
    random: np.random.Generator, members: list[Ints], clusters: Ints, seen: NDArray[np.bool_]
) -> Ints:
    """Return [U], an item of each user's cluster that the user has not seen, if draws find one."""
    sizes = np.array([len(cluster) for cluster in members])
    table = np.zeros((len(members), sizes.max()), np.int64)
    for row, cluster in zip(table, members, strict=True):
        row[: len(cluster)] = cluster
    ranks = np.arange(1, sizes.max() + 1)
    popularity = np.where(ranks <= sizes[:, None], 1 / ranks, 0)
    users = np.arange(len(clusters))
    items = table[clusters, _draw(random, popularity[clusters])]
    for _ in range(REDRAWS):
        again = users[seen[users, items]]
        items[again] = table[clusters[again], _draw(random, popularity[clusters[again]])]
    return items


@dataclass(frozen=True)
class Batches:
    """Training batches of one rank by step. The users of an epoch are in an order of its own.

    Args:
        batch_size: number of users of each rank.
        length: number of items to look at, at most; one more is the last to predict.
        negatives: number of random items for each user, which all users of the rank's batch share.
    """

    sequences: Sequences
    batch_size: int
    length: int
    negatives: int
    seed: int
    rank: int
    world_size: int

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return self.sequences.num_users // (self.batch_size * self.world_size)

    def __getitem__(self, step: int) -> KeyedJaggedTensor:
        epoch, index = divmod(step, len(self))
        first = (index * self.world_size + self.rank) * self.batch_size
        users = _order(self.sequences.num_users, self.seed, epoch)[first : first + self.batch_size]
        history = self.sequences.parts(users, max(PLACES.values()), self.length + 1)
        random = np.random.default_rng((self.seed, step, self.rank))
        size = self.batch_size * self.negatives
        return to_features(*history, random.integers(self.sequences.num_items, size=size))


@lru_cache(maxsize=2)
def _order(num_users: int, seed: int, epoch: int) -> Ints:
    return np.random.default_rng((seed, epoch)).permutation(num_users)


@dataclass(frozen=True)
class HeldOut:
    """Users to predict the next item of, among all items.

    Args:
        features: histories of the users, and all items as candidates.
        targets: [B] int64, the items to predict.
        seen: users (0 to B - 1) and items of all earlier interactions.
    """

    features: KeyedJaggedTensor
    targets: Tensor
    seen: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class HeldOutBatches:
    """Batches of the users of one rank, as many on each rank, none of them empty.

    Args: part: "validation" or "test".  Others: those of Batches.
    """

    sequences: Sequences
    batch_size: int
    length: int
    part: str
    rank: int
    world_size: int

    def __len__(self) -> int:
        return max(1, self.sequences.num_users // (self.batch_size * self.world_size))

    def __getitem__(self, index: int) -> HeldOut:
        users = np.arange(self.rank, self.sequences.num_users, self.world_size)
        users, held_out = np.array_split(users, len(self))[index], PLACES[self.part]
        history = self.sequences.parts(users, held_out, self.length)
        seen, counts = self.sequences.parts(users, held_out, len(self.sequences.items))
        rows = np.repeat(np.arange(len(users)), counts)
        targets = self.sequences.items[self.sequences.offsets[users + 1] - held_out]
        features = to_features(*history, np.arange(self.sequences.num_items))
        return HeldOut(
            features, torch.from_numpy(targets), (torch.from_numpy(rows), torch.from_numpy(seen))
        )


def to_features(history: Ints, lengths: Ints, candidates: Ints) -> KeyedJaggedTensor:
    """Return the features `history` and `candidates`; the latter are spread over the samples."""
    spread = np.diff(np.linspace(0, len(candidates), len(lengths) + 1).astype(np.int64))
    return KeyedJaggedTensor(
        ["history", "candidates"],
        torch.from_numpy(np.concatenate([history, candidates])),
        lengths=torch.from_numpy(np.concatenate([lengths, spread])),
    )
