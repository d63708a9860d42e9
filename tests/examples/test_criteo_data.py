"""Rows of the Criteo example in memory: made, split, numbered, cut into batches, read ahead."""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from data.dataset import (
    FEATURES,
    Batches,
    BatchReader,
    Columns,
    Dataset,
    IdChoice,
    Samples,
    prepare,
    transform_dense,
)
from data.multi_hot import POOLING, with_bags
from data.synthetic import CARDINALITIES, POSITIVE_RATE, generate
from data.tsv import MISSING_CATEGORY, NUM_SPARSE, ROW, Rows
from torchrec.datasets.utils import Batch

RAW = generate(700, seed=5)
DATASET = prepare(generate(3000, seed=5), min_count=2, hash_buckets=None)
BATCHES = Batches(DATASET.rows[:80], 10, rank=1, world_size=2, drop_last=True)  # 4 of them


def rows_of(categories: list[int]) -> Rows:
    """Rows that have the same category in every column."""
    rows = np.zeros(len(categories), ROW)
    rows["categories"] = np.array(categories)[:, None]
    return rows


def pieces_of(samples: Samples) -> list[Columns]:
    """Cut samples into pieces; the first dense feature is their place."""
    (whole,) = samples.pieces.columns
    dense = whole.dense.copy()
    dense[:, 0] = np.arange(len(whole))
    cuts = ((0, 5), (5, 250), (250, 251), (251, 10_000))
    return [Columns(whole.labels, dense, whole.ids).cut(a, b) for a, b in cuts]


def ids_of(dataset: Dataset, feature: int = 0) -> list[int]:
    ids: list[int] = dataset.rows.gather().ids[feature][:, 0].tolist()
    return ids


# Rows and ids.


def test_the_shape_is_that_of_criteo() -> None:
    rows = generate(20_000, seed=0)
    # A binomial of 20,000 has a standard deviation of .003.
    assert abs(rows["label"].mean() - POSITIVE_RATE) < 0.015
    assert np.nanmin(rows["dense"]) == -2
    assert np.isnan(rows["dense"]).any(axis=0).all()
    assert (rows["categories"] == MISSING_CATEGORY).mean(axis=0).max() > 0.5
    for k in range(NUM_SPARSE):
        values, counts = np.unique(rows["categories"][:, k], return_counts=True)
        assert len(values) <= CARDINALITIES[k] + 1
        assert counts.max() > 3 * counts.mean() or len(values) < 10  # skewed
    assert generate(500, seed=3).tobytes() == generate(500, seed=3).tobytes()
    assert generate(500, seed=3).tobytes() != generate(500, seed=4).tobytes()
    with pytest.raises(ValueError, match="num_rows 0"):
        generate(0, seed=0)


@pytest.mark.parametrize(
    ("categories", "min_count", "ids", "size"),
    [
        ([7, 7, 9, 9, 9, 7, 8], 1, [1, 1, 2, 2, 2, 1, 0], 3),  # 8 is in the test part alone
        ([7, 7, 9, 9, 9, 5, 7], 3, [0, 0, 1, 1, 1, 0, 0], 2),  # 7 is rare in the train part
        ([-1] * 6 + [4], 2, [1] * 6 + [0], 2),  # missing is a category like all others
        ([1, 2, 3, 4, 5, 6, 7], 2, [0] * 7, 1),  # an empty vocabulary
        ([0, 2**32 - 1, 0, 2**32 - 1, 5, -1, 1], 2, [1, 2, 1, 2, 0, 0, 0], 3),
    ],
)
def test_a_vocabulary_is_that_of_the_train_part(
    categories: list[int], min_count: int, ids: list[int], size: int
) -> None:
    dataset = prepare(rows_of(categories), min_count=min_count, hash_buckets=None)
    assert dataset.num_embeddings == [size] * NUM_SPARSE
    assert ids_of(dataset) == ids
    assert (len(dataset.train), len(dataset.test)) == (6, 1)


def test_hashing_fills_its_buckets_evenly_and_always_alike() -> None:
    column = np.append(np.arange(99_999), -1)
    ids, size = IdChoice(hash_buckets=100).number(column, 0)
    assert size == 100
    assert np.array_equal(ids, IdChoice(hash_buckets=100).number(column, 5)[0])
    counts = np.bincount(ids, minlength=100)
    # 1000 +- 31.5 expected in each bucket; 6 standard deviations.
    assert np.abs(counts - 1000).max() < 190


@pytest.mark.parametrize("wanted", [{}, {"min_count": 1, "hash_buckets": 2}, {"min_count": 0}])
def test_ids_are_made_in_one_way(wanted: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"ids: expected one of|min_count 0: expected 1 to"):
        IdChoice(**wanted)


def test_integers_become_logarithms() -> None:
    raw = np.array([[np.nan, -2, 0, 1, 99]], np.float32)
    expected = np.log(np.array([[1, 1, 1, 2, 100]], np.float32))
    np.testing.assert_allclose(transform_dense(raw), expected, rtol=1e-6)


# Batches.


def test_a_batch_has_one_id_a_feature_and_sample() -> None:
    dataset = prepare(RAW.copy(), min_count=1, hash_buckets=None)
    batch = Batches(dataset.train, 32, 0, 1, drop_last=True)[1]
    assert batch.sparse_features.keys() == FEATURES
    assert batch.sparse_features.stride() == 32
    assert batch.dense_features.shape == (32, 13)
    assert batch.dense_features.dtype == batch.labels.dtype == torch.float32
    assert batch.labels.tolist() == RAW["label"][32:64].tolist()
    for k, feature in enumerate(FEATURES):
        jagged = batch.sparse_features[feature]
        assert jagged.lengths().tolist() == [1] * 32
        assert jagged.values().tolist() == ids_of(dataset, k)[32:64]
        assert 0 <= min(ids_of(dataset, k)) <= max(ids_of(dataset, k)) < dataset.num_embeddings[k]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("drop_last", [True, False], ids=["train", "eval"])
