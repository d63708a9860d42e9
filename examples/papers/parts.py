"""Parts of a paper's script: an experiment each, with a file of records and the claims they decide.

Knows: files of records, what a part has to offer. Does not know: what is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from examples.papers.claims import Claim
from examples.papers.pages import Draw

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks of a part.

    Args:
        seeds: number of seeds from 0; None is the part's own number.
        jobs: number of processes.
        words: options of train.py, for the parts that train.
    """

    seeds: int | None = None
    jobs: int = 1
    words: Sequence[str] = ()


class Part(Protocol):
    """An experiment of a paper's script."""

    @property
    def name(self) -> str:
        """Name on the command line, and of the file of records."""

    @property
    def title(self) -> str:
        """What it measures and how long that takes, on one line."""

    @property
    def committed(self) -> Path:
        """File of the records that the table of the documents is made from."""

    def run(self, path: Path, request: Request) -> None:
        """Measure what `path` lacks, and append it there a record at a time.

        Raises: ValueError: an option that the part cannot take, or records of another setup.
        """

    def claims(self, path: Path) -> list[Claim]:
        """Return the claims that the records decide; none where there are no records."""


@dataclass(frozen=True)
class Paper:
    """A published system.

    Args:
        name: name of the script.
        title: authors, title, year.
        parts: experiments in the order of the table.
        draw: figures of the records; None where the script draws none.
    """

    name: str
    title: str
    parts: Sequence[Part]
    draw: Draw | None = None

    def claims(self) -> list[Claim]:
        """Return the claims as the committed records decide them."""
        return [claim for part in self.parts for claim in part.claims(part.committed)]


def records_of(part: Part, folder: Path | None) -> Path:
    """Return the file of a part's records in a folder; None: the committed ones."""
    return part.committed if folder is None else folder / f"{part.name}.jsonl"


def add_arguments(parser: argparse.ArgumentParser, paper: Paper) -> None:
    """Add what all scripts of papers take."""
    add = parser.add_argument
    names = [part.name for part in paper.parts]
    add("--parts", nargs="+", choices=names, default=names, help="default: all")
    add("--seeds", type=int, help="how many, from 0 (default: as many as the table has)")
    add("--jobs", type=int, default=1, help="processes of one thread each (default 1)")
    add(
        "--show",
        action="store_true",
        help="measure nothing: show what the records say, those of the table or of --out",
    )
    add(
        "--out",
        type=Path,
        help=f"folder of records (default {default_folder(paper)}); the same command goes on there",
    )
    if paper.draw is not None:
        add(
            "--report",
            type=Path,
            metavar="FILE",
            help="page of figures, and a folder of PNGs beside it (default: OUT/report.html after "
            "a run, none with --show)",
        )


def default_folder(paper: Paper) -> Path:
    """Return the folder of what is measured without --out."""
    return Path("runs/papers") / paper.name
