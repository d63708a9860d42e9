"""Split, category ids, dense features, and which rows a rank takes."""

import numpy as np
import pytest
import torch
from data.dataset import Batches, Dataset, prepare
from data.ids import CategoryCounts, HashBuckets, Vocabulary, transform_dense
from data.samples import FEATURES, Columns, Samples
from data.synthetic import generate
from data.tsv import MISSING_CATEGORY, NUM_SPARSE, ROW, Rows

RAW = generate(700, seed=5)


def rows_of(categories: list[int]) -> Rows:
    """Rows that have the same category in every column."""
    rows = np.zeros(len(categories), ROW)
    rows["categories"] = np.array(categories)[:, None]
    return rows


def samples_of(rows: Rows) -> Samples:
    """Raw rows as samples in pieces; the first dense feature is their place."""
    dense = rows["dense"].copy()
    dense[:, 0] = np.arange(len(rows))
    columns = Columns(rows["label"], dense, rows["categories"])
    return Samples([columns.cut(a, b) for a, b in ((0, 5), (5, 250), (250, 251), (251, 10_000))])


def slices(rows: Rows, world_size: int, *, batch_size: int, drop_last: bool) -> list[Batches]:
    samples = samples_of(rows)
    return [Batches(samples, batch_size, rank, world_size, drop_last) for rank in range(world_size)]


def ids_of(dataset: Dataset, feature: int = 0) -> list[int]:
    ids: list[int] = dataset.rows.ids_of(feature)[:, 0].tolist()
    return ids


def assert_equal(dataset: Dataset, other: Dataset) -> None:
    assert dataset.num_embeddings == other.num_embeddings
    assert dataset.num_train == other.num_train
    assert np.array_equal(dataset.rows.labels, other.rows.labels)
    assert dataset.rows.dense.tobytes() == other.rows.dense.tobytes()
    for k in range(NUM_SPARSE):
        assert np.array_equal(dataset.rows.ids_of(k), other.rows.ids_of(k))


def test_the_split_is_in_time_order() -> None:
    dataset = prepare(RAW.copy(), min_count=1, hash_buckets=None)
    assert (len(dataset.train), len(dataset.test)) == (600, 100)
    assert np.array_equal(dataset.train.labels, RAW["label"][:600])
    assert np.array_equal(dataset.test.labels, RAW["label"][600:])


def test_the_vocabulary_comes_from_the_train_part_only() -> None:
    dataset = prepare(rows_of([7, 7, 9, 9, 9, 7, 8]), min_count=1, hash_buckets=None)
    assert dataset.num_embeddings == [3] * NUM_SPARSE  # 7, 9 and out of vocabulary
    assert ids_of(dataset) == [1, 1, 2, 2, 2, 1, 0]


def test_rare_categories_are_out_of_vocabulary() -> None:
    dataset = prepare(rows_of([7, 7, 9, 9, 9, 5, 7]), min_count=3, hash_buckets=None)
    assert dataset.num_embeddings == [2] * NUM_SPARSE
    assert ids_of(dataset) == [0, 0, 1, 1, 1, 0, 0]


def test_missing_is_a_category_like_all_others() -> None:
    dataset = prepare(rows_of([MISSING_CATEGORY] * 6 + [4]), min_count=2, hash_buckets=None)
    assert ids_of(dataset) == [1] * 6 + [0]


def test_an_empty_vocabulary_knows_nothing() -> None:
    empty = Vocabulary(np.empty(0, np.uint32), has_missing=False)
    assert empty.num_ids == 1
    missing = np.array([False, False, True])
    assert empty.lookup(np.array([0, 3, 7], np.uint32), missing).tolist() == [0, 0, 0]


