"""The parts that measure without training: named cases, each a line of numbers in a file.

Knows: files of JSON lines, which cases are missing. Does not know: what a case measures.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.papers.claims import Claim
from examples.papers.parts import Request

Values = Mapping[str, float]
FIELDS = {"case": str, "values": dict}


@dataclass(frozen=True)
class MeasuredPart:
    """An experiment of measured cases; a Part of a paper's script.

    Args:
        name: name of the part.
        title: what it measures and how long that takes.
        cases: request -> measurement by name of a case; each returns numbers by name.
        decide: numbers by case -> claims.
        committed: file of the committed records.
    """

    name: str
    title: str
    cases: Callable[[Request], Mapping[str, Callable[[], Values]]]
    decide: Callable[[Mapping[str, Values]], list[Claim]]
    committed: Path

    def run(self, path: Path, request: Request) -> None:
        """Measure the cases that the file lacks.

        Raises: ValueError: a line of the file is no measurement.
        """
        there = read(path)
        cases = self.cases(request)
        missing = {name: case for name, case in cases.items() if name not in there}
        for number, (name, case) in enumerate(missing.items(), start=1):
            print(f"{self.name}: {name} ({number} of {len(missing)})", file=sys.stderr, flush=True)
            append(path, name, case())

    def claims(self, path: Path) -> list[Claim]:
        values = read(path)
        return self.decide(values) if values else []


def append(path: Path, case: str, values: Values) -> None:
    """Append one line to a file, in one piece."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"case": case, "values": dict(values)}) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())
        os.fsync(file.fileno())


def read(path: Path) -> dict[str, Values]:
    """Return numbers by case; none where there is no file, the last line of a case counts.

    Raises: ValueError: a line is no measurement; it names file and line.
    """
    values: dict[str, Values] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            fields = json.loads(line)
            is_known = {key: type(value) for key, value in fields.items()} == FIELDS
            if not is_known or not all(
                isinstance(v, int | float) for v in fields["values"].values()
            ):
                raise ValueError("expected a case and numbers by name")
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: no measurement ({error})") from None
        values[fields["case"]] = fields["values"]
    return values
