"""The command line of a study: seeds, the folder of its records, and how it ends.

Knows: --seeds, --out, --stop-early, --jobs, Ctrl-C, trainings that failed, table.md. Does not know:
what is trained; options that it does not know go to the trainings.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from options import FAILED, INTERRUPTED

from trec_qcomm.lab.study import TrainingFailedError

T = TypeVar("T")


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that leaves what it does not know, abbreviations too, to the trainings."""
    return argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_seeds(parser: argparse.ArgumentParser, *, seeds: int, out: str) -> None:
    """Add --seeds and --out, with these defaults."""
    add = parser.add_argument
    add("--seeds", type=int, default=seeds, help=f"how many (default {seeds})")
    add("--out", type=Path, default=Path(out), help=f"folder (default {out})")


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add what says how quality.study runs the trainings: --stop-early and --jobs."""
    add = parser.add_argument
    add("--stop-early", action="store_true", help="end a config when its verdict is sure")
    add("--jobs", type=int, default=1, help="processes of one thread each (default 1)")


def run(
    parser: argparse.ArgumentParser,
    file: str,
    complete: Callable[[argparse.Namespace, Sequence[str], Path], T],
    show: Callable[[T, argparse.Namespace], None],
) -> int:
    """Run what is missing and show all.

    Args:
        file: name of the file of records in --out.
        complete: function that runs what this file lacks and returns what is to be shown. Args:
            the options, the words that the parser does not know, the path of the file.
        show: function that writes and prints it.
    Returns: the exit status: 0, 1 after a training that failed, 130 after Ctrl-C. A ValueError of
        `complete` ends the process with status 2.
    """
    arguments, rest = parser.parse_known_args()
    path: Path = arguments.out / file
    try:
        result = complete(arguments, rest, path)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {path}", file=sys.stderr)
        return INTERRUPTED
    except TrainingFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    show(result, arguments)
    return 0


def write_table(table: str, folder: Path) -> None:
    """Write the table of a study to table.md in the folder."""
    (folder / "table.md").write_text(table + "\n")