def test_a_vocabulary_finds_every_category_and_nothing_between() -> None:
    rng = np.random.default_rng(0)
    values = np.unique(rng.integers(0, 1 << 32, 3000, dtype=np.uint32) >> rng.integers(0, 32, 3000))
    categories = np.unique(np.r_[values, 0, 2**32 - 1]).astype(np.uint32)
    asked = np.unique(np.r_[categories, categories - np.uint32(1), categories + np.uint32(1)])
    ids = Vocabulary(categories, has_missing=True).lookup(asked, np.zeros(len(asked), np.bool_))
    numbers = dict(zip(categories.tolist(), range(2, 2 + len(categories)), strict=True))
    assert ids.tolist() == [numbers.get(value, 0) for value in asked.tolist()]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_counts_do_not_depend_on_the_pieces(limit: int) -> None:
    rng = np.random.default_rng(limit)
    categories = (rng.zipf(1.3, 4000) % 2000).astype(np.uint32)
    missing = rng.random(4000) < 0.01
    counts = CategoryCounts(limit)
    for piece in np.split(np.arange(4000), [0, 10, 700, 701, 2500, 3900]):
        counts.add(categories[piece], missing[piece])
    vocabulary = counts.vocabulary()
    values, numbers = np.unique(categories[~missing], return_counts=True)
    assert vocabulary.has_missing
    assert np.array_equal(vocabulary.categories, values[numbers >= limit])


def test_hashing_fills_its_buckets_evenly_and_always_alike() -> None:
    categories, missing = np.arange(100_000, dtype=np.uint32), np.arange(100_000) == 99_999
    ids = HashBuckets(100).lookup(categories, missing)
    assert np.array_equal(ids, HashBuckets(100).lookup(categories, missing))
    counts = np.bincount(ids, minlength=100)
    assert len(counts) == 100
    # 1000 +- 31.5 expected in each bucket; 6 standard deviations.
    assert np.abs(counts - 1000).max() < 190


def test_hashed_tables_have_the_size_asked_for() -> None:
    dataset = prepare(RAW.copy(), min_count=1, hash_buckets=50)
    assert dataset.num_embeddings == [50] * NUM_SPARSE
    for k in range(NUM_SPARSE):
        assert 0 <= min(ids_of(dataset, k)) <= max(ids_of(dataset, k)) < 50


def test_ids_fit_their_tables() -> None:
    dataset = prepare(RAW.copy(), min_count=2, hash_buckets=None)
    for k, num_ids in enumerate(dataset.num_embeddings):
        assert 0 <= min(ids_of(dataset, k)) <= max(ids_of(dataset, k)) < num_ids


def test_integers_become_logarithms() -> None:
    raw = np.array([[np.nan, -2, 0, 1, 99]], np.float32)
    expected = np.log(np.array([[1, 1, 1, 2, 100]], np.float32))
    np.testing.assert_allclose(transform_dense(raw), expected, rtol=1e-6)


def test_a_batch_has_one_id_a_feature_and_sample() -> None:
    dataset = prepare(RAW.copy(), min_count=1, hash_buckets=None)
    batch = Batches(dataset.train, 32, 0, 1, drop_last=True)[1]
    assert batch.sparse_features.keys() == FEATURES
    assert batch.sparse_features.stride() == 32
    assert batch.dense_features.shape == (32, 13)
    assert batch.dense_features.dtype == batch.labels.dtype == torch.float32
    for k, feature in enumerate(FEATURES):
        jagged = batch.sparse_features[feature]
        assert jagged.lengths().tolist() == [1] * 32
        assert jagged.values().tolist() == ids_of(dataset, k)[32:64]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("drop_last", [True, False], ids=["train", "eval"])
def test_ranks_partition_every_global_batch(world_size: int, drop_last: bool) -> None:
    rows = RAW
    ranks = slices(rows, world_size, batch_size=48, drop_last=drop_last)
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
    ranks = slices(RAW[:33], 4, batch_size=8, drop_last=False)
    assert [len(rank) for rank in ranks] == [2] * 4
    assert sorted(len(rank[1].labels) for rank in ranks) == [0, 0, 0, 1]
    with pytest.raises(IndexError):
        ranks[0][2]
