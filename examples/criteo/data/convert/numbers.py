"""Then: each column becomes a vocabulary, and each part gets its ids and its place in the folder.

Knows: arrays of parts, vocabularies. Does not know: text, other processes.
Memory: of a vocabulary, 24 bytes for each category that the train part has in this column; of a
part's ids, its rows, and the vocabularies of all columns, which are mapped.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np

from data.convert.files import Part, save_array, save_json
from data.ids import (
    LARGEST_ID,
    AsTheyAre,
    CategoryCounts,
    CategoryIds,
    HashBuckets,
    IdChoice,
    Ids,
    Vocabulary,
    missing_of,
)
from data.tsv import NUM_SPARSE


def make_vocabulary(work: Path, parts: list[tuple[Part, int]], k: int, min_count: int) -> None:
    """Count a column and write its vocabulary, unless that is there.

    Args: parts: the parts with rows that train, and how many of their rows do.
    """
    if _vocabulary_told(work, k).exists():
        return
    counts = CategoryCounts(min_count)
    for part, num_train in parts:
        raw = np.load(part.at(work, "raw.npy"), mmap_mode="r")[:, :num_train]
        counts.add(np.asarray(raw[k]), missing_of(raw, k))
    vocabulary = counts.vocabulary()
    save_array(work / f"vocabulary_{k}.npy", vocabulary.categories)
    save_json(_vocabulary_told(work, k), {"has_missing": vocabulary.has_missing})


def make_ids(
    work: Path, out: Path, part: Part, day: int, choice: IdChoice, sizes: list[int]
) -> None:
    """Write a part's ids and move its other arrays to their place, unless that is done."""
    raw_file = part.at(work, "raw.npy")
    if not raw_file.exists():
        return
    raw = np.load(raw_file)
    ids: Ids = np.empty((raw.shape[1], NUM_SPARSE), np.int32)
    for k in range(NUM_SPARSE):
        ids[:, k] = column_ids(work, k, choice, sizes).lookup(raw[k], missing_of(raw, k))
    save_array(out / f"day_{day}_sparse.npy", ids)
    for name in ("dense.npy", "labels.npy"):
        if part.at(work, name).exists():
            part.at(work, name).replace(out / f"day_{day}_{name}")
    raw_file.unlink()


def column_ids(work: Path, k: int, choice: IdChoice, largest: list[int]) -> CategoryIds:
    """Return what turns categories of a column into ids. largest: [26], the largest categories."""
    if choice.hash_buckets is not None:
        return HashBuckets(choice.hash_buckets)
    return AsTheyAre(largest[k] + 1) if choice.as_they_are else _vocabulary(work, k)


def check_as_ids(largest: list[int]) -> None:
    """Raise ValueError if a category is too large to be an id."""
    for k, value in enumerate(largest):
        if value > LARGEST_ID:
            raise ValueError(
                f"C{k + 1} has {value:x}, which is no id; expected at most {LARGEST_ID:x}"
            )


@lru_cache(maxsize=NUM_SPARSE)
def _vocabulary(work: Path, k: int) -> Vocabulary:
    categories = np.load(work / f"vocabulary_{k}.npy", mmap_mode="r")
    told = json.loads(_vocabulary_told(work, k).read_text())
    return Vocabulary(categories.view(np.ndarray), told["has_missing"])


def _vocabulary_told(work: Path, k: int) -> Path:
    return work / f"vocabulary_{k}.json"
