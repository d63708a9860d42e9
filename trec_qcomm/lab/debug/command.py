"""Find where precision is lost, in records of the numeric debugger.

examples:
  python -m trec_qcomm debug runs/debug
  python -m trec_qcomm report runs/debug

A folder holds debug-rank0.jsonl, debug-rank1.jsonl and so on. A training writes them if its config
has `debug:`, or inside `with qcomm.debug(...)`. The command shows what stands out, since which
step, and what to do; then the noisiest tables. These stand out: NaN, tables that jump, residuals
that grow without end, values lost beside larger ones, tables far noisier than others.
Exit status: 0 nothing stands out, 1 something, 2 a mistake in the command line or the files.
"""

from collections.abc import Sequence
from pathlib import Path

from trec_qcomm.lab.command_line import parser_of
from trec_qcomm.lab.debug.findings import findings
from trec_qcomm.lab.debug.recorded import read_run
from trec_qcomm.lab.debug.summary import run_summary


def main(words: Sequence[str] | None = None) -> int:
    """Print what one run shows and return the exit status."""
    parser = parser_of("debug", __doc__)
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER", help="folder of the run")
    add("--top", type=int, default=10, metavar="N", help="lines to show (default 10)")
    arguments = parser.parse_args(words)
    try:
        if arguments.top < 1:
            raise ValueError(f"top: {arguments.top} is not an integer >= 1")
        run = read_run(arguments.folder)
    except ValueError as error:
        parser.error(str(error))
    print(run_summary(run, top=arguments.top))
    return int(bool(findings(run.records)))
