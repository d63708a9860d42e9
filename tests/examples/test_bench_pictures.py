"""Pictures of the documents: of today's records, each on one page, with words in its place."""

import re

import pytest

from examples.bench import pictures

FOLDERS = [pictures.ROOT / name for name in ("", "trec_qcomm", "examples/bench", "examples/criteo")]


@pytest.mark.parametrize("key", pictures.PICTURES)
def test_pages_show_pictures_of_todays_records(key):
    """`make pictures` draws them again."""
    assert pictures.is_current(key)
    shown = re.compile(rf"!\[([^]]+)\]\((\S*{key}\.png)\)")
    texts = {folder: (folder / "README.md").read_text() for folder in FOLDERS}
    ((folder, (words, path)),) = ((f, i) for f, text in texts.items() for i in shown.findall(text))
    assert (folder / path).samefile(pictures.RESULTS / f"{key}.png")
    assert len(words.split()) >= 10


def test_a_picture_of_other_numbers_is_not_current(tmp_path, monkeypatch):
    pictures.drawn("bytes-by-kind", tmp_path)
    assert pictures.is_current("bytes-by-kind", tmp_path)
    monkeypatch.setattr(pictures, "BARS", ("stock", "int8"))
    assert not pictures.is_current("bytes-by-kind", tmp_path)
