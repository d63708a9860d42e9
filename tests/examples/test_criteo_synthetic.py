"""Synthetic rows have Criteo's shape and come back from the reader as they were made."""

from pathlib import Path

import numpy as np
import pytest
from data.synthetic import CARDINALITIES, POSITIVE_RATE, generate, write_tsv
from data.tsv import MISSING_CATEGORY, NUM_SPARSE, LineCount, read_file


def test_equal_seeds_give_equal_rows() -> None:
    assert generate(500, seed=3).tobytes() == generate(500, seed=3).tobytes()
    assert generate(500, seed=3).tobytes() != generate(500, seed=4).tobytes()


def test_rows_survive_the_file(tmp_path: Path) -> None:
    rows = generate(500, seed=0)
    path = tmp_path / "rows.tsv.xz"
    write_tsv(rows, path)
    read = np.concatenate(list(read_file(path, LineCount(path))))
    for name in ("label", "dense", "categories"):
        np.testing.assert_array_equal(read[name], rows[name])


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


def test_no_rows_is_an_error() -> None:
    with pytest.raises(ValueError, match="num_rows 0"):
        generate(0, seed=0)
