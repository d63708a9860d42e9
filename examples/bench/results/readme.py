"""The sections of README.md, and of the one above, that are made from the records in this folder.

  python readme.py --check                  exit status 1 if a page says something else
  python readme.py --write                  put them there

Each lies between two comments of its page, of which the first names its file of records.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent
BENCH, ROOT = RESULTS.parent, RESULTS.parents[2]
sys.path += [str(BENCH), str(BENCH / "net"), str(BENCH / "codec")]

import codec_table  # noqa: E402
import net_section  # noqa: E402
from json_lines import read  # noqa: E402

END = "<!-- end -->\n"
Record = dict[str, Any]


IN_SHORT = ("stock", "stock_int8", "int8", "int4", "unique_int4", "best")


@dataclass(frozen=True)
class Section:
    """What `make` says of all records of a file, on a page."""

    page: Path
    records: str
    make: Callable[[list[Record]], str]

    def made(self) -> str:
        return self.make(read(RESULTS / self.records))


def networks_in_short(records: list[Record]) -> str:
    """Return the tables of a few configurations on 2 hosts, without their last column, NE."""
    chosen = [r for r in records if r["hosts"] == 2 and r["way"] in IN_SHORT]
    missing = set(IN_SHORT) - {r["way"] for r in chosen}
    if missing:
        raise ValueError(f"net.jsonl: no record of {', '.join(sorted(missing))}")
    lines = net_section.section(chosen).splitlines()
    return "".join(f"{x.rsplit('|', 2)[0]}|\n" if x.startswith("|") else f"{x}\n" for x in lines)


SECTIONS = (
    Section(ROOT / "README.md", "net.jsonl", networks_in_short),
    Section(BENCH / "README.md", "net.jsonl", net_section.section),
    Section(BENCH / "README.md", "codec.jsonl", partial(codec_table.section, dims=(64, 16))),
)


def main() -> int:
    """Check or write; the exit status is 1 where they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--check", action="store_true", help="compare only")
    choice.add_argument("--write", action="store_true", help="replace the sections")
    arguments = parser.parse_args()
    different = []
    for section in SECTIONS:
        text = section.page.read_text()
        made = replaced(text, section)
        if made != text:
            different.append(f"{section.page.relative_to(ROOT)} with {section.records}")
            if arguments.write:
                section.page.write_text(made)
    done = "written" if arguments.write else "differs"
    print(f"{done}: {', '.join(different)}" if different else "all sections agree with the records")
    return int(bool(different) and arguments.check)


def replaced(text: str, section: Section) -> str:
    """The text with that section made anew. Raises ValueError: its comments are not there."""
    mark = f"<!-- from examples/bench/results/{section.records} -->\n"
    before, begin, rest = text.partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{section.page}: expected {mark.strip()} ... {END.strip()}")
    return before + mark + section.made() + END + after


if __name__ == "__main__":
    sys.exit(main())
