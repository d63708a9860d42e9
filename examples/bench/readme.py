"""The sections of README.md, and of that of the benches, that are made from records in results/.

  python -m examples.bench.readme --check        exit status 1 if a page says something else
  python -m examples.bench.readme --write        put them there

Each lies between two comments of its page, of which the first names its file of records.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from examples.bench.codecs import table as codec_table
from examples.bench.net import plans_section
from examples.bench.net import section as net_section
from trec_qcomm.lab import records
from trec_qcomm.lab.records import NetworkRecord

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parents[1]
RESULTS = BENCH / "results"
END = "<!-- end -->\n"


@dataclass(frozen=True)
class Section:
    """A part of a page, made from a file of records.

    Args:
        page: file of the page.
        records: name of the file of records in results/.
        make: records -> markdown.
    """

    page: Path
    records: str
    make: Callable[[Sequence[Any]], str]

    def made(self) -> str:
        """Return the section as the records say."""
        return self.make(records.read(RESULTS / self.records))


IN_SHORT = {
    "table_wise": ("stock", "stock_int8", "stock_powersgd", "int8", "fast", "best"),
    "row_wise": ("stock", "int8", "fast", "best"),
}
RATES_IN_SHORT = ("25mbit", "100mbit", "1gbit", "none")


def networks_in_short(all_records: Sequence[NetworkRecord]) -> str:
    """Return one table of a few configurations on 2 hosts by plan, without its last column, NE.

    Raises: ValueError: one of them was not measured.
    """
    lines: list[str] = []
    chosen: list[NetworkRecord] = []
    for plan, names in IN_SHORT.items():
        of_plan = [
            r
            for r in all_records
            if r.num_hosts == 2 and r.configuration in names and r.setup["plan"] == plan
        ]
        missing = set(names) - {r.configuration for r in of_plan}
        if missing:
            raise ValueError(f"links.jsonl: no record of {plan}, {', '.join(sorted(missing))}")
        head, rule, *rows = net_section.table(of_plan, RATES_IN_SHORT).splitlines()
        lines += [] if lines else [head.replace(", table_wise", ""), rule]
        lines += [row.replace("| `", f"| {plan.replace('_', '-')}, `", 1) for row in rows]
        chosen += of_plan
    table = "\n".join(line.rsplit("|", 2)[0] + "|" for line in lines)
    return f"{table}\n\n{net_section.made_with(chosen)}\n"


SECTIONS = (
    Section(ROOT / "README.md", "links.jsonl", networks_in_short),
    Section(BENCH / "README.md", "links.jsonl", net_section.section),
    Section(BENCH / "README.md", "links_planned.jsonl", net_section.section),
    Section(BENCH / "README.md", "links_4_hosts.jsonl", net_section.section),
    Section(BENCH / "README.md", "plans_4_hosts.jsonl", plans_section.section),
    Section(BENCH / "README.md", "placements_4_hosts.jsonl", plans_section.section),
    Section(BENCH / "README.md", "dcn.jsonl", net_section.section),
    Section(BENCH / "README.md", "sequences.jsonl", net_section.section),
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
    """Return the text with that section made anew. Raises ValueError: its comments are absent."""
    mark = f"<!-- from examples/bench/results/{section.records} -->\n"
    before, begin, rest = text.partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{section.page}: expected {mark.strip()} ... {END.strip()}")
    return before + mark + section.made() + END + after


if __name__ == "__main__":
    sys.exit(main())
