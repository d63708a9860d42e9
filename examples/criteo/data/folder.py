"""A folder of preprocessed samples, mapped: what preprocess.py writes, or what TorchRec has.

Knows: files and their arrays, dataset.json. Does not know: TSV, ranks, batches.
day_N_dense.npy [N, 13] float32, day_N_labels.npy [N] or [N, 1], and day_N_sparse.npy [N, 26], or,
with several ids a sample, day_N_sparse_multi_hot.npz of MLPerf's DLRMv2: "0" to "25", each [N, P].
Without dataset.json 6/7 of the samples train, and the tables are as large as the largest id needs.
Nothing is read but what a batch takes.
"""

from __future__ import annotations

import json
import logging
import re
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from data.convert.run import MANIFEST, VERSION, WORK
from data.dataset import Dataset
from data.ids import LARGEST_ID, num_train_of
from data.samples import Array, Columns, Samples
from data.tsv import NUM_DENSE, NUM_SPARSE, Ints

logger = logging.getLogger(__name__)

ONE_HOT, MULTI_HOT = "sparse.npy", "sparse_multi_hot.npz"
_DAY = re.compile(r"day_(\d+)_dense\.npy")
_CHUNK_ROWS = 1 << 20
_LOCAL_HEADER_NBYTES = 30  # of a file in a zip, before its name and its extra field


def is_preprocessed(path: Path) -> bool:
    """Return whether this is a folder of arrays, or one that is to become it."""
    if not path.is_dir():
        return False
    return (path / MANIFEST).exists() or (path / WORK).exists() or bool(list_days(path))


