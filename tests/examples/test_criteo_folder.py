"""From Criteo's TSV to a folder of arrays and back: every field, damage, TorchRec's own formats."""

import gzip
import json
import lzma
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data import convert as convert_module
from data import tsv
from data.convert import check_source, convert, load
from data.dataset import FEATURES, Batches, Dataset, IdChoice, prepare
from data.folder import load_folder
from data.synthetic import generate
from data.tsv import MISSING_CATEGORY, NUM_DENSE, NUM_SPARSE, Rows, list_files, parse, read_file

RAW = generate(700, seed=5)
MIN_2 = IdChoice(min_count=2)
POOLING = [3, *[1] * (NUM_SPARSE - 2), 2]
GOOD = "\t".join(["1", *map(str, range(NUM_DENSE)), *(f"{k:08x}" for k in range(NUM_SPARSE))])


def write_tsv(rows: Rows, path: Path) -> None:
    """Write rows as Criteo's TSV, compressed if the name ends in .gz or .xz."""
    lines = []
    for label, dense, categories in rows.tolist():
        integers = ["" if np.isnan(x) else str(int(x)) for x in dense]
        names = ["" if c == MISSING_CATEGORY else f"{c:08x}" for c in categories]
        lines.append("\t".join([str(label), *integers, *names]) + "\n")
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wt") as file:
        file.writelines(lines)


def read(path: Path) -> Rows:
    return np.concatenate(list(read_file(path)))


def with_field(index: int, text: str) -> str:
    fields = GOOD.split("\t")
    fields[index] = text
    return "\t".join(fields)


def assert_equal(dataset: Dataset, other: Dataset) -> None:
    assert dataset.num_embeddings == other.num_embeddings
    assert dataset.num_train == other.num_train
    ours, theirs = dataset.rows.gather(), other.rows.gather()
    assert np.array_equal(ours.labels, theirs.labels)
    assert ours.dense.tobytes() == theirs.dense.tobytes()
    assert all(map(np.array_equal, ours.ids, theirs.ids))


# Lines.


@pytest.mark.parametrize("end", ["", "\n", "\r\n"], ids=["no newline", "newline", "crlf"])
def test_every_field_of_a_line(tmp_path: Path, end: str) -> None:
    path = tmp_path / "rows.tsv"
    lines = [GOOD, with_field(2, "-3"), with_field(2, ""), with_field(14, ""),
             with_field(14, "FFffFFff")]  # fmt: skip
    path.write_bytes(((end or "\n").join(lines) + end).encode())
    rows = read(path)
    assert rows["label"].tolist() == [1] * 5
    assert rows["dense"][0].tolist() == list(map(float, range(NUM_DENSE)))
    assert rows["categories"][0].tolist() == list(range(NUM_SPARSE))
    assert rows["dense"][1, 1] == -3
    assert np.isnan(rows["dense"][2, 1])
    assert rows["categories"][:, 0].tolist() == [0, 0, 0, MISSING_CATEGORY, 0xFFFFFFFF]


@pytest.mark.parametrize("name", ["a", "a.gz", "a.xz"])
def test_rows_survive_the_file_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_tsv(RAW, tmp_path / name)
    for chunk_nbytes in (1, 700, 1 << 20):
        monkeypatch.setattr(tsv, "CHUNK_NBYTES", chunk_nbytes)
        for field in RAW.dtype.names or ():
            np.testing.assert_array_equal(read(tmp_path / name)[field], RAW[field])


