"""The check of prose finds telegrams, and leaves plain sentences alone."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / ".ci" / "check_prose.py"
_spec = importlib.util.spec_from_file_location("check_prose", PATH)
assert _spec is not None
assert _spec.loader is not None
check_prose = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_prose)


def problems(tmp_path, text, name="module.py", **options):
    """Return the line numbers of what is found in a file of this text."""
    path = tmp_path / name
    path.write_text(text)
    return [line for line, _ in check_prose.problems_of(path, **options)]


@pytest.mark.parametrize(
    "docstring",
    ["Of one rank.", "Likewise.", "As the base class.", "Those of rank 0.", "S.", "The same rows."],
)
def test_a_docstring_that_cannot_be_read_alone_is_found(tmp_path, docstring):
    assert problems(tmp_path, f'def f():\n    """{docstring}"""\n') == [2]
    assert problems(tmp_path, f'"""{docstring}"""\n') == [1]
    assert problems(tmp_path, f'class C:\n    """{docstring}"""\n') == [2]


@pytest.mark.parametrize(
    "docstring",
    ["Settings of an all-reduce.", "Return the rows of a rank.", "As-is copy of the rows."],
)
def test_a_docstring_with_a_head_is_left_alone(tmp_path, docstring):
    assert problems(tmp_path, f'def f():\n    """{docstring}"""\n') == []


def test_notes_of_arguments_name_things(tmp_path):
    text = '''
def f(rows, seed, at):
    """Encode rows.

    Args: rows: [n, D] float32, the rows to encode.  seed: of stochastic rounding.
        at: see `Codec`.

    Everything: of this paragraph is left alone.
    """
'''
    assert problems(tmp_path, text) == [5, 6]


def test_a_comment_may_go_on_but_not_begin_with_of(tmp_path):
    assert problems(tmp_path, "# Of all ranks.\nx = 1\n") == [1]
    assert problems(tmp_path, "# The sum\n# Of all ranks.\nx = 1\n") == []
    assert problems(tmp_path, "# As long as it is open.\nx = 1\n") == []


@pytest.mark.parametrize(
    "code",
    ["found = 1", "for own in x: pass", "def way(): pass", "def f(of): pass", "self.found = 1"],
)
def test_names_that_say_nothing_are_found(tmp_path, code):
    assert problems(tmp_path, code + "\n") == [1]


def test_names_are_whole_words(tmp_path):
    assert problems(tmp_path, "own_chunk = found_rows = gateway = 1\nprint(way)\n") == []


def test_pages_are_looked_at_below_headings_only(tmp_path):
    page = (
        "# Title\n\nOf one rank.\n\nOf another.\n\n```\n# comment\nof code\n```\n\n## Two\nIt is.\n"
    )
    assert problems(tmp_path, page, "page.md") == [3]


LONG = "one " * 15 + "\n" + "two " * 15 + "three."


def test_long_sentences_are_found_on_pages_for_users_only(tmp_path):
    page = f"# Title\n\nShort one.\n{LONG} Short.\n\n- item\n- {LONG}\n"
    assert problems(tmp_path, page, "page.md", is_for_users=True) == [4, 8]
    assert problems(tmp_path, page, "page.md") == []


@pytest.mark.parametrize(
    "text",
    [
        "one " * 29 + "two. Three four.",
        "one " * 29 + "`two three\nfour`.",
        "one " * 29 + "[two](three.md#four 'five six').",
        "one " * 20 + "\n\n" + "two " * 20,
        "- " + "one " * 20 + "\n- " + "two " * 20,
        "| " + "one " * 40 + "|",
        "```\n" + "one " * 40 + "\n```",
        "    python " + "one " * 40,
        "<!-- from x.jsonl -->\n" + "one " * 40 + "\n<!-- end -->",
        "### " + "one " * 40,
    ],
)
def test_code_tables_headings_and_targets_of_links_do_not_count(tmp_path, text):
    assert problems(tmp_path, text + "\n", "page.md", is_for_users=True) == []


def test_the_pages_for_users_exist_and_readme_is_one():
    pages = check_prose.pages_for_users()
    assert PATH.parents[1] / "README.md" in pages
    assert all(page.is_file() for page in pages)
