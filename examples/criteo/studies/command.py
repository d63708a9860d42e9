"""The command line of accuracy.py and length.py: their common options, and how they end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ranks import FAILED, INTERRUPTED

from trec_qcomm import quality


def parser_of(description: str | None, *, seeds: int, out: str) -> argparse.ArgumentParser:
    """Return a parser of the common options. Args: seeds, out: their defaults."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--configs", nargs="+", required=True, help="YAML files, or names of configs that ship")
    add("--seeds", type=int, default=seeds, help=f"how many (default {seeds})")
    add("--jobs", type=int, default=1, help="processes of one thread each (default 1)")
    add("--out", type=Path, default=Path(out), help=f"default {out}")
    return parser


def run(
    parser: argparse.ArgumentParser,
    records: str,
    study_of: Callable[[argparse.Namespace, Sequence[str]], dict[str, Any]],
    show: Callable[[argparse.Namespace, dict[str, Any], Path], None],
) -> int:
    """Run what is missing and show all; the exit status is 1 after an error, 130 after Ctrl-C.

    Args:
        records: name of the file of records in --out.
        study_of: function of the options, and of the words that the parser does not know, that
            returns what quality.study takes. A ValueError is a mistake in the command line.
        show: function that runs and shows a study.
    """
    arguments, rest = parser.parse_known_args()
    path = arguments.out / records
    try:
        show(arguments, study_of(arguments, rest), path)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {path}", file=sys.stderr)
        return INTERRUPTED
    except quality.TrainingFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return 0