BAD_LINES = {
    "too few fields": (GOOD.rsplit("\t", 1)[0], "39 fields parted by tabs, expected 40"),
    "too many fields": (GOOD + "\t", "41 fields parted by tabs, expected 40"),
    "commas": (GOOD.replace("\t", ","), "1 fields parted by tabs"),
    "empty line": ("", "1 fields parted by tabs, expected 40"),
    "label 2": (with_field(0, "2"), "label is '2', expected 0 or 1"),
    "no label": (with_field(0, ""), "label is '', expected 0 or 1"),
    "not an integer": (with_field(3, "1.5"), "I3 is '1.5', expected a decimal integer"),
    "lone minus": (with_field(3, "-"), "I3 is '-'"),
    "hex among the integers": (with_field(3, "a"), "I3 is 'a'"),
    "integer of 19 digits": (with_field(3, "1" * 19), "I3 is '1111111111111111111'"),
    "not hex": (with_field(20, "0000000g"), "C7 is '0000000g', expected at most 8 hex digits"),
    "negative category": (with_field(20, "-1"), "C7 is '-1'"),
    "category of 9 digits": (with_field(20, "123456789"), "C7 is '123456789'"),
    "not ASCII": (with_field(20, "é" * 20), r"C7 is '\\xc3\\xa9"),
}


@pytest.mark.parametrize(("bad", "reason"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_malformed_lines_are_skipped_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: str, reason: str
) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("\n".join([GOOD] * 150 + [bad] + [GOOD] * 149) + "\n")
    assert len(read(path)) == 299
    assert f"{path}: 1 of 300 lines malformed; line 151: {reason}" in caplog.text


def test_every_malformed_line_has_a_reason_and_no_other() -> None:
    """Fields of a few odd characters, by the reader's pattern and by why_malformed."""
    draw = random.Random(7)
    fields = ["".join(draw.choices("01a-G \xff", k=draw.randrange(20))) for _ in range(3000)]
    lines = [with_field(draw.choice((0, 3, 20)), text).encode("latin-1") for text in fields]
    rows, malformed = parse(lines)
    assert 0 < len(rows) == len(lines) - len(malformed) < len(lines)
    assert {reason.split()[0] for _, reason in malformed} == {"label", "I3", "C7"}


@pytest.mark.parametrize("chunk_nbytes", [300, 1 << 20])
def test_more_than_one_percent_malformed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_nbytes: int
) -> None:
    monkeypatch.setattr(tsv, "CHUNK_NBYTES", chunk_nbytes)
    path = tmp_path / "rows.tsv"
    path.write_text("\n".join([GOOD] * 90 + ["x"] * 2 + [GOOD] * 90) + "\n")
    with pytest.raises(ValueError, match=r"rows\.tsv: 2 of 182 .* line 91.* more than 1%"):
        read(path)


def test_days_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ValueError, match="no such file, or a directory without files"):
            list_files(path)
    for name in ("day_10.gz", "day_2", "day_0", ".hidden"):
        (tmp_path / name).touch()
    assert [path.name for path in list_files(tmp_path)] == ["day_0", "day_2", "day_10.gz"]
    (tmp_path / "day_3.zst").touch()
    with pytest.raises(ValueError, match=r"day_3\.zst: \.zst is not read; expected plain"):
        list_files(tmp_path)


# Folders that are made of it.


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_pieces_give_the_same_samples_as_rows_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    days = tmp_path / "days"
    days.mkdir()
    write_tsv(RAW[:300], days / "day_2")
    write_tsv(RAW[300:], days / "day_10.gz")
    monkeypatch.setattr(tsv, "CHUNK_NBYTES", 5000)
    told = convert(days, tmp_path / "out", MIN_2, jobs=jobs, piece_rows=128)
    assert sum(told["rows"]) == 700
    assert min(told["rows"][:-1]) >= 128
    made = load_folder(tmp_path / "out")
    expected = prepare(RAW, min_count=2, hash_buckets=None)
    assert_equal(made, expected)
    batches = (Batches(d.train, 37, 1, 2, drop_last=True) for d in (made, expected))
    for batch, other in zip(*batches, strict=True):
        assert batch.sparse_features.values().equal(other.sparse_features.values())
        assert batch.sparse_features.lengths().equal(other.sparse_features.lengths())
        assert batch.dense_features.equal(other.dense_features)
        assert batch.labels.equal(other.labels)


