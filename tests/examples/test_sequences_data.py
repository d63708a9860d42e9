"""Sequences: files of ratings, the split in time order, batches of ranks, ranks among all items."""

import math

import numpy as np
import pytest
import torch

from examples.sequences.data import Batches, HeldOutBatches, Sequences, generate, read_movielens
from examples.sequences.trainer import metrics_of, ranks_of


@pytest.fixture(scope="module")
def sequences():
    return generate(40, 120, seed=3)


def items_of(sequences, user):
    first, last = sequences.offsets[user : user + 2]
    return sequences.items[first:last].tolist()


def bags_of(features, name):
    jagged = features[name]
    return [part.tolist() for part in jagged.values().split(jagged.lengths().tolist())]


def write_ratings(path, rated):
    """Write (user, item, time) as MovieLens does in a file of that name."""
    heads = {"ratings.csv": "userId,movieId,rating,timestamp\n"}
    separator = {"ratings.csv": ",", "ratings.dat": "::", "u.data": "\t"}[path.name]
    rows = (separator.join(map(str, (u, i, 3.5, t))) for u, i, t in rated)
    path.write_text(heads.get(path.name, "") + "".join(f"{row}\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["ratings.csv", "ratings.dat", "u.data"])
def test_ratings_come_in_time_order(tmp_path, name):
    random = np.random.default_rng(0)
    rated = [(u, int(i), 60 - t) for u in (7, 3) for t, i in enumerate(random.permutation(9))]
    rated += [(9, 0, 1), (9, 1, 2), (7, 500, 0)]  # too few of this user, and of this item
    sequences = read_movielens(write_ratings(tmp_path / name, [r for r in rated for _ in range(3)]))
    assert (sequences.num_users, sequences.num_items) == (3, 9)
    for number, user in enumerate((3, 7, 9)):
        expected = [i for u, i, _ in sorted(rated, key=lambda r: r[2]) if u == user and i != 500]
        assert items_of(sequences, number) == [i for i in expected for _ in range(3)]
    sequences = read_movielens(write_ratings(tmp_path / name, rated * 5))
    assert sequences.num_items == 10  # now the one item is frequent


def test_a_bad_file_is_named(tmp_path):
    path = tmp_path / "ratings.dat"
    path.write_text("1::2::3::4\n1::x::3::4\n")
    with pytest.raises(ValueError, match=r"ratings\.dat: expected user, item, rating, time.*x"):
        read_movielens(path)
    path.write_text("no ratings\n")
    with pytest.raises(ValueError, match=r"ratings\.dat, line 1: expected user::item"):
        read_movielens(path)
    path.write_text("1::2::3::4\n")
    with pytest.raises(ValueError, match=r"ratings\.dat: no user has 5 ratings"):
        read_movielens(path)


def test_the_last_two_items_are_held_out(sequences):
    for part, held_out in (("validation", 2), ("test", 1)):
        by_rank = [HeldOutBatches(sequences, 8, 10, part, rank, 3) for rank in range(3)]
        assert {len(tests) for tests in by_rank} == {1}
        for rank, tests in enumerate(by_rank):
            test = tests[0]
            users = range(rank, 40, 3)
            whole = [items_of(sequences, user) for user in users]
            assert test.targets.tolist() == [items[-held_out] for items in whole]
            histories = [items[:-held_out] for items in whole]
            assert bags_of(test.features, "history") == [items[-10:] for items in histories]
            assert test.features["candidates"].values().tolist() == list(range(120))
            seen = [(u, item) for u, items in enumerate(histories) for item in items]
            assert list(zip(*(column.tolist() for column in test.seen), strict=True)) == seen
    trained = [item for user in range(40) for item in items_of(sequences, user)[:-2]]
    assert sequences.popularity().tolist() == np.bincount(trained, minlength=120).tolist()


def test_an_epoch_has_each_user_once(sequences):
    ranks = [Batches(sequences, 5, 12, 4, seed=1, rank=rank, world_size=2) for rank in range(2)]
    epochs = []
    for epoch in range(2):
        batches = [b[epoch * len(b) + step] for b in ranks for step in range(len(b))]
        assert all(batch.stride() == 5 for batch in batches)
        assert all(len(batch["candidates"].values()) == 20 for batch in batches)
        epochs.append([bag for batch in batches for bag in bags_of(batch, "history")])
    expected = [items_of(sequences, user)[:-2][-13:] for user in range(40)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(expected)
    assert epochs[0] != epochs[1]


def test_synthetic_users_follow_a_chain():
    """What follows an item is no accident; equal seeds give equal users."""
    made = generate(500, 200, seed=5)
    again = generate(500, 200, seed=5)
    assert np.array_equal(made.items, again.items)
    assert not np.array_equal(made.items[:99], generate(500, 200, seed=6).items[:99])
    counts = np.zeros((200, 200))
    np.add.at(counts, (made.items[:-1], made.items[1:]), 1)
    expected = counts.sum(1, keepdims=True) * counts.sum(0) / counts.sum()
    rest = expected > 0
    chi_squared = ((counts - expected)[rest] ** 2 / expected[rest]).sum()
    assert chi_squared > 1.1 * rest.sum()  # about the number of cells, of independent items
    with pytest.raises(ValueError, match="items 99: must be 100 or more"):
        generate(5, 99, seed=0)


def test_metrics_against_brute_force(sequences):
    test = HeldOutBatches(sequences, 40, 10, "test", 0, 1)[0]
    random = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 60, (40, 120), generator=random).float()  # with equal ones
    scores[torch.arange(40), test.targets] += 30
    scores[5, test.targets[5]] = torch.nan
    scores[6, 7] = torch.nan
    ranks, losses = ranks_of(scores, test.targets, test.seen), torch.arange(40.0)
    gains, hits = [], []
    for user, target in enumerate(test.targets.tolist()):
        others = set(range(120)) - set(items_of(sequences, user)[:-1]) - {target}
        ahead = sum(not scores[user, item] < scores[user, target] for item in others)
        assert ranks[user] == 1 + ahead
        hits.append(ahead < 10)
        gains.append(1 / math.log2(ahead + 2) if ahead < 10 else 0)
    assert 5 < sum(hits) < 35
    metrics = metrics_of(ranks, losses)
    assert metrics["ndcg_10"] == pytest.approx(sum(gains) / 40)
    assert metrics["hit_rate_10"] == sum(hits) / 40
    assert (metrics["loss"], metrics["num_users"]) == (19.5, 40)


def test_a_user_s_items_are_those_asked_for():
    few = Sequences(np.arange(10), np.array([0, 4, 10]), 10)
    items, lengths = few.parts(np.array([1, 0]), leave_out=2, longest=3)
    assert (items.tolist(), lengths.tolist()) == ([5, 6, 7, 0, 1], [3, 2])
