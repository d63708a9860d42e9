"""Measure the bytes of segments of each table, for the planner's estimator and the simulation.

examples:
  python -m trec_qcomm sizes --data rows.pt --configs best.yaml fast.yaml --out sizes.jsonl
  python -m trec_qcomm sizes --data rows.pt --configs best.yaml --out sizes.jsonl \\
      --setup batch_size=2048 embedding_dim=64

--data is a file of `qcomm.capture_rows(20, gradients=True)`, from a training with tables whole on a
rank, cut by columns, or two-level. For each configuration, one record of kind table_sizes is
appended to --out. A record has bytes and counts, but no values of rows, so you may keep and show
it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from trec_qcomm.config import read_config
from trec_qcomm.lab.command_line import parser_of, run_tool
from trec_qcomm.lab.records import Environment, append
from trec_qcomm.lab.sizes.measured import measure_sizes


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = parser_of("sizes", __doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="ROWS.pt", help="of QComm.capture_rows")
    add("--configs", nargs="+", required=True, metavar="FILE.yaml", help="or names of presets")
    add("--out", type=Path, required=True, metavar="FILE.jsonl", help="records are appended")
    add("--setup", nargs="*", default=[], metavar="NAME=VALUE", help="of the training")
    return parser


def run(arguments: argparse.Namespace) -> str:
    """Measure and write; return a line for each configuration."""
    setup, lines = dict(map(_setup, arguments.setup)), []
    for name in arguments.configs:
        record = measure_sizes(
            arguments.data,
            read_config(name),
            configuration=Path(name).stem,
            setup=setup,
            environment=Environment.current(),
        )
        append(arguments.out, record)
        sent = sum(t.num_distinct for t in record.tables.values())
        bags = sum(t.num_bags for t in record.tables.values())
        lines.append(
            f"{record.configuration}: {len(record.tables)} tables, {sent / bags:.1%} of bags "
            f"distinct; {arguments.out}"
        )
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run_tool(build_parser(), words, run)


def _setup(word: str) -> tuple[str, int | str]:
    """NAME=VALUE -> (name, value). Raises ValueError: no =."""
    name, equals, value = word.partition("=")
    if not name or not equals:
        raise ValueError(f"setup: {word!r} is not NAME=VALUE")
    return name, int(value) if value.isdigit() else value
