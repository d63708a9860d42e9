"""TSV to a folder of arrays and back: equal samples, kills, other files, TorchRec's own formats."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.convert import parts, run
from data.convert.files import Part
from data.convert.ready import default_folder
from data.convert.run import convert
from data.dataset import Batches, prepare
from data.folder import load_folder, map_npz
from data.ids import IdChoice
from data.source import check_source, load
from data.synthetic import generate, write_tsv
from data.tsv import NUM_SPARSE

from tests.examples.test_criteo_data import assert_equal

RAW = generate(700, seed=5)
MIN_2 = IdChoice(min_count=2)
POOLING = [3, *[1] * (NUM_SPARSE - 2), 2]


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


@pytest.mark.parametrize(
    ("name", "part_nbytes"),
    [("rows.tsv", 20_000), ("rows.tsv", 1 << 20), ("rows.tsv.gz", 20_000), ("rows.tsv.xz", 20_000)],
)
def test_parts_give_the_same_samples_as_rows_in_memory(
    tmp_path: Path, name: str, part_nbytes: int
) -> None:
    write_tsv(RAW, tmp_path / name)
    told = convert(tmp_path / name, tmp_path / "out", MIN_2, part_nbytes=part_nbytes)
    assert (len(told["rows"]) > 5) == (part_nbytes == 20_000)
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
        patched.setattr(run, "_run", lambda *_: pytest.fail("read anew"))
        assert_equal(load(path, hash_buckets=50), expected)
    write_tsv(RAW[:350], path)
    assert_equal(load(path, hash_buckets=50), prepare(RAW[:350], min_count=1, hash_buckets=50))


def test_a_folder_that_cannot_be_written_to_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "rows.tsv"
    assert default_folder(source, MIN_2) == tmp_path / "rows.tsv.min_count_2"
    tmp_path.chmod(0o555)
    monkeypatch.setattr("tempfile.tempdir", "/elsewhere")
    folder = default_folder(source, MIN_2)
    assert folder.parent == Path("/elsewhere") / f"criteo_{os.getuid()}"
    assert folder != default_folder(tmp_path / "other" / "rows.tsv", MIN_2)
    tmp_path.chmod(0o755)


def test_a_folder_of_days_reads_like_one_file(tmp_path: Path) -> None:
    days = tmp_path / "days"
    days.mkdir()
    write_tsv(RAW[:300], days / "day_2")
    write_tsv(RAW[300:], days / "day_10.gz")
    assert_equal(load(days, min_count=1), prepare(RAW, min_count=1, hash_buckets=None))


@pytest.mark.parametrize(
    ("stage", "name"),
    [("read", "rows.tsv"), ("read", "rows.tsv.gz"), ("count", "rows.tsv"), ("write", "rows.tsv")],
)
def test_what_was_ended_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, name: str
) -> None:
    write_tsv(RAW, tmp_path / name)
    out, calls, files = tmp_path / "out", {"n": 0}, {}
    saved = {"read": run.read_parts, "count": run.make_vocabulary, "write": run.make_ids}
    jobs = {"read": "read_parts", "count": "make_vocabulary", "write": "make_ids"}

    def killed(*arguments: Any) -> None:
        calls["n"] += 1
        if calls["n"] == 3 or (stage == "read" and name.endswith(".gz")):
            raise KeyboardInterrupt
        saved[stage](*arguments)

    def watch(work: Path, part: Part, *arguments: Any) -> None:
        files[part] = files.get(part, 0) + 1
        real(work, part, *arguments)

    real = parts._read_part
    monkeypatch.setattr(parts, "_read_part", watch)
    with monkeypatch.context() as patched:
        patched.setattr(run, jobs[stage], killed)
        with pytest.raises(KeyboardInterrupt):
            convert(tmp_path / name, out, MIN_2, part_nbytes=20_000)
    with pytest.raises(ValueError, match="not finished; run the same"):
        load(out)
    with pytest.raises(ValueError, match=r"made with ids \{'min_count': 2\}, now"):
        convert(tmp_path / name, out, IdChoice(min_count=3), part_nbytes=20_000)
    convert(tmp_path / name, out, MIN_2, part_nbytes=20_000)
    assert set(files.values()) == {1}
    assert not [*out.glob("*.tmp"), *out.glob(".work")]
    assert_equal(load_folder(out), prepare(RAW, min_count=2, hash_buckets=None))


def test_processes_make_the_same_and_malformed_lines_have_their_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rows.tsv"
    write_tsv(RAW, path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:600], "what is this", *lines[600:]]))
    told = convert(path, tmp_path / "out", MIN_2, jobs=2, part_nbytes=30_000)
    assert told["lines"] == [{"file": "rows.tsv", "lines": 701, "malformed": 1}]
    assert "1 of 701 lines malformed; line 601: 1 field parted by tabs" in caplog.text
    assert_equal(load_folder(tmp_path / "out"), prepare(RAW, min_count=2, hash_buckets=None))


def test_more_than_one_percent_malformed_of_all_parts_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    write_tsv(RAW, path)
    path.write_text("x\n" * 8 + path.read_text())
    with pytest.raises(ValueError, match=r"rows.tsv: 8 of 708 .* line 1: .* more than 1%"):
        convert(path, tmp_path / "out", MIN_2, part_nbytes=20_000)


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").touch()
    with pytest.raises(ValueError, match="no rows"):
        load(tmp_path / "rows.tsv", min_count=1)


def test_a_file_that_was_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv.xz"
    write_tsv(RAW, path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"rows\.tsv\.xz: cannot be read to its end: "):
        load(path)


def test_categories_may_be_ids_already(tmp_path: Path) -> None:
    rows = RAW[:50].copy()
    rows["categories"][:] = np.arange(50)[:, None] + np.arange(NUM_SPARSE)
    rows["categories"][3, 1] = -1
    write_tsv(rows, tmp_path / "rows.tsv")
    as_they_are = IdChoice(as_they_are=True)
    convert(tmp_path / "rows.tsv", tmp_path / "out", as_they_are)
    made = load_folder(tmp_path / "out")
    assert made.num_embeddings == [50 + k for k in range(NUM_SPARSE)]
    assert made.rows.ids_of(1)[:5, 0].tolist() == [1, 2, 3, 0, 5]
    rows["categories"][7, 2] = 1 << 31
    write_tsv(rows, tmp_path / "large.tsv")
    with pytest.raises(ValueError, match="C3 has 80000000, which is no id"):
        convert(tmp_path / "large.tsv", tmp_path / "other", as_they_are)


def test_a_folder_with_other_files_is_not_written_to(tmp_path: Path) -> None:
    write_tsv(RAW[:50], tmp_path / "rows.tsv")
    with pytest.raises(ValueError, match=r"holds other files \(rows.tsv\); take an empty folder"):
        convert(tmp_path / "rows.tsv", tmp_path, MIN_2)


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
    for each in made.rows.pieces:
        assert all(isinstance(array, np.memmap) for array in each.ids)
    sparse = made.rows[30:50].to_batch().sparse_features
    for k, feature in enumerate(made.features):
        assert sparse[feature].lengths().tolist() == [POOLING[k]] * 20
        assert sparse[feature].values().tolist() == ids[k][30:50].reshape(-1).tolist()


def test_what_cannot_be_mapped_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    np.savez_compressed(file, **{"0": np.arange(6).reshape(3, 2)})
    with pytest.raises(ValueError, match=r"x\.npz: 0\.npy is compressed .* write it anew with"):
        map_npz(file, ["0"])
    np.savez(file, **{"0": np.arange(6).reshape(3, 2)})
    with pytest.raises(ValueError, match=r"x\.npz: .*1\.npy"):
        map_npz(file, ["0", "1"])
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"x\.npz: "):
        map_npz(file, ["0"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sparse": np.zeros((40, 25), np.int32)}, r"day_0_sparse.npy: shape \[40, 25\], expected"),
        ({"labels": np.zeros((39, 1), np.int32)}, r"day_0_labels.npy: shape \(39,\), expected"),
        ({"dense": np.zeros((40, 12), np.float32)}, r"day_0_dense.npy: shape \[40, 12\], expected"),
        ({"sparse": np.full((40, 26), -1, np.int32)}, "C1 has -1, which is no row of a table"),
    ],
)
def test_a_file_of_another_shape_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_days(tmp_path, [0], **changes)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_damaged_folders_are_errors(tmp_path: Path) -> None:
    write_tsv(RAW, tmp_path / "rows.tsv")
    out = tmp_path / "out"
    convert(tmp_path / "rows.tsv", out, MIN_2)
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


def test_options_must_fit_what_is_read(tmp_path: Path) -> None:
    write_tsv(RAW, tmp_path / "rows.tsv")
    out = tmp_path / "out"
    convert(tmp_path / "rows.tsv", out, MIN_2)
    check_source(out, min_count=2)
    for options, message in (
        ({"min_count": 3}, "min_count 3: the ids of .* are made already, by min_count 2"),
        ({"hash_buckets": 3}, "hash_buckets 3: the ids of"),
    ):
        with pytest.raises(ValueError, match=message):
            check_source(out, **options)
    with pytest.raises(ValueError, match=r"rows\.tsv is a TSV"):
        check_source(tmp_path / "rows.tsv", num_embeddings=[3])
    with pytest.raises(ValueError, match=r"dataset\.json tells them"):
        load(out, num_embeddings=[3])
    with pytest.raises(ValueError, match="no such file"):
        check_source(tmp_path / "absent")
