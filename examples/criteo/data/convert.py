"""A TSV becomes a folder of arrays, once; `load` makes the folder of what it is given.

Knows: stages, what the folder holds. Does not know: lines of text, batches, the command line.
The text becomes pieces of a million rows: labels, dense features, raw categories. Then each column
is numbered. The folder gets its name when all is there: a run that was ended begins anew, in a
hidden folder beside it. Memory: about 40 bytes a row, as one column at a time is numbered.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from data.dataset import Dataset, IdChoice, num_train_of, transform_dense
from data.folder import MANIFEST, VERSION, is_preprocessed, load_folder, read_manifest
from data.tsv import NUM_SPARSE, Rows, list_files, read_file

logger = logging.getLogger(__name__)

DEFAULT_MIN_COUNT = 2
PIECE_ROWS = 1 << 20


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
    made = read_manifest(path).get("ids", {})
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

    All ranks of a machine may call it at once: one makes the folder, the others wait for it.

    Args:
        min_count, hash_buckets: how ids are made of a TSV's categories (default min_count 2).
        num_embeddings: rows of the tables, see `load_folder`.
    Raises: ValueError: no rows, or more than 1 % of a file's lines are malformed.
    """
    check_source(path, min_count, hash_buckets, num_embeddings)
    if is_preprocessed(path):
        return load_folder(path, num_embeddings)
    choice = IdChoice(min_count=min_count or DEFAULT_MIN_COUNT)
    if hash_buckets is not None:
        choice = IdChoice(hash_buckets=hash_buckets)
    out = default_folder(path, choice)
    convert(path, out, choice, replace=True)
    return load_folder(out)


def default_folder(source: Path, choice: IdChoice) -> Path:
    """Return the folder beside a source, or one for temporary files where none can be written."""
    source = source.resolve()
    name, parent = f"{source.name}.{choice}", source.parent
    if os.access(parent, os.W_OK) and parent.stat().st_mode & 0o222:
        return parent / name
    digest = hashlib.sha256(bytes(source)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"criteo_{os.getuid()}" / f"{name}.{digest}"


def convert(
    source: Path,
    out: Path,
    choice: IdChoice,
    *,
    jobs: int = 1,
    replace: bool = False,
    piece_rows: int = PIECE_ROWS,
) -> dict[str, Any]:
    """Make a folder of arrays of a TSV, unless it is there; return what dataset.json says.

    Args:
        source: a file or a folder of files.  out: the folder to make.
        jobs: number of processes that parse text.
        replace: whether what was made of other files, or in another way, goes.
        piece_rows: number of rows of an array, about.
    Raises: ValueError: no rows, a malformed file, or other files in the folder.
    """
    files = list_files(source)
    stats = [(file, file.stat()) for file in files]
    sources = [{"name": f.name, "nbytes": s.st_size, "mtime_ns": s.st_mtime_ns} for f, s in stats]
    identity = {"version": VERSION, "ids": choice.to_json(), "sources": sources}
    out.parent.mkdir(parents=True, exist_ok=True)
    with (out.parent / f".{out.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process at a time; others wait
        before = read_manifest(out)
        if before.items() >= identity.items():
            return before
        if before and not replace:
            raise ValueError(
                f"{out}: made of other files or in another way; delete it or take another"
            )
        if not before and out.exists() and any(out.iterdir()):
            raise ValueError(f"{out}: holds other files; take an empty folder")
        logger.warning("%s: made ready to train on, once, in %s", source, out)
        work = out.with_name(f".{out.name}.unfinished")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        made = _make(files, work, choice, jobs, piece_rows) | identity
        (work / ".gitignore").write_text("*\n")  # rows are not for publication
        (work / MANIFEST).write_text(json.dumps(made, indent=1) + "\n")
        shutil.rmtree(out, ignore_errors=True)
        work.rename(out)
    return made


def _make(
    files: list[Path], work: Path, choice: IdChoice, jobs: int, piece_rows: int
) -> dict[str, Any]:
    """Write all arrays; return what is to be said of them."""
    if jobs > 1:
        with get_context("spawn").Pool(jobs) as pool:
            rows = _read(files, work, piece_rows, pool.map, 2 * jobs)
    else:
        rows = _read(files, work, piece_rows)
    if not rows:
        raise ValueError(f"{', '.join(map(str, files))}: no rows")
    num_train = num_train_of(sum(rows))
    raw = [np.load(work / f"raw_{day}.npy", mmap_mode="r+") for day in range(len(rows))]
    missing = [np.load(work / f"missing_{day}.npy", mmap_mode="r") for day in range(len(rows))]
    sizes = []
    for k in tqdm(range(NUM_SPARSE), desc="number", unit=" columns", disable=None):
        column = np.concatenate([np.asarray(piece[k], np.int64) for piece in raw])
        column[np.concatenate([piece[k] for piece in missing])] = -1
        try:
            ids, size = choice.number(column, num_train)
        except ValueError as error:
            raise ValueError(f"C{k + 1} {error}") from error
        sizes.append(size)
        for piece, its_ids in zip(raw, np.split(ids, np.cumsum(rows)[:-1]), strict=True):
            piece[k] = its_ids
    for day, piece in enumerate(raw):
        np.save(work / f"day_{day}_sparse.npy", np.ascontiguousarray(piece.T).view(np.int32))
        for name in ("raw", "missing"):
            (work / f"{name}_{day}.npy").unlink()
    return {"num_rows": sum(rows), "num_train": num_train, "num_embeddings": sizes, "rows": rows}


def _read(
    files: list[Path], work: Path, piece_rows: int, run: Callable[..., Any] = map, at_once: int = 1
) -> list[int]:
    """Write labels, dense features and raw categories in pieces; return the rows of each."""
    lengths: list[int] = []
    with tqdm(desc="read", unit=" rows", unit_scale=True, disable=None) as bar:
        for rows in _pieces((r for f in files for r in read_file(f, run, at_once)), piece_rows):
            day = len(lengths)
            categories = np.ascontiguousarray(rows["categories"].T)
            for name, array in {
                f"day_{day}_labels": rows["label"].astype(np.int32)[:, None],
                f"day_{day}_dense": transform_dense(rows["dense"]),
                f"raw_{day}": categories.astype(np.uint32),
                f"missing_{day}": categories < 0,
            }.items():
                np.save(work / f"{name}.npy", array)
            lengths.append(len(rows))
            bar.update(len(rows))
    return lengths


def _pieces(chunks: Iterator[Rows], num_rows: int) -> Iterator[Rows]:
    """Join chunks of rows to pieces of about `num_rows`; only the last one may have fewer."""
    held: list[Rows] = []
    for chunk in chunks:
        held.append(chunk)
        if sum(map(len, held)) >= num_rows:
            yield np.concatenate(held)
            held.clear()
    if any(map(len, held)):
        yield np.concatenate(held)
