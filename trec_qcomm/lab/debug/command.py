"""Find where precision is lost, in what the numeric debugger recorded.

examples:
  python -m trec_qcomm debug show runs/debug
  python -m trec_qcomm debug compare runs/exact runs/coded
  python -m trec_qcomm report runs/debug

A folder holds debug-rank0.jsonl, debug-rank1.jsonl and so on, which `debug:` in a config or
`with qcomm.debug(...)` makes a training write. `show` says what is wrong in one run, the first
first; `compare` where two runs differ. Exit status: 0 nothing, 1 something, 2 a mistake in the
command line or the files.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trec_qcomm.lab.debug.recorded.compare import compare
from trec_qcomm.lab.debug.recorded.run import read_run
from trec_qcomm.lab.debug.recorded.text import compare_text, show_text, wrong_of

_SHOW = """What stands out in one run, since which step, and what to do; and the noisiest tables.

NaN, codecs that break their promise, rows that arrive otherwise than they were sent, tables that
jump, residuals that grow without end, values lost beside larger ones, tables far noisier than
others. Of all ranks, whose files must be in the folder.
"""
_COMPARE = """Where run B differs from run A: the first step and place.

A and B are a good and a bad run, or an exact and a coded one, with the same seed and `every`. A
difference counts from a factor of 2, 6 dB or a quarter of all values on.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trec_qcomm debug",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="show | compare")
    raw = argparse.RawDescriptionHelpFormatter
    one = commands.add_parser(
        "show", description=_SHOW, help="what is wrong in one run", formatter_class=raw
    )
    one.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the run")
    both = commands.add_parser(
        "compare", description=_COMPARE, help="where two runs differ", formatter_class=raw
    )
    both.add_argument("a", type=Path, metavar="A", help="folder of the good or exact run")
    both.add_argument("b", type=Path, metavar="B", help="folder of the bad or coded run")
    for command in (one, both):
        command.add_argument(
            "--top", type=int, default=10, metavar="N", help="lines to show (default 10)"
        )
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print what was asked for; return the exit status.

    Raises: ValueError naming the option, the folder, or the file and its line.
    """
    if arguments.top < 1:
        raise ValueError(f"top: {arguments.top} is not an integer >= 1")
    if arguments.command == "show":
        shown = read_run(arguments.folder)
        print(show_text(shown, top=arguments.top))
        return int(bool(wrong_of(shown)))
    a, b = read_run(arguments.a), read_run(arguments.b)
    comparison = compare(a, b)
    print(compare_text(a, b, comparison, top=arguments.top))
    return int(bool(comparison.first))


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status."""
    parser = build_parser()
    arguments = parser.parse_args(words)
    try:
        return run(arguments)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