def test_ranks_partition_every_global_batch(world_size: int, drop_last: bool) -> None:
    rows = Samples.of_pieces(pieces_of(DATASET.rows[:700]))[:700]
    ranks = [Batches(rows, 48, rank, world_size, drop_last) for rank in range(world_size)]
    seen = [
        int(row)
        for index in range(len(ranks[0]))
        for rank in ranks
        for row in rank[index].dense_features[:, 0]
    ]
    size = 48 * world_size
    assert seen == list(range(len(rows) // size * size if drop_last else len(rows)))
    if drop_last:
        assert all(len(rank[index].labels) == 48 for rank in ranks for index in range(len(rank)))


def test_a_rank_may_have_none_of_the_last_rows() -> None:
    ranks = [Batches(DATASET.rows[:33], 8, rank, 4, drop_last=False) for rank in range(4)]
    assert [len(rank) for rank in ranks] == [2] * 4
    assert sorted(len(rank[1].labels) for rank in ranks) == [0, 0, 0, 1]
    with pytest.raises(IndexError):
        ranks[0][2]


# Bags of several ids.


@pytest.mark.parametrize("fixed_share", [0.0, 0.4, 1.0])
def test_bags_begin_with_the_samples_id_and_repeat_as_asked(fixed_share: float) -> None:
    made = with_bags(DATASET, fixed_share=fixed_share, seed=3)
    assert made.pooling == [*POOLING]
    single, several = (d.rows[:1000].gather().ids for d in (DATASET, made))
    for feature in (0, 5, 20):
        bags = several[feature]
        assert bags.shape == (1000, POOLING[feature])
        assert np.array_equal(bags[:, :1], single[feature])
        assert 0 <= bags.min() <= bags.max() < DATASET.num_embeddings[feature]
    num_bags, num_ids = (len(np.unique(ids[20], axis=0)) for ids in (several, single))
    if fixed_share == 1:
        assert num_bags == num_ids
    elif fixed_share == 0:
        assert num_bags == 1000
    else:  # 600 bags drawn anew, +- 5 standard deviations, and one for each id of the others
        assert 522 < num_bags < 678 + num_ids


def test_a_bag_does_not_depend_on_the_batch_or_the_piece() -> None:
    made = with_bags(DATASET, fixed_share=0.5)
    cut = Dataset(Samples.of_pieces(pieces_of(DATASET.rows)), 2571, DATASET.num_embeddings)
    whole = made.rows[:384].to_batch().sparse_features
    for world_size, dataset in ((1, with_bags(cut, fixed_share=0.5)), (2, made)):
        parts = [
            Batches(dataset.train, 384 // world_size, rank, world_size, drop_last=True)[0]
            for rank in range(world_size)
        ]
        for k, feature in enumerate(FEATURES):
            values = np.concatenate([p.sparse_features[feature].values() for p in parts])
            assert values.tolist() == whole[feature].values().tolist()
            lengths = parts[0].sparse_features[feature].lengths()
            assert lengths.tolist() == [POOLING[k]] * (384 // world_size)


def test_bags_are_not_made_of_bags() -> None:
    with pytest.raises(ValueError, match="have several ids of a feature already"):
        with_bags(with_bags(DATASET))
    with pytest.raises(ValueError, match=r"multi_hot 1.5: expected a share"):
        with_bags(DATASET, fixed_share=1.5)


# Batches that are read ahead.


class Watched(Sequence[Batch]):
    """Batches that call `before` with the index of each batch before it is read."""

    def __init__(self, before: Callable[[int], object]) -> None:
        self.before = before

    def __len__(self) -> int:
        return len(BATCHES)

    def __getitem__(self, index: int) -> Batch:  # type: ignore[override]
        self.before(index)
        return BATCHES[index]


@pytest.mark.parametrize(("first", "last"), [(0, 4), (3, 10), (2, 2)])
def test_steps_take_the_batches_of_their_epoch(first: int, last: int) -> None:
    with BatchReader(BATCHES, first, last) as reader:
        batches = list(reader)
    for step, batch in zip(range(first, last), batches, strict=True):
        expected = BATCHES[step % 4]
        assert torch.equal(batch.labels, expected.labels)
        assert torch.equal(batch.sparse_features.values(), expected.sparse_features.values())


def test_no_more_batches_are_read_than_asked_for() -> None:
    read = threading.Semaphore(0)
    with BatchReader(Watched(lambda index: read.release()), 1, 4, ahead=2) as reader:
        assert read.acquire(timeout=5)
        assert read.acquire(timeout=5)
        assert not read.acquire(timeout=0.05)
        next(reader)
        assert read.acquire(timeout=5)


def test_waits_are_counted_and_an_error_comes_with_its_batch() -> None:
    def slow_then_gone(index: int) -> None:
        time.sleep(0.1 if index == 0 else 0)
        if index == 2:
            raise OSError("disk gone")

    with BatchReader(Watched(slow_then_gone), 0, 4) as reader:
        next(reader)
        slow = reader.waited_s
        time.sleep(0.05)
        next(reader)
        assert 0.05 < slow <= reader.waited_s < slow + 0.04
        with pytest.raises(OSError, match="disk gone"):
            next(reader)
