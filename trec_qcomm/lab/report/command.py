"""Write one page of figures from records of measurements, the JSON lines of trec_qcomm.lab.records.

examples:
  python -m trec_qcomm report runs/
  python -m trec_qcomm report examples/bench/results/net.jsonl --out runs/net.html --title "Net"
  python -m trec_qcomm report runs/ examples/criteo/results/dense.jsonl --png pictures/

Your training can write such a record with records.TrainingRecord.from_qcomm and records.append. All
*.jsonl of a folder are read. A line that is no record is an error. The page is one file that needs
no other file. --png writes the same figures as PNGs. Needs matplotlib (pip install
'matplotlib>=3.8').
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from trec_qcomm.lab.command_line import check_out, parser_of, run_tool
from trec_qcomm.lab.records import read_all
from trec_qcomm.lab.report.figures import figures_of
from trec_qcomm.lab.report.page import write_page
from trec_qcomm.lab.report.style import matplotlib


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = parser_of("report", __doc__)
    add = parser.add_argument
    add("records", nargs="+", type=Path, metavar="FILE_OR_FOLDER", help="JSON lines")
    add("--out", type=Path, default=Path("report.html"), help="default report.html")
    add("--png", type=Path, metavar="FOLDER", help="default: a folder beside --out, STEM_png")
    add("--title", default="Compressed communication: what was measured", help="of the page")
    return parser


def run(arguments: argparse.Namespace) -> str:
    """Read, draw and write; return the line to print.

    Raises: ValueError: a mistake; the error names the option, the file and line, or what is
        missing.
    """
    out: Path = arguments.out
    png: Path = arguments.png or out.with_name(f"{out.stem}_png")
    check_out(out)
    if png.exists() and not png.is_dir():
        raise ValueError(f"png {png}: is not a folder; name a folder")
    matplotlib()  # missing: said before any work
    records = read_all(arguments.records)
    figures = figures_of(records)
    if not figures:
        raise ValueError(f"no figure can be made of these {len(records)} records")
    return write_page(arguments.title, figures, records, out=out, png=png)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run_tool(build_parser(), words, run)
