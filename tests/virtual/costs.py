"""The table of what an exchange costs: costs.txt, which the test holds against the code.

python -m tests.virtual.costs            print what is counted now, and how the table differs
python -m tests.virtual.costs --write    write it to the table, also after a conflict
"""

import argparse
import os
from dataclasses import astuple, fields
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported

from tests.virtual.dry_run import Costs
from tests.virtual.exchanges import runs

TABLE = Path(__file__).with_name("costs.txt")
_NAMES = [field.name for field in fields(Costs)]


def read_table() -> dict[str, Costs]:
    """Return the table's rows by name."""
    _, *lines = TABLE.read_text().splitlines()
    rows = (line.split("|") for line in lines)
    return {name.strip(): Costs(*map(int, numbers.split())) for name, numbers in rows}


def table_of(costs: dict[str, Costs]) -> str:
    width = max(map(len, costs))
    lines = [f"{'':{width}} | {' '.join(f'{column:>4}' for column in _NAMES)}"]
    for name, row in costs.items():
        numbers = zip(astuple(row), _NAMES, strict=True)
        cells = " ".join(f"{number:{max(4, len(column))}}" for number, column in numbers)
        lines.append(f"{name:{width}} | {cells}")
    return "\n".join(lines) + "\n"


def differences(table: dict[str, Costs], measured: dict[str, Costs]) -> list[str]:
    """Return a line for each number that differs, and for each row that only one of them has."""
    lines = [f"{name}: only in one of them" for name in table.keys() ^ measured.keys()]
    for name in table.keys() & measured.keys():
        for column in _NAMES:
            old, new = getattr(table[name], column), getattr(measured[name], column)
            if old != new:
                lines.append(f"{name}: {column} {old} -> {new}")
    return sorted(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write costs.txt")
    options = parser.parse_args()
    measured = {name: run.costs for name, run in runs()}
    print(table_of(measured))
    if options.write:  # also over a table that cannot be read, as after a merge
        TABLE.write_text(table_of(measured))
    else:
        print("\n".join(differences(read_table(), measured)))


if __name__ == "__main__":
    main()
