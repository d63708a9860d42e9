"""Choose a codec for every table, from rows that were really looked up.

examples:
  python -m trec_qcomm analyze --data rows.pt --out bounds.yaml
  python -m trec_qcomm analyze --data rows.pt --out bounds.yaml --link-gb-s 1.25 --backward int8
  python -m trec_qcomm analyze --data rows.pt --out bounds.yaml --bounds 0.01,0.03,0.05 --force

--data is a file that QComm.capture_rows saved, or {"rows": {table: [n, dim] float32, or a list of
batches}} written by torch.save. --out is a config for QComm.from_yaml, with what was measured in
comments. The encoder is the fastest over the link in a model that takes each encoder's ratio on
these rows and its speed on one thread of this machine; where float32 is faster, it is identity.
With three bounds a table whose rows quantization makes equal gets the tight one, and a table whose
rows all stay apart the loose one. Bounds above 0.01 cost quality on Criteo's rows.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trec_qcomm.codecs import Cast, Identity, Rowwise
from trec_qcomm.core.codec import Codec
from trec_qcomm.ext.dual_level.error_bound import BoundClasses
from trec_qcomm.lab.analyze.report import config_text, summary, table_text
from trec_qcomm.lab.analyze.rows import load_rows
from trec_qcomm.lab.analyze.tables import Options, TableResult, all_encoders, analyze_table

BACKWARD: dict[str, Codec] = {
    "fp32": Identity(),
    "bf16": Cast("bf16"),
    "fp16": Cast("fp16"),
    "int8": Rowwise(8),
    "int4": Rowwise(4, rounding="stochastic"),
    "int2": Rowwise(2, rounding="stochastic"),
}


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trec_qcomm analyze",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="ROWS.pt", help="rows by table")
    add("--out", type=Path, required=True, metavar="FILE.yaml", help="the config to write")
    add("--force", action="store_true", help="overwrite --out")
    add("--link-gb-s", type=float, default=0.125, help="GB/s a rank can send (default 0.125)")
    add("--encoders", type=names, default=all_encoders(), metavar="A,B", help="default: all")
    add("--backward", choices=BACKWARD, default="int4", help="codec of gradients (default int4)")
    add("--batch", type=int, default=2048, help="rows a batch; lists are batches as they are")
    add("--all-rows", action="store_true", help="rows that repeat in a batch are sent repeatedly")
    add(
        "--bounds",
        type=numbers,
        default=(0.01,),
        metavar="B or T,B,L",
        help="relative bound, or three: tight, base, loose (default 0.01)",
    )
    add(
        "--thresholds",
        type=numbers,
        default=(0.9, 0.98),
        metavar="T,L",
        help="of the index: tight below T, loose from L on (default 0.9,0.98)",
    )
    return parser


def run(arguments: argparse.Namespace) -> str:
    """Analyze, write the config, print the table; returns the last line.

    Raises: ValueError naming the option, or the file and its field.
    """
    options = read_options(arguments)
    out: Path = arguments.out
    if out.is_dir() or not out.parent.is_dir():
        raise ValueError(f"out {out}: expected a file in a folder that exists")
    if out.exists() and not arguments.force:
        raise ValueError(f"out {out}: exists; --force overwrites it")
    tables = load_rows(arguments.data, batch=arguments.batch)
    results: list[TableResult] = []
    for number, (table, batches) in enumerate(tables.batches.items(), start=1):
        progress = f"{number} of {len(tables.batches)}: {table}"
        print(progress, end=_LINE_END, file=sys.stderr, flush=True)
        results.append(analyze_table(table, batches, options))
    text = config_text(
        results, options, source=arguments.data.name, without_rows=tables.without_rows
    )
    out.write_text(text, encoding="utf-8")
    print(table_text(results, options))
    return summary(results, out)


def read_options(arguments: argparse.Namespace) -> Options:
    """Raises ValueError naming the option."""
    if arguments.batch < 1:
        raise ValueError(f"batch: {arguments.batch} is not an integer >= 1")
    if len(arguments.bounds) not in (1, 3):
        raise ValueError("bounds: expected one number or three, as in 0.01,0.03,0.05")
    if len(arguments.thresholds) != 2:
        raise ValueError("thresholds: expected two numbers, as in 0.9,0.98")
    tight, base, loose = arguments.bounds * (3 // len(arguments.bounds))
    tight_below, loose_from = arguments.thresholds
    classes = BoundClasses(
        tight=tight, base=base, loose=loose, tight_below=tight_below, loose_from=loose_from
    )
    return Options(
        encoders=arguments.encoders,
        link_gb_s=arguments.link_gb_s,
        classes=classes,
        unique_bags=not arguments.all_rows,
        backward=BACKWARD[arguments.backward],
    )


def main(words: Sequence[str] | None = None) -> int:
    """Analyze rows and return the exit status; 2 after a mistake in the command line."""
    parser = build_parser()
    arguments = parser.parse_args(words)
    try:
        print(run(arguments))
    except ValueError as error:
        parser.error(str(error))
    return 0


_LINE_END = "\x1b[K\r" if sys.stderr.isatty() else "\n"  # on a terminal each takes the last's place


def names(text: str) -> tuple[str, ...]:
    """a,b -> ("a", "b"). What argparse calls an invalid value it calls by the function's name."""
    return tuple(text.split(","))


def numbers(text: str) -> tuple[float, ...]:
    """0.1,2 -> (0.1, 2.0). Raises ValueError: what is no number."""
    return tuple(float(number) for number in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
