"""The tables of README.md, made from the committed records: claims of each paper, and times.

  python -m examples.papers.readme --check       exit status 1 if the page says something else
  python -m examples.papers.readme --write       put them there

Each lies between two comments of the page, of which the first names the paper's script, or times.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from examples.papers import times
from examples.papers.claims import table
from examples.papers.parts import Paper

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "README.md"
SCRIPTS = ("kdd20", "dct", "sc24", "zionex", "micro21")  # in the order of the page
END = "<!-- end -->\n"


def papers() -> list[Paper]:
    """Return the papers whose scripts are there."""
    names = [name for name in SCRIPTS if (FOLDER / f"{name}.py").exists()]
    return [import_module(f"examples.papers.{name}").PAPER for name in names]


def replaced(text: str, paper: Paper) -> str:
    """Return the page with a paper's table made anew.

    Raises: ValueError: its comments are absent.
    """
    return _replaced(text, f"<!-- claims of {paper.name}.py -->\n", table(paper.claims()))


def with_times(text: str, each: Sequence[Paper]) -> str:
    """Return the page with the table of times made anew.

    Raises: ValueError: its comments are absent.
    """
    return _replaced(text, "<!-- times -->\n", times.table(each))


def _replaced(text: str, mark: str, lines: str) -> str:
    before, begin, rest = text.partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: expected {mark.strip()} ... {END.strip()}")
    return f"{before}{mark}{lines}\n{END}{after}"


def main(words: Sequence[str] | None = None) -> int:
    """Check or write; the exit status is 1 where they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--check", action="store_true", help="compare only")
    choice.add_argument("--write", action="store_true", help="replace the tables")
    arguments = parser.parse_args(words)
    text = before = PAGE.read_text()
    different = []
    for paper in papers():
        made = replaced(text, paper)
        different += [paper.name] if made != text else []
        text = made
    made = with_times(text, papers())
    different += ["times"] if made != text else []
    text = made
    if arguments.write and text != before:
        PAGE.write_text(text)
    done = "written" if arguments.write else "differs"
    print(f"{done}: {', '.join(different)}" if different else "all tables agree with the records")
    return int(bool(different) and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
