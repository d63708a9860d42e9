"""The reader: every field, every compression, and lines that are not Criteo's."""

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
from data import tsv
from data.tsv import MISSING_CATEGORY, NUM_DENSE, NUM_SPARSE, LineCount, Rows, list_files, read_file

GOOD = "\t".join(["1", *map(str, range(NUM_DENSE)), *(f"{k:08x}" for k in range(NUM_SPARSE))])


def read(path: Path) -> tuple[Rows, LineCount]:
    count = LineCount(path)
    return np.concatenate(list(read_file(path, count))), count


def with_field(index: int, text: str) -> str:
    fields = GOOD.split("\t")
    fields[index] = text
    return "\t".join(fields)


def test_every_field_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(GOOD + "\n")
    rows, count = read(path)
    assert rows["label"].tolist() == [1]
    assert rows["dense"].tolist() == [list(map(float, range(NUM_DENSE)))]
    assert rows["categories"].tolist() == [list(range(NUM_SPARSE))]
    assert (count.num_lines, count.num_malformed) == (1, 0)


def test_missing_negative_and_largest_values(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    lines = [with_field(2, "-3"), with_field(2, ""), with_field(14, ""), with_field(14, "FFffFFff")]
    path.write_text("\n".join(lines) + "\n")
    rows, _ = read(path)
    assert rows["dense"][0, 1] == -3
    assert np.isnan(rows["dense"][1, 1])
    assert rows["categories"][:, 0].tolist() == [0, 0, MISSING_CATEGORY, 0xFFFFFFFF]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"], ids=["no newline", "newline", "crlf"])
def test_the_last_line_counts_however_it_ends(tmp_path: Path, end: str) -> None:
    path = tmp_path / "rows.tsv"
    path.write_bytes((GOOD + "\n" + GOOD + end).encode())
    rows, count = read(path)
    assert len(rows) == 2
    assert count.num_malformed == 0


@pytest.mark.parametrize("chunk_nbytes", [1, 7, 300, 1 << 20])
def test_chunks_may_cut_lines_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_nbytes: int
) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("".join(with_field(1, str(i)) + "\r\n" for i in range(20)))
    monkeypatch.setattr(tsv, "CHUNK_NBYTES", chunk_nbytes)
    rows, _ = read(path)
    assert rows["dense"][:, 0].tolist() == list(range(20))


def test_compressed_files_read_like_plain_ones(tmp_path: Path) -> None:
    text = "".join(with_field(1, str(i)) + "\n" for i in range(20)).encode()
    (tmp_path / "a").write_bytes(text)
    (tmp_path / "a.gz").write_bytes(gzip.compress(text))
    (tmp_path / "a.xz").write_bytes(lzma.compress(text))
    plain, gz, xz = (read(tmp_path / name)[0].tobytes() for name in ("a", "a.gz", "a.xz"))
    assert plain == gz == xz


BAD_LINES = {
    "too few fields": GOOD.rsplit("\t", 1)[0],
    "too many fields": GOOD + "\t",
    "empty line": "",
    "label 2": with_field(0, "2"),
    "no label": with_field(0, ""),
    "not an integer": with_field(3, "1.5"),
    "lone minus": with_field(3, "-"),
    "hex among the integers": with_field(3, "a"),
    "integer of 19 digits": with_field(3, "1" * 19),
    "not hex": with_field(20, "0000000g"),
    "negative category": with_field(20, "-1"),
    "category of 9 digits": with_field(20, "123456789"),
    "not ASCII": with_field(20, "é"),
}


@pytest.mark.parametrize("bad", BAD_LINES.values(), ids=BAD_LINES.keys())
def test_malformed_lines_are_skipped_and_counted(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("\n".join([GOOD] * 150 + [bad] + [GOOD] * 149) + "\n")
    rows, count = read(path)
    assert len(rows) == 299
    assert (count.num_lines, count.num_malformed, count.first_malformed) == (300, 1, 151)
    assert "1 of 300 lines malformed, the first is line 151" in str(count)


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
    for name in ("day_10.gz", "day_2", "day_0", ".hidden"):
        (tmp_path / name).touch()
    assert [path.name for path in list_files(tmp_path)] == ["day_0", "day_2", "day_10.gz"]


def test_a_path_without_files_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ValueError, match="no such file, or a directory without files"):
            list_files(path)