def test_a_tsv_that_is_trained_on_is_made_ready_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rows.tsv"
    write_tsv(RAW, path)
    expected = prepare(RAW, min_count=1, hash_buckets=50)
    assert_equal(load(path, hash_buckets=50), expected)
    assert caplog.text.count("made ready to train on, once, in") == 1
    with monkeypatch.context() as patched:
        patched.setattr(convert_module, "_make", lambda *_: pytest.fail("read anew"))
        assert_equal(load(path, hash_buckets=50), expected)
    write_tsv(RAW[:350], path)
    assert_equal(load(path, hash_buckets=50), prepare(RAW[:350], min_count=1, hash_buckets=50))


def test_a_run_that_was_ended_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tsv(RAW, tmp_path / "rows.tsv")
    monkeypatch.setattr(tsv, "CHUNK_NBYTES", 5000)
    out, save = tmp_path / "out", np.save

    def killed(file: Path, array: np.ndarray) -> None:
        if file.name == "day_1_sparse.npy":
            raise KeyboardInterrupt
        save(file, array)

    with monkeypatch.context() as patched:
        patched.setattr(np, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            convert(tmp_path / "rows.tsv", out, MIN_2, piece_rows=100)
    assert not out.exists()
    convert(tmp_path / "rows.tsv", out, MIN_2, piece_rows=100)
    assert_equal(load_folder(out), prepare(RAW, min_count=2, hash_buckets=None))
    assert not (tmp_path / ".out.unfinished").exists()


def test_only_what_was_made_here_is_replaced_and_only_if_asked(tmp_path: Path) -> None:
    source, out = tmp_path / "rows.tsv", tmp_path / "out"
    write_tsv(RAW[:50], source)
    with pytest.raises(ValueError, match="holds other files; take an empty folder"):
        convert(source, tmp_path, MIN_2, replace=True)
    convert(source, out, MIN_2)
    with pytest.raises(ValueError, match="made of other files or in another way"):
        convert(source, out, IdChoice(min_count=3))
    convert(source, out, IdChoice(min_count=3), replace=True)
    assert json.loads((out / "dataset.json").read_text())["ids"] == {"min_count": 3}
    source.write_text("")
    with pytest.raises(ValueError, match="no rows"):
        load(source, min_count=1)


def test_categories_may_be_ids_already(tmp_path: Path) -> None:
    rows = RAW[:50].copy()
    rows["categories"][:] = np.arange(50)[:, None] + np.arange(NUM_SPARSE)
    rows["categories"][3, 1] = -1
    write_tsv(rows, tmp_path / "rows.tsv")
    as_they_are = IdChoice(as_they_are=True)
    convert(tmp_path / "rows.tsv", tmp_path / "out", as_they_are)
    made = load_folder(tmp_path / "out")
    assert made.num_embeddings == [50 + k for k in range(NUM_SPARSE)]
    assert made.rows.gather().ids[1][:5, 0].tolist() == [1, 2, 3, 0, 5]
    rows["categories"][7, 2] = 1 << 31
    write_tsv(rows, tmp_path / "large.tsv")
    with pytest.raises(ValueError, match="C3 has 80000000, which is no id"):
        convert(tmp_path / "large.tsv", tmp_path / "other", as_they_are)


# Folders of others.


def write_days(out: Path, days: list[int], **changes: Any) -> list[dict[str, Any]]:
    """Write what TorchRec has, and return it."""
    rng, made = np.random.default_rng(3), []
    for day, num_rows in zip(days, (40, 25), strict=False):
        arrays = {
            "dense": rng.random((num_rows, 13), np.float32),
            "labels": rng.integers(0, 2, (num_rows, 1), np.int32),
            "sparse": rng.integers(0, 9 + day, (num_rows, NUM_SPARSE), np.int32),
        } | changes
        for name, array in arrays.items():
            np.save(out / f"day_{day}_{name}.npy", array)
        made.append(arrays)
    return made


def test_torchrecs_files_are_mapped_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    second, first = write_days(tmp_path, [10, 2])
    made = load(tmp_path)
    assert (len(made.train), len(made.test)) == (55, 10)
    days = {name: np.concatenate([first[name], second[name]]) for name in first}
    assert made.num_embeddings == (days["sparse"].max(axis=0) + 1).tolist()
    batch = made.rows[20:30].to_batch()
    assert batch.labels.tolist() == days["labels"][20:30, 0].tolist()
    assert batch.dense_features.tolist() == days["dense"][20:30].tolist()
    assert batch.sparse_features["C7"].values().tolist() == days["sparse"][20:30, 6].tolist()


def test_ids_are_taken_modulo_sizes_that_are_given(tmp_path: Path) -> None:
    (day,) = write_days(tmp_path, [0])
    made = load(tmp_path, num_embeddings=range(1, NUM_SPARSE + 1))
    assert made.num_embeddings == [*range(1, NUM_SPARSE + 1)]
    values = made.rows[:40].to_batch().sparse_features.values().view(NUM_SPARSE, 40).T
    assert np.array_equal(values, day["sparse"] % np.arange(1, NUM_SPARSE + 1))
    assert load(tmp_path, num_embeddings=[5]).num_embeddings == [5] * NUM_SPARSE
    with pytest.raises(ValueError, match="expected 1 or 26 positive numbers"):
        load(tmp_path, num_embeddings=[5, 5])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_mlperfs_multi_hot_files_are_mapped_in_place(tmp_path: Path, dtype: type) -> None:
    write_days(tmp_path, [0, 1])
    rng = np.random.default_rng(1)
    ids = [rng.integers(0, 20, (65, p)).astype(dtype) for p in POOLING]
    for day, part in ((0, slice(40)), (1, slice(40, 65))):
        (tmp_path / f"day_{day}_sparse.npy").unlink()
        arrays = {str(k): each[part] for k, each in enumerate(ids)}
        np.savez(tmp_path / f"day_{day}_sparse_multi_hot.npz", **arrays)
    made = load(tmp_path)
    assert made.pooling == POOLING
    assert made.num_embeddings == [int(each.max()) + 1 for each in ids]
    for each in made.rows.pieces.columns:
        assert all(isinstance(array, np.memmap) for array in each.ids)
    sparse = made.rows[30:50].to_batch().sparse_features
    for k, feature in enumerate(FEATURES):
        assert sparse[feature].lengths().tolist() == [POOLING[k]] * 20
        assert sparse[feature].values().tolist() == ids[k][30:50].reshape(-1).tolist()


def test_damaged_folders_and_wrong_options_are_errors(tmp_path: Path) -> None:
    source, out = tmp_path / "rows.tsv", tmp_path / "out"
    write_tsv(RAW, source)
    convert(source, out, MIN_2)
    check_source(out, min_count=2)
    for path, options, message in (
        (out, {"min_count": 3}, "min_count 3: the ids of .* are made already, by min_count 2"),
        (out, {"hash_buckets": 3}, "hash_buckets 3: the ids of"),
        (source, {"num_embeddings": [3]}, r"rows\.tsv is a TSV"),
        (tmp_path / "absent", {}, "no such file"),
    ):
        with pytest.raises(ValueError, match=message):
            check_source(path, **options)
    with pytest.raises(ValueError, match=r"dataset\.json tells them"):
        load(out, num_embeddings=[3])
    ids = (out / "day_0_sparse.npy").read_bytes()
    (out / "day_0_sparse.npy").write_bytes(ids[:-8])
    with pytest.raises(ValueError, match=r"day_0_sparse.npy: "):
        load(out)
    (out / "day_0_sparse.npy").unlink()
    with pytest.raises(ValueError, match=r"day 0 has neither of sparse.npy and"):
        load(out)
    (out / "day_0_sparse.npy").write_bytes(ids)
    manifest = json.loads((out / "dataset.json").read_text())
    for changed, message in (({"version": 9}, "version 9"), ({"rows": [699]}, "files of")):
        (out / "dataset.json").write_text(json.dumps(manifest | changed))
        with pytest.raises(ValueError, match=message):
            load(out)
