"""README.md says what the records say."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "bench" / "results"))

import readme

FIRST_OF = {"net.jsonl": "1.0x less"}


@pytest.mark.parametrize("name", readme.SECTIONS)
def test_readme_says_what_was_measured(name):
    """`python examples/bench/results/readme.py --write` puts it right."""
    text, made = readme.README.read_text(), readme.section(name)
    assert text == readme.replaced(text, name, made)
    assert FIRST_OF[name] in made


def test_a_missing_comment_is_named():
    with pytest.raises(ValueError, match=r"README\.md: expected <!-- from .*net\.jsonl -->"):
        readme.replaced("no comments", "net.jsonl", "")


def test_check_tells_what_disagrees(tmp_path, monkeypatch, capsys):
    before, other = readme.README.read_text(), tmp_path / "README.md"
    other.write_text(before.replace("1.0x less", "9.9x less"))
    monkeypatch.setattr(readme, "README", other)
    for words, status in (("--check", 1), ("--write", 0), ("--check", 0)):
        monkeypatch.setattr(sys, "argv", ["readme.py", words])
        assert readme.main() == status
        if status:
            assert "README.md disagrees with net.jsonl" in capsys.readouterr().out
    assert other.read_text() == before
