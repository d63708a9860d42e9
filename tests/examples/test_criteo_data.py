"""Split, category ids, dense features, and which rows a rank takes."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from data.dataset import (
    FEATURES,
    Batches,
    HashBuckets,
    Vocabulary,
    load_tsv,
    prepare,
    transform_dense,
)
from data.synthetic import generate, write_tsv
from data.tsv import MISSING_CATEGORY, NUM_SPARSE, ROW, Rows

RAW = generate(700, seed=5)


def rows_of(categories: list[int]) -> Rows:
    """Rows that have the same category in every column."""
    rows = np.zeros(len(categories), ROW)
    rows["categories"] = np.array(categories)[:, None]
    return rows


def slices(rows: Rows, world_size: int, *, batch_size: int, drop_last: bool) -> list[Batches]:
    return [Batches(rows, batch_size, rank, world_size, drop_last) for rank in range(world_size)]


def test_the_split_is_in_time_order() -> None:
    dataset = prepare(RAW.copy(), min_count=1, hash_buckets=None)
    assert (len(dataset.train), len(dataset.test)) == (600, 100)
    assert np.array_equal(dataset.train["label"], RAW["label"][:600])
    assert np.array_equal(dataset.test["label"], RAW["label"][600:])


def test_the_vocabulary_comes_from_the_train_part_only() -> None:
    dataset = prepare(rows_of([7, 7, 9, 9, 9, 7, 8]), min_count=1, hash_buckets=None)
    assert dataset.num_embeddings == [3] * NUM_SPARSE  # 7, 9 and out of vocabulary
    assert dataset.rows["categories"][:, 0].tolist() == [1, 1, 2, 2, 2, 1, 0]


def test_rare_categories_are_out_of_vocabulary() -> None:
    dataset = prepare(rows_of([7, 7, 9, 9, 9, 5, 7]), min_count=3, hash_buckets=None)
    assert dataset.num_embeddings == [2] * NUM_SPARSE
    assert dataset.rows["categories"][:, 0].tolist() == [0, 0, 1, 1, 1, 0, 0]


def test_missing_is_a_category_like_all_others() -> None:
    dataset = prepare(rows_of([MISSING_CATEGORY] * 6 + [4]), min_count=2, hash_buckets=None)
    assert dataset.rows["categories"][:, 0].tolist() == [1] * 6 + [0]


def test_an_empty_vocabulary_knows_nothing() -> None:
    empty = Vocabulary(np.empty(0, np.int64))
    assert empty.num_ids == 1
    assert empty.lookup(np.array([0, 3, MISSING_CATEGORY])).tolist() == [0, 0, 0]


def test_hashing_fills_its_buckets_evenly_and_always_alike() -> None:
    categories = np.arange(-1, 99_999)
    ids = HashBuckets(100).lookup(categories)
    assert np.array_equal(ids, HashBuckets(100).lookup(categories))
    counts = np.bincount(ids, minlength=100)
    assert len(counts) == 100
    # 1000 +- 31.5 expected in each bucket; 6 standard deviations.
    assert np.abs(counts - 1000).max() < 190


def test_hashed_tables_have_the_size_asked_for() -> None:
    dataset = prepare(RAW.copy(), min_count=1, hash_buckets=50)
    assert dataset.num_embeddings == [50] * NUM_SPARSE
    assert dataset.rows["categories"].min() >= 0
    assert dataset.rows["categories"].max() < 50


def test_ids_fit_their_tables() -> None:
    dataset = prepare(RAW.copy(), min_count=2, hash_buckets=None)
    assert (dataset.rows["categories"].max(axis=0) < dataset.num_embeddings).all()
    assert dataset.rows["categories"].min() == 0


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
        assert jagged.values().tolist() == dataset.train["categories"][32:64, k].tolist()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("drop_last", [True, False], ids=["train", "eval"])
def test_ranks_partition_every_global_batch(world_size: int, drop_last: bool) -> None:
    rows = RAW.copy()
    rows["dense"][:, 0] = np.arange(len(rows))
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


@pytest.mark.parametrize("name", ["rows.tsv", "rows.tsv.gz", "rows.tsv.xz"])
def test_a_file_gives_the_same_data_set_as_its_rows(tmp_path: Path, name: str) -> None:
    write_tsv(RAW, tmp_path / name)
    read = load_tsv(tmp_path / name, min_count=2, hash_buckets=None)
    made = prepare(RAW.copy(), min_count=2, hash_buckets=None)
    assert read.num_embeddings == made.num_embeddings
    assert read.rows.tobytes() == made.rows.tobytes()


def test_a_folder_of_days_reads_like_one_file(tmp_path: Path) -> None:
    write_tsv(RAW[:300], tmp_path / "day_2")
    write_tsv(RAW[300:], tmp_path / "day_10.gz")
    read = load_tsv(tmp_path, min_count=1, hash_buckets=None)
    assert np.array_equal(read.rows["label"], RAW["label"])


def test_malformed_lines_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rows.tsv"
    write_tsv(RAW, path)
    path.write_text("what is this\n" + path.read_text())
    with caplog.at_level(logging.WARNING):
        assert len(load_tsv(path, min_count=1, hash_buckets=None).rows) == len(RAW)
    assert "1 of 701 lines malformed; line 1: 1 field parted by tabs" in caplog.text


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").touch()
    with pytest.raises(ValueError, match="no rows"):
        load_tsv(tmp_path / "rows.tsv", min_count=1, hash_buckets=None)
