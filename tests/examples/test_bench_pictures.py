"""Pictures of the documents: of today's records, each on one page, with words in its place."""

import re

import pytest

from examples.bench import pictures

PAGES = [p for g in ("*.md", "trec_qcomm/*.md", "examples/*/*.md") for p in pictures.ROOT.glob(g)]


@pytest.mark.parametrize("key", pictures.PICTURES)
def test_pages_show_pictures_of_todays_records(key):
    """`make pictures` draws them again. Ten words or more stand in their place."""
    assert pictures.is_current(key)
    shown = re.compile(rf"!\[(?:[^]\s]+\s+){{9,}}[^]]+\]\((\S*{key}\.png)\)")
    (path,) = [page.parent / name for page in PAGES for name in shown.findall(page.read_text())]
    assert path.samefile(pictures.RESULTS / f"{key}.png")


def test_a_picture_of_other_numbers_is_not_current(tmp_path, monkeypatch):
    pictures.drawn("bytes-by-kind", tmp_path)
    assert pictures.is_current("bytes-by-kind", tmp_path)
    monkeypatch.setattr(pictures, "BARS", ("stock", "int8"))
    assert not pictures.is_current("bytes-by-kind", tmp_path)
