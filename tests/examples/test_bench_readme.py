"""README.md, and that of the benches, say what the records say."""

import sys
from dataclasses import replace

import pytest

from examples.bench import readme

FIRST_OF = {
    "links.jsonl": "1.0x less", "links_4_hosts.jsonl": "1.0x less",
    "links_planned.jsonl": "1.0x less", "plans_4_hosts.jsonl": "| table_wise, again |",
    "placements_4_hosts.jsonl": "| greedy_table_wise |",
    "dcn.jsonl": "1.0x less", "sequences.jsonl": "1.0x less", "net.jsonl": "1.0x less",
    "codec.jsonl": "| `rowwise 8` | 3.76 |",
}  # fmt: skip


@pytest.mark.parametrize("section", readme.SECTIONS, ids=lambda s: s.records)
def test_readme_says_what_was_measured(section):
    """`python -m examples.bench.readme --write` puts it right."""
    text = section.page.read_text()
    assert text == readme.replaced(text, section)
    assert FIRST_OF[section.records] in section.made()


def test_a_missing_comment_is_named():
    with pytest.raises(ValueError, match=r"README\.md: expected <!-- from .*links\.jsonl -->"):
        readme.replaced("no comments", readme.SECTIONS[0])


def test_check_tells_what_differs_and_write_puts_it_right(tmp_path, monkeypatch, capsys):
    net = readme.SECTIONS[0]
    page = tmp_path / "README.md"
    before = net.page.read_text()
    page.write_text(before.replace("1.0x less", "9.9x less"))
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    monkeypatch.setattr(readme, "SECTIONS", (replace(net, page=page),))
    said = []
    for words in ("--check", "--write", "--check"):
        monkeypatch.setattr(sys, "argv", ["readme.py", words])
        said.append((readme.main(), capsys.readouterr().out.strip()))
    assert said == [
        (1, "differs: README.md with links.jsonl"),
        (0, "written: README.md with links.jsonl"),
        (0, "all sections agree with the records"),
    ]
    assert page.read_text() == before
