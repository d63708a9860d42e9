"""The reader: every field, every compression, and lines that are not Criteo's."""

import gzip
import io
import lzma
import math
import random
from pathlib import Path

import numpy as np
import pytest
from data import tsv
from data.malformed import NUM_DENSE, NUM_SPARSE, why_malformed
from data.tsv import (
    MISSING_CATEGORY,
    LineCount,
    LineReader,
    Rows,
    list_files,
    parse_lines,
    read_file,
)

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
    "too few fields": (GOOD.rsplit("\t", 1)[0], "39 fields parted by tabs, expected 40"),
    "too many fields": (GOOD + "\t", "41 fields parted by tabs, expected 40"),
    "commas": (GOOD.replace("\t", ","), "1 field parted by tabs, 39 commas, expected 40"),
    "empty line": ("", "1 field parted by tabs, expected 40"),
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
def test_malformed_lines_are_skipped_and_told(tmp_path: Path, bad: str, reason: str) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("\n".join([GOOD] * 150 + [bad] + [GOOD] * 149) + "\n")
    rows, count = read(path)
    assert len(rows) == 299
    assert (count.num_lines, count.num_malformed) == (300, 1)
    assert f"{path}: 1 of 300 lines malformed; line 151: {reason}" in str(count)


def test_a_header_is_called_one_and_what_follows_is_told_too(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    header = "\t".join(["label", *(f"I{k}" for k in range(1, 40))])
    lines = [header, GOOD, "x", GOOD, "y", with_field(3, "a"), with_field(0, "2")]
    path.write_text("\n".join(lines + [GOOD] * 1000))
    _, count = read(path)
    assert str(count).removeprefix(f"{path}: ").split("; ") == [
        "5 of 1007 lines malformed",
        r"line 1: looks like a header ('label\tI1\tI2\tI3\tI4\tI5'...), and Criteo's TSV has none",
        "line 3: 1 field parted by tabs, expected 40",
        "line 6: I3 is 'a', expected a decimal integer of at most 18 digits, or nothing",
    ]


def test_every_malformed_line_has_a_reason_and_no_other() -> None:
    """Fields of a few odd characters, by the reader and by why_malformed."""
    draw = random.Random(7)
    fields = ["".join(draw.choices("01a-G \xff", k=draw.randrange(20))) for _ in range(3000)]
    texts = [with_field(draw.choice((0, 3, 20)), text).encode("latin-1") for text in fields]
    _, good = parse_lines(np.frombuffer(b"\n".join(texts) + b"\n", np.uint8))
    assert 0 < good.sum() < len(good)
    for text, is_good in zip(texts, good, strict=True):
        if is_good:
            with pytest.raises(AssertionError, match="not malformed"):
                why_malformed(text, is_first=False)
        else:
            assert why_malformed(text, is_first=False)[0] in ("label", "I3", "C7")


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_file_that_was_cut_short_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.tsv{suffix}"
    compress = {".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    whole = compress("".join(with_field(1, str(i)) + "\n" for i in range(2000)).encode())
    for damaged in (whole[:-20], whole[: len(whole) // 2] + b"\xff" * 50, b"no archive"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"rows\.tsv\{suffix}: cannot be read to its end: "):
            read(path)
    path.rename(tmp_path / "rows.tsv.zst")
    with pytest.raises(ValueError, match=r"rows\.tsv\.zst: \.zst is not read; expected plain"):
        read(tmp_path / "rows.tsv.zst")


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


@pytest.mark.parametrize("text", [b"ab\ncd\nef\n", b"a\n\nlonger\nb", b"one line"])
def test_parts_of_a_text_have_each_line_once_wherever_it_is_cut(text: bytes) -> None:
    whole = text if text.endswith(b"\n") else text + b"\n"
    for cut in range(2, len(text) + 1):
        first = LineReader(io.BytesIO(text)).lines_until(cut)
        stream = io.BytesIO(text)
        stream.seek(cut - 1)
        rest = LineReader(stream, cut - 1).lines_until(math.inf)
        assert b"".join([*first, *rest]) == whole, cut
