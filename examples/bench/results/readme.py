"""The sections of README.md that are made from the records in this folder.

  python readme.py --check                  exit status 1 if README.md says something else
  python readme.py --write                  put them there

Each lies between two comments in README.md, of which the first names its file of records.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent
BENCH, README = RESULTS.parent, RESULTS.parents[2] / "README.md"
sys.path.append(str(BENCH / "net"))

import net_section  # noqa: E402

END = "<!-- end -->\n"
Record = dict[str, Any]
SECTIONS: dict[str, Callable[[list[Record]], str]] = {"net.jsonl": net_section.section}


def main() -> int:
    """Check or write; the exit status is 1 where they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--check", action="store_true", help="compare only")
    choice.add_argument("--write", action="store_true", help="replace the sections")
    arguments = parser.parse_args()
    text, different = README.read_text(), []
    for name in SECTIONS:
        made = replaced(text, name, section(name))
        different += [name] if made != text else []
        text = made
    names = ", ".join(different if different else SECTIONS)
    if arguments.write:
        README.write_text(text)
        print(f"{README.name}: results of {', '.join(SECTIONS)} written")
        return 0
    print(f"{README.name} {'disagrees' if different else 'agrees'} with {names}")
    return int(bool(different))


def section(name: str) -> str:
    """What README.md should say of a file of records."""
    return SECTIONS[name](read(name))


def read(name: str) -> list[Record]:
    """All records of a file in this folder."""
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def replaced(text: str, name: str, made: str) -> str:
    """The text with another section. Raises ValueError: a comment that marks it is not there."""
    mark = f"<!-- from examples/bench/results/{name} -->\n"
    before, begin, rest = text.partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{README}: expected {mark.strip()} ... {END.strip()}")
    return before + mark + made + END + after


if __name__ == "__main__":
    sys.exit(main())
