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


def problems_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, what is wrong) for one file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from _page_problems(text)
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
    files = tracked(parser.parse_args().places)
    count = 0
    for path in files:
        for line, problem in sorted(problems_of(path)):
            print(f"{path}:{line}: {problem}")
            count += 1
    print(f"check_prose: {len(files)} files, {count} problems")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
