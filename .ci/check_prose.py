"""Check what a machine can see of the English in docstrings, comments, names and pages.

  python .ci/check_prose.py                       all Python and Markdown files that git tracks
  python .ci/check_prose.py trec_qcomm/comm/rounds.py tests/comm

- A docstring's first sentence must be readable alone: it has two words or more and does not begin
  with a preposition or a pronoun that points elsewhere ("Of one rank.", "Likewise.", "As above.").
  The first sentence below a heading of a Markdown page does not begin with a preposition either.
- The note of an argument names a thing ("rows: [n, D] float32, the rows to encode"). It does not
  begin with of, as, see, by, those or these.
- A comment does not begin with of, as or by, unless it goes on from the line before.
- No identifier is a bare `of`, `found`, `own` or `way`.
- On the pages of the site's book "Use" no sentence has more than 30 words. Code, tables, headings
  and targets of links do not count; code within a line is one word.

CONTRIBUTING.md says why. Exit status 1 where something is found, one line each.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_WORDS = 30
NAMES = {"of", "found", "own", "way", "ways"}
# Words that a sentence cannot begin with if it is read alone.
_DANGLING = (
    r"of|as|by|likewise|ditto|that|those|this|these|it|its|they|them|their|theirs|same|the same"
    r"|another|see|such|also|and|or|but|back|one more|above|below|ours"
)
_FIRST_WORD = re.compile(rf"(?:{_DANGLING})\b(?!-)", re.IGNORECASE)
# A page's heading says what "this" is, so less is forbidden below it.
_FIRST_ON_PAGE = re.compile(r"(?:of|as|by|likewise|ditto|also|and|or|but)\b(?!-)", re.IGNORECASE)
_NOTE = re.compile(
    r"(?:(?<=^)|(?<=\s))(?P<names>[a-z_][a-z0-9_]*(?:, [a-z_][a-z0-9_]*)*): +(?P<text>\S.*)"
)
_NOTE_WORD = re.compile(
    r"(?:of|as|see|by|likewise|that of|those|these|ditto|the same|its|their)\b", re.IGNORECASE
)
_SECTION = re.compile(r"^\s*(Args|Returns|Raises|Derived|Attributes):")
_COMMENT = re.compile(
    r"(?:Of|As|By|Likewise|Ditto|That of|Those of)\b(?! (?:a |the )?(?:far|long|soon))"
)
_NO_PROSE = re.compile(
    r"<!--\s*from.*?<!--\s*end\s*-->|<!--.*?-->|^```.*?^```|!\[[^]]*\]\([^)]*\)", re.S | re.M
)
_LINK_TARGET = re.compile(r"\]\([^)]*\)")
_INLINE_CODE = re.compile(r"`[^`]*`")
_SENTENCE_END = re.compile(r"(?<=[.!?])[)*_\"]*(?=\s)")
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s")


def problems_of(path: Path, *, is_for_users: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line number, what is wrong) for one file.

    Args: is_for_users: whether sentences must be short, too.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from _page_problems(text)
        if is_for_users:
            yield from _long_sentences(text)
    else:
        yield from _python_problems(ast.parse(text, filename=str(path)), text)


def _python_problems(tree: ast.Module, text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstring_problems(node)
    yield from _name_problems(tree)
    yield from _comment_problems(text)


def _docstring_problems(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[tuple[int, str]]:
    docstring = ast.get_docstring(node)
    if not docstring:
        return
    line = node.body[0].lineno
    name = getattr(node, "name", "module")
    first = docstring.split("\n", 1)[0]
    if _FIRST_WORD.match(first) or len(docstring.split()) < 2:
        yield line, f"{name}: the first sentence cannot be read alone: {first!r:.70}"
    in_section = False
    for offset, row in enumerate(docstring.split("\n")):
        if not row.strip():
            in_section = False
        elif _SECTION.match(row):
            in_section = True
        if in_section:
            for note in _notes(row):
                if _NOTE_WORD.match(note["text"]):
                    said = f"{note['names']}: {note['text']}"
                    yield line + offset, f"{name}: the note names no thing: {said!r:.70}"


def _notes(row: str) -> Iterator[re.Match[str]]:
    """Yield each `name: text` of one line; several stand in a line, two spaces apart."""
    for part in re.split(r"\s{2,}|(?<=Args:)\s|(?<=Derived:)\s", row):
        note = _NOTE.match(part)
        if note:
            yield note


def _name_problems(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names = [node.id]
        elif isinstance(node, ast.arg):
            names = [node.arg]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names = [node.attr]
        for name in names:
            if name.strip("_") in NAMES:
                yield getattr(node, "lineno", 0), f"{name}: a name that says nothing"


def _comment_problems(text: str) -> Iterator[tuple[int, str]]:
    previous = -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        goes_on = line == previous + 1 and token.line.lstrip().startswith("#")
        previous = line
        words = token.string.lstrip("#: ")
        if not goes_on and _COMMENT.match(words):
            yield line, f"the comment cannot be read alone: {words!r:.70}"


def _page_problems(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first lines below headings that cannot be read alone. Skips code blocks."""
    below_heading = in_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("```"):
            in_code = not in_code
            below_heading = False
        elif not in_code and line.startswith("#"):
            below_heading = True
        elif below_heading and line.strip():
            below_heading = False
            if _FIRST_ON_PAGE.match(line.lstrip("*_`[-> ")):
                yield number, f"the first sentence cannot be read alone: {line!r:.70}"