def list_days(folder: Path) -> list[int]:
    """Return the numbers N of the files day_N_dense.npy, ascending."""
    matches = (_DAY.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return what dataset.json says; None if there is none.

    Raises: ValueError: it is of another version, or the folder is not finished.
    """
    file = folder / MANIFEST
    if not file.exists():
        if (folder / WORK).exists():
            raise ValueError(f"{folder}: not finished; run the same preprocess.py again")
        return None
    try:
        manifest = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    if manifest.get("version") != VERSION:
        raise ValueError(f"{file}: version {manifest.get('version')}, expected {VERSION}")
    return cast(dict[str, Any], manifest)


def load_folder(folder: Path, num_embeddings: Sequence[int] | None = None) -> Dataset:
    """Map a folder of preprocessed samples.

    Args: num_embeddings: rows of the 26 tables, or one number for all; ids are then taken modulo
        these, as TorchRec's reader does. Only where there is no dataset.json.
    Raises: ValueError: a file is missing, damaged or of another shape; the message names it.
    """
    manifest = read_manifest(folder)
    days = list_days(folder)
    if not days:
        raise ValueError(f"{folder}: no files day_N_dense.npy")
    pieces = [_open_day(folder, day) for day in days]
    for day, piece in zip(days, pieces, strict=True):
        if piece.pooling != pieces[0].pooling:
            raise ValueError(f"{folder}: days {days[0]} and {day} have different ids a sample")
    samples = Samples([piece for piece in pieces if len(piece)])
    if manifest is None:
        return _foreign(folder, samples, num_embeddings)
    if num_embeddings is not None:
        raise ValueError(f"num_embeddings: {folder / MANIFEST} tells them")
    rows = [len(piece) for piece in pieces]
    if rows != manifest["rows"]:
        raise ValueError(f"{folder}: files of {rows} rows, {MANIFEST} has {manifest['rows']}")
    return Dataset(samples, manifest["num_train"], manifest["num_embeddings"])


def scan_sizes(folder: Path, samples: Samples) -> list[int]:
    """Return how many rows the tables need: the largest id of each feature, and one more.

    Raises: ValueError: an id is negative, or too large to be one.
    """
    largest, smallest = np.zeros(NUM_SPARSE, np.int64), np.zeros(NUM_SPARSE, np.int64)
    for piece in samples.pieces:
        for at in range(0, len(piece), _CHUNK_ROWS):
            part = piece.cut(at, at + _CHUNK_ROWS).ids
            blocks = part if isinstance(part, tuple) else (part,)
            most = [block.max(axis=0) for block in blocks]
            least = [block.min(axis=0) for block in blocks]
            if isinstance(part, tuple):
                most, least = [[m.max() for m in most]], [[m.min() for m in least]]
            largest, smallest = np.maximum(largest, most[0]), np.minimum(smallest, least[0])
    for k in range(NUM_SPARSE):
        if smallest[k] < 0 or largest[k] > LARGEST_ID:
            value = smallest[k] if smallest[k] < 0 else largest[k]
            raise ValueError(
                f"{folder}: C{k + 1} has {value}, which is no row of a table; give "
                "num_embeddings, and ids are taken modulo these"
            )
    return [int(most) + 1 for most in largest]


def _foreign(folder: Path, samples: Samples, num_embeddings: Sequence[int] | None) -> Dataset:
    """Return the data set of a folder that preprocess.py has not written."""
    num_train = num_train_of(len(samples))
    if num_embeddings is None:
        return Dataset(samples, num_train, scan_sizes(folder, samples))
    sizes = [*num_embeddings] * (NUM_SPARSE if len(num_embeddings) == 1 else 1)
    if len(sizes) != NUM_SPARSE or min(sizes) < 1:
        raise ValueError(f"num_embeddings {num_embeddings}: expected 1 or 26 positive numbers")
    limits: Ints = np.array(sizes, np.int64)
    pieces = [replace(piece, modulo=limits) for piece in samples.pieces]
    return Dataset(Samples(pieces), num_train, sizes)


def _open_day(folder: Path, day: int) -> Columns:
    """Map the files of one day."""
    files = {name: folder / f"day_{day}_{name}" for name in (ONE_HOT, MULTI_HOT)}
    there = [name for name, file in files.items() if file.exists()]
    if len(there) != 1:
        which = "both" if there else "neither"
        raise ValueError(f"{folder}: day {day} has {which} of {ONE_HOT} and {MULTI_HOT}")
    dense = _map_array(folder / f"day_{day}_dense.npy")
    labels = _map_array(folder / f"day_{day}_labels.npy")
    ids: Any
    if there == [ONE_HOT]:
        ids = _map_array(files[ONE_HOT])
        _check(files[ONE_HOT], ids, len(dense), NUM_SPARSE)
    else:
        ids = tuple(map_npz(files[MULTI_HOT], [str(k) for k in range(NUM_SPARSE)]))
        for each in ids:
            _check(files[MULTI_HOT], each, len(dense), None)
    _check(folder / f"day_{day}_dense.npy", dense, len(dense), NUM_DENSE)
    labels = labels.reshape(-1) if labels.shape[1:] in ((), (1,)) else labels
    if labels.shape != (len(dense),):
        shape = f"shape {labels.shape}, expected [{len(dense)}, 1]"
        raise ValueError(f"{folder / f'day_{day}_labels.npy'}: {shape}")
    return Columns(labels, dense, ids)


def _check(file: Path, array: Array, num_rows: int, num_columns: int | None) -> None:
    """Raise ValueError unless an array has rows of the right length."""
    columns = array.shape[1] if array.ndim == 2 and num_columns is None else num_columns
    if array.ndim != 2 or array.shape != (num_rows, columns):
        expected = f"[{num_rows}, {num_columns or 'P'}]"
        raise ValueError(f"{file}: shape {list(array.shape)}, expected {expected}")


def _map_array(file: Path) -> Array:
    """Map a .npy file. Raises ValueError, with its name: it is missing, damaged or cut short."""
    try:
        return cast(Array, np.load(file, mmap_mode="r"))
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{file}: {error}") from error


def map_npz(file: Path, names: Sequence[str]) -> list[Array]:
    """Map arrays of an .npz file where they lie in it.

    Raises: ValueError: an array is missing, compressed or damaged.
    """
    try:
        with zipfile.ZipFile(file) as archive, file.open("rb") as raw:
            return [_map_member(file, archive, raw, f"{name}.npy") for name in names]
    except (zipfile.BadZipFile, KeyError, OSError, EOFError) as error:
        raise ValueError(f"{file}: {error}") from error


def _map_member(file: Path, archive: zipfile.ZipFile, raw: Any, name: str) -> Array:
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(
            f"{file}: {name} is compressed and cannot be mapped; write it anew with "
            "numpy.savez(new, **numpy.load(old))"
        )
    raw.seek(info.header_offset)
    header = raw.read(_LOCAL_HEADER_NBYTES)
    sizes = np.frombuffer(header[26:30], "<u2")  # of the name and of the extra field
    raw.seek(info.header_offset + _LOCAL_HEADER_NBYTES + int(sizes.sum()))
    try:
        version = np.lib.format.read_magic(raw)
        read: Any = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
        shape, is_fortran, dtype = read(raw)
        order: Any = "F" if is_fortran else "C"
        return np.memmap(file, dtype, "r", raw.tell(), shape, order)
    except (AttributeError, ValueError) as error:
        raise ValueError(f"{file}: {name}: {error}") from error
