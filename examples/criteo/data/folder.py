"""A folder of preprocessed samples, mapped: what preprocess.py writes, or what TorchRec has.

Knows: files and their arrays, dataset.json. Does not know: TSV, ranks, batches.
day_N_dense.npy [N, 13] float32, day_N_labels.npy [N] or [N, 1], and day_N_sparse.npy [N, 26], or,
with several ids a sample, day_N_sparse_multi_hot.npz of MLPerf's DLRMv2: "0" to "25", each [N, P].
Without dataset.json 6/7 of the samples train, and the tables are as large as the largest id needs.
Nothing is read but what a batch takes.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from data.dataset import LARGEST_ID, Array, Columns, Dataset, Samples, num_train_of
from data.tsv import NUM_DENSE, NUM_SPARSE

MANIFEST, VERSION = "dataset.json", 1
ONE_HOT, MULTI_HOT = "sparse.npy", "sparse_multi_hot.npz"
_DAY = re.compile(r"day_(\d+)_dense\.npy")
_CHUNK_ROWS = 1 << 20


def is_preprocessed(path: Path) -> bool:
    """Return whether this is a folder of arrays."""
    return path.is_dir() and ((path / MANIFEST).exists() or bool(list_days(path)))


def list_days(folder: Path) -> list[int]:
    """Return the numbers N of the files day_N_dense.npy, ascending."""
    matches = (_DAY.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return what dataset.json says; nothing if there is none.

    Raises: ValueError: it is damaged, or of another version.
    """
    file = folder / MANIFEST
    if not file.exists():
        return {}
    try:
        manifest: dict[str, Any] = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    if manifest.get("version") != VERSION:
        raise ValueError(f"{file}: version {manifest.get('version')}, expected {VERSION}")
    return manifest


def load_folder(folder: Path, num_embeddings: Sequence[int] | None = None) -> Dataset:
    """Map a folder of preprocessed samples.

    Args: num_embeddings: rows of the 26 tables, or one number for all; ids are then taken modulo
        these, as TorchRec's reader does. Only where there is no dataset.json.
    Raises: ValueError: a file is missing, damaged or of another shape; the message names it.
    """
    manifest, days = read_manifest(folder), list_days(folder)
    if not days:
        raise ValueError(f"{folder}: no files day_N_dense.npy")
    pieces = [_open_day(folder, day) for day in days]
    rows = [len(piece) for piece in pieces]
    if len({tuple(each.shape[1] for each in piece.ids) for piece in pieces}) > 1:
        raise ValueError(f"{folder}: days have different ids a sample")
    if manifest and num_embeddings is not None:
        raise ValueError(f"num_embeddings: {folder / MANIFEST} tells them")
    if manifest and rows != manifest["rows"]:
        raise ValueError(f"{folder}: files of {rows} rows, {MANIFEST} has {manifest['rows']}")
    samples = Samples.of_pieces(pieces)
    if manifest:
        return Dataset(samples, manifest["num_train"], manifest["num_embeddings"])
    if num_embeddings is None:
        return Dataset(samples, num_train_of(len(samples)), scan_sizes(folder, pieces))
    sizes = [*num_embeddings] * (NUM_SPARSE if len(num_embeddings) == 1 else 1)
    if len(sizes) != NUM_SPARSE or min(sizes) < 1:
        raise ValueError(f"num_embeddings {num_embeddings}: expected 1 or 26 positive numbers")
    samples = Samples.of_pieces(pieces, lambda feature, ids, _: ids % sizes[feature])
    return Dataset(samples, num_train_of(len(samples)), sizes)


def scan_sizes(folder: Path, pieces: Sequence[Columns]) -> list[int]:
    """Return how many rows the tables need: the largest id of each feature, and one more.

    Raises: ValueError: an id is negative, or too large to be one.
    """
    sizes = [1] * NUM_SPARSE
    for piece in pieces:
        for at in range(0, len(piece), _CHUNK_ROWS):
            for k, ids in enumerate(piece.cut(at, at + _CHUNK_ROWS).ids):
                least, most = int(ids.min()), int(ids.max())
                if least < 0 or most > LARGEST_ID:
                    raise ValueError(
                        f"{folder}: C{k + 1} has {least if least < 0 else most}, which is no row "
                        "of a table; give num_embeddings, and ids are taken modulo these"
                    )
                sizes[k] = max(sizes[k], most + 1)
    return sizes


def _open_day(folder: Path, day: int) -> Columns:
    """Map the files of one day."""
    one_hot, multi_hot = (folder / f"day_{day}_{name}" for name in (ONE_HOT, MULTI_HOT))
    if one_hot.exists() == multi_hot.exists():
        which = "both" if one_hot.exists() else "neither"
        raise ValueError(f"{folder}: day {day} has {which} of {ONE_HOT} and {MULTI_HOT}")
    dense = _map_array(folder / f"day_{day}_dense.npy", NUM_DENSE)
    labels = _map_array(folder / f"day_{day}_labels.npy", 1, len(dense))[:, 0]
    if one_hot.exists():
        ids = _map_array(one_hot, NUM_SPARSE, len(dense))
        return Columns(labels, dense, tuple(ids[:, k : k + 1] for k in range(NUM_SPARSE)))
    bags = map_npz(multi_hot, [str(k) for k in range(NUM_SPARSE)])
    for each in bags:
        _check(multi_hot, each, None, len(dense))
    return Columns(labels, dense, tuple(bags))


def _map_array(file: Path, num_columns: int, num_rows: int | None = None) -> Array:
    """Map a .npy file. Raises ValueError, with its name: it is missing, damaged or cut short."""
    try:
        array = cast(Array, np.load(file, mmap_mode="r"))
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{file}: {error}") from error
    if array.ndim == 1 and num_columns == 1:
        array = array[:, None]
    _check(file, array, num_columns, num_rows)
    return array


def _check(file: Path, array: Array, num_columns: int | None, num_rows: int | None) -> None:
    """Raise ValueError unless an array has this shape; None is any number."""
    expected = [num_rows, num_columns]
    fits = array.ndim == 2 and all(
        e in (None, n) for e, n in zip(expected, array.shape, strict=True)
    )
    if not fits:
        shown = ", ".join("any" if number is None else str(number) for number in expected)
        raise ValueError(f"{file}: shape {list(array.shape)}, expected [{shown}]")


def map_npz(file: Path, names: Sequence[str]) -> list[Array]:
    """Map arrays of an .npz file where they lie in it.

    Raises: ValueError: an array is missing, compressed or damaged.
    """
    try:
        with zipfile.ZipFile(file) as archive, file.open("rb") as raw:
            return [_map_member(file, archive.getinfo(f"{name}.npy"), raw) for name in names]
    except (zipfile.BadZipFile, KeyError, OSError, EOFError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error


def _map_member(file: Path, info: zipfile.ZipInfo, raw: Any) -> Array:
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(
            f"{info.filename} is compressed and cannot be mapped; write it anew with "
            "numpy.savez(new, **numpy.load(old))"
        )
    raw.seek(info.header_offset + 26)  # where the header has the sizes of name and extra field
    sizes = np.frombuffer(raw.read(4), "<u2")
    raw.seek(int(sizes.sum()), 1)
    version = np.lib.format.read_magic(raw)
    read: Any = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
    shape, is_fortran, dtype = read(raw)
    return np.memmap(file, dtype, "r", raw.tell(), shape, "F" if is_fortran else "C")
