"""What --data names: a TSV, or a folder of preprocessed samples.

Knows: which of them it is, and which options fit it. Does not know: how either is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data.convert.ready import make_ready
from data.dataset import Dataset
from data.folder import is_preprocessed, load_folder, read_manifest
from data.ids import IdChoice
from data.tsv import list_files

DEFAULT_MIN_COUNT = 2


def check_source(
    path: Path,
    min_count: int | None = None,
    hash_buckets: int | None = None,
    num_embeddings: Sequence[int] | None = None,
) -> None:
    """Raise ValueError where there is nothing to read, or an option does not fit it."""
    if not is_preprocessed(path):
        list_files(path)
        if num_embeddings is not None:
            raise ValueError(f"num_embeddings: {path} is a TSV, of which ids are made")
        return
    manifest = read_manifest(path)
    made = {} if manifest is None else manifest["ids"]
    for name, value in (("min_count", min_count), ("hash_buckets", hash_buckets)):
        if value is not None and made.get(name) != value:
            how = ", ".join(f"{k} {v}" for k, v in made.items()) or "another program"
            raise ValueError(f"{name} {value}: the ids of {path} are made already, by {how}")


def load(
    path: Path,
    *,
    min_count: int | None = None,
    hash_buckets: int | None = None,
    num_embeddings: Sequence[int] | None = None,
) -> Dataset:
    """Map preprocessed samples; a TSV is preprocessed first, once, into a folder beside it.

    Args:
        min_count, hash_buckets: how ids are made of a TSV's categories (default min_count 2).
        num_embeddings: rows of the tables, see `load_folder`.
    Raises: ValueError: no rows, or more than 1 % of a file's lines are malformed.
    """
    check_source(path, min_count, hash_buckets, num_embeddings)
    if is_preprocessed(path):
        return load_folder(path, num_embeddings)
    if hash_buckets is not None:
        return load_folder(make_ready(path, IdChoice(hash_buckets=hash_buckets)))
    return load_folder(make_ready(path, IdChoice(min_count=min_count or DEFAULT_MIN_COUNT)))
