"""Synthetic sequences from a seed, with a planted structure that popularity does not know.

Knows: users, items, clusters. Does not know: files, models. The clusters of a user's items are a
Markov chain: each cluster has a few successors, and among these a user's taste chooses. Within a
cluster popularity is Zipf's. A user sees an item hardly ever twice, as with ratings.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from examples.sequences.data import Ints, Sequences

CLUSTER_SIZE = 50  # items
NUM_SUCCESSORS = 4
CHAINED = 0.8  # share of steps that follow the chain; the others go where a user's taste leads
TASTE = 1.5  # standard deviation of the logarithm of a user's weight of a cluster
REDRAWS = 8  # of an item that the user has seen
LENGTHS = (20, 80)


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
    successors = _weights_of_successors(random, num_clusters)
    tastes = np.exp(random.normal(0, TASTE, (num_users, num_clusters)))
    members = np.array_split(random.permutation(num_items), num_clusters)
    shortest, longest = LENGTHS
    lengths = random.integers(shortest, longest + 1, num_users)
    clusters = _draw(random, tastes)
    seen = np.zeros((num_users, num_items), bool)
    sequences = np.zeros((num_users, longest), np.int64)
    for step in range(longest):
        sequences[:, step] = _items(random, members, clusters, seen)
        seen[np.arange(num_users), sequences[:, step]] = True
        is_chained = random.random(num_users) < CHAINED
        weights = np.where(is_chained[:, None], tastes * successors[clusters], tastes)
        clusters = _draw(random, weights)
    is_kept = np.arange(longest) < lengths[:, None]
    return Sequences(sequences[is_kept], np.cumsum([0, *lengths]), num_items)


def _weights_of_successors(random: np.random.Generator, num_clusters: int) -> NDArray[np.float64]:
    """Return [C, C] of 0 and 1: which clusters may follow a cluster."""
    ranks = random.random((num_clusters, num_clusters)).argsort(axis=1).argsort(axis=1)
    return (ranks < NUM_SUCCESSORS).astype(np.float64)


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
