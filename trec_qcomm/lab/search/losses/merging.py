"""Merging: whether equal bags of a table are sent once, by the rows that are left of them.

It changes no result, so bytes alone decide. One float32 training for each choice of `unique_bags`
counts the rows; ids that are not sent are fewer by as much.

Knows: debug records, `train`. Does not know: codecs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trec_qcomm.config import UniqueBagsChoice
from trec_qcomm.lab import records
from trec_qcomm.lab.records import Scalar, SearchRecord
from trec_qcomm.lab.search.choices import Pair, config_of_all
from trec_qcomm.lab.search.losses.noise import figures_of
from trec_qcomm.lab.search.losses.options import EXACT
from trec_qcomm.lab.search.losses.probes import debugged, read_records
from trec_qcomm.lab.search.progress import Progress
from trec_qcomm.lab.study.engine import Train

CHOICES: Mapping[str, UniqueBagsChoice] = {"off": False, "auto": "auto", "on": True}
NEVER_EXACT = "unique_bags: true for table"  # begins the message where merging would not be exact


@dataclass(frozen=True)
class RowCounts:
    """Rows that a rank sends in a step, by choice of `unique_bags` and table.

    Args: by_choice: rows by table for each of CHOICES; without "on" where it is refused.
    """

    by_choice: Mapping[str, Mapping[str, float]]

    def choices(self) -> dict[str, UniqueBagsChoice]:
        """Return the choice of each table that sends fewest rows; of equal ones the first."""
        tables = self.by_choice["auto"]
        names = {t: min(self.by_choice, key=lambda name: self.by_choice[name][t]) for t in tables}
        return {table: CHOICES[name] for table, name in names.items()}

    def share(self, table: str) -> float:
        """Return the rows that are sent at best over those that `auto` sends."""
        rows = [by_table[table] for by_table in self.by_choice.values()]
        return min(rows) / self.by_choice["auto"][table]


def count_rows(
    train: Train, seed: int, path: Path, *, every: int, setup: Mapping[str, Scalar], num_ranks: int,
    progress: Progress,
) -> RowCounts:  # fmt: skip
    """Run what is missing and return the rows of each choice.

    Raises: ValueError: a file of another search, or an error of the training.
    """
    done: dict[str, dict[str, float]] = {}
    for line in read_records(path, setup, num_ranks):
        if line.seed == seed:
            done.setdefault(str(line.codec), {})[str(line.table)] = line.figures.get("rows", 0.0)
    progress.begin("equal bags: a training for each choice", len(CHOICES.keys() - done))
    for name, choice in CHOICES.items():
        if name not in done:
            rows = _rows(train, choice, seed, path.parent, every)
            lines = [
                SearchRecord(
                    configuration="search", setup=setup, seed=seed, time=time.time(),
                    num_ranks=num_ranks, stage="merging", table=table, codec=name,
                    figures={} if rows is None else {"rows": rows[table]},
                )
                for table in (rows or {"*": 0.0})
            ]  # fmt: skip
            records.append(path, *lines)
            done[name] = rows or {}
            progress.step(f"equal bags: {name}" + (" is refused" if rows is None else ""))
    return RowCounts({name: done[name] for name in CHOICES if "*" not in done[name] and done[name]})


def _rows(
    train: Train, choice: UniqueBagsChoice, seed: int, folder: Path, every: int
) -> dict[str, float] | None:
    """Return the rows by table; None where the model cannot merge them exactly."""
    try:
        _, lines = debugged(train, config_of_all(Pair(), choice), seed, folder, every=every)
    except (ValueError, RuntimeError) as error:
        if choice is True and NEVER_EXACT in str(error):
            return None
        raise
    figures = figures_of(lines)
    return {table: numbers["rows"] for (table, direction, codec), numbers in figures.items()
            if (direction, codec) == ("forward", repr(EXACT))}  # fmt: skip
