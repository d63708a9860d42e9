"""Preview every codec on rows that a training really sent: bytes, decibels, time, break-even link.

examples:
  python -m trec_qcomm preview --rows rows.pt
  python -m trec_qcomm preview --rows rows.pt --codecs int4,int2,bound1% --top 30
  python -m trec_qcomm preview --rows rows.pt --codec '{codec: topk, density: 0.1}'
  python -m trec_qcomm preview --rows rows.pt --out preview.jsonl

--rows is a file that QComm.capture_rows(steps, gradients=True) saved, or any that
python -m trec_qcomm analyze takes. Where it has gradients, they are shown, too. `print(
qcomm.preview(20))` shows the same in a training that runs.

  rows        those that are sent, of all: rows that repeat are sent once (unique_bags, --all-rows)
  KB          encoded, without frame headers; saved KB and ratio are against float32 of these rows
  dB          signal to noise: 10 log10(sum of x^2 / sum of squared errors); 6 dB more are half the
              error. It tells how precise rows are, not whether the model's quality stays
  ms          of one thread of this machine's CPU, just measured: other machines, and GPUs, differ
  pays below  the link below which encoding, sending and decoding takes less time than float32:
              H (1 - 1/ratio), where H is the speed of encoding and decoding together

A codec is timed on its table alone, 1 MiB or more in a call, and nothing overlaps with it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trec_qcomm.lab.preview.candidates import NAMES, candidates
from trec_qcomm.lab.preview.file import load_captured
from trec_qcomm.lab.preview.previews import make_preview
from trec_qcomm.lab.records import append


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trec_qcomm preview",
        description=(__doc__ or "").replace("%", "%%"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=Path, required=True, metavar="ROWS.pt", help="rows by table")
    add(
        "--codecs", type=names, default=NAMES, metavar="A,B",
        help=f"of {', '.join(NAMES)}; default all".replace("%", "%%"),
    )  # fmt: skip
    add(
        "--codec", action="append", default=[], metavar="YAML",
        help="another codec, as a config has it; may be given repeatedly",
    )  # fmt: skip
    add("--top", type=int, default=10, metavar="N", help="tables to show (default 10)")
    add("--batch", type=int, default=2048, help="rows a batch; lists are batches as they are")
    add("--all-rows", action="store_true", help="rows that repeat in a batch are sent repeatedly")
    add("--out", type=Path, metavar="FILE.jsonl", help="append a record for each table and codec")
    return parser


def run(arguments: argparse.Namespace) -> str:
    """Measure, print the tables, and return the last line.

    Raises: ValueError naming the option, the file and its field, or the codec.
    """
    for option in ("top", "batch"):
        if getattr(arguments, option) < 1:
            raise ValueError(f"{option}: {getattr(arguments, option)} is not an integer >= 1")
    out: Path | None = arguments.out
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise ValueError(f"out {out}: expected a file in a folder that exists")
    captured = load_captured(arguments.rows, batch=arguments.batch)
    codecs = {
        direction: candidates(direction, names=arguments.codecs, more=arguments.codec)
        for direction in captured.blocks
    }
    preview = make_preview(captured, codecs, distinct_rows=not arguments.all_rows, progress=_tell)
    print(preview.text(top=arguments.top) + "\n")
    if out is not None:
        made = preview.records(arguments.rows.name)
        append(out, *made)
        print(f"wrote {len(made)} records to {out}")
    return (
        "Next: a codec for each table, and a config to train with: "
        f"python -m trec_qcomm analyze --data {arguments.rows} --out mine.yaml --link-gb-s 0.125"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Preview and return the exit status; 2 after a mistake in the command line."""
    parser = build_parser()
    arguments = parser.parse_args(words)
    try:
        print(run(arguments))
    except ValueError as error:
        parser.error(str(error))
    return 0


_LINE_END = "\x1b[K\r" if sys.stderr.isatty() else "\n"  # on a terminal each takes the last's place


def _tell(text: str) -> None:
    print(text, end=_LINE_END, file=sys.stderr, flush=True)


def names(text: str) -> tuple[str, ...]:
    """a,b -> ("a", "b"). What argparse calls an invalid value it calls by the function's name."""
    return tuple(text.split(","))


if __name__ == "__main__":
    sys.exit(main())
