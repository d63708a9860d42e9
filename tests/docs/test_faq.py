"""The messages that FAQ.md explains are messages of the code."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAQ = (ROOT / "trec_qcomm" / "docs" / "FAQ.md").read_text(encoding="utf-8")
HEADINGS = [line.removeprefix("### ") for line in FAQ.splitlines() if line.startswith("### `")]


@cache
def texts_of_the_code() -> str:
    """Return all text constants of the package, one a line; what is formatted in is left out."""
    texts = []
    for path in sorted((ROOT / "trec_qcomm").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value.replace("\n", " "))
    return "\n".join(texts)


def fragments(heading: str) -> list[str]:
    """Return the fixed parts of the quoted messages: what stands between `...`, names and numbers.

    Leaves out the words of a sender or device, which are put in front of every message, and those
    of rules, as tables and parameters share their messages.
    """
    quoted = " ... ".join(re.findall(r"`([^`]+)`", heading))
    for left_out in (
        r"frame from rank \d+|device cuda:\d+",
        r"\b(table|parameter)s?\b",
        r"\b(embedding|dense)(\[\d\])?",
    ):
        quoted = re.sub(left_out, "...", quoted)
    parts = re.split(r"\.\.\.|'[^']*'|\d+|\([^)]*\)", quoted)
    return [part.strip(" :;,.") for part in parts if len(part.strip(" :;,.")) >= 10]


@pytest.mark.parametrize("heading", HEADINGS)
def test_every_message_is_one_of_the_code(heading):
    known = texts_of_the_code()
    assert [part for part in fragments(heading) if part not in known] == []


def test_most_headings_have_something_to_look_for():
    assert sum(bool(fragments(heading)) for heading in HEADINGS) >= len(HEADINGS) - 3