def _long_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines at which sentences of more than MOST_WORDS words begin."""
    text = _NO_PROSE.sub(lambda match: re.sub(r"[^\n]", "", match.group()), text)
    text = _INLINE_CODE.sub(lambda match: "code" + "\n" * match.group().count("\n"), text)
    for line, paragraph in _paragraphs(text):
        begin = 0
        for end in [*(m.end() for m in _SENTENCE_END.finditer(paragraph)), len(paragraph)]:
            sentence = paragraph[begin:end].lstrip()
            words = [w for w in _LINK_TARGET.sub("]", sentence).split() if re.search(r"\w", w)]
            if len(words) > MOST_WORDS:
                first = line + paragraph.count("\n", 0, end - len(sentence))
                yield first, f"{len(words)} words in a sentence: {' '.join(words)!r:.70}"
            begin = end


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield (first line, text) of each paragraph and each item of a list."""
    first, rows = 1, list[str]()
    for number, row in enumerate([*text.split("\n"), ""], start=1):
        is_prose = bool(row.strip()) and not row.startswith(("|", "#", "    "))
        if rows and (not is_prose or _ITEM.match(row)):
            yield first, "\n".join(rows)
            rows = []
        if is_prose:
            first = first if rows else number
            rows.append(row)


def pages_for_users() -> set[Path]:
    """Return the pages of the site's first book, "Use"."""
    navigation = (ROOT / ".docs" / "mkdocs.yml").read_text(encoding="utf-8")
    match = re.search(r"^  - Use:\n((?:    .*\n)*)", navigation, re.MULTILINE)
    if match is None:
        raise ValueError(".docs/mkdocs.yml: nav: the book Use is missing")
    return {ROOT / row.rsplit(": ", 1)[1] for row in match.group(1).splitlines()}


def tracked(places: Iterable[str]) -> list[Path]:
    """Return the Python and Markdown files that git knows, at these places or everywhere."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *places]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [path for path in map(Path, names) if path.suffix in (".py", ".md") and path.exists()]


def main() -> int:
    """Print what is wrong and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", nargs="*", help="files or folders (default: all)")
    files, for_users = tracked(parser.parse_args().places), pages_for_users()
    count = 0
    for path in files:
        is_for_users = path.resolve() in for_users
        for line, problem in sorted(problems_of(path, is_for_users=is_for_users)):
            print(f"{path}:{line}: {problem}")
            count += 1
    print(f"check_prose: {len(files)} files, {count} problems")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
