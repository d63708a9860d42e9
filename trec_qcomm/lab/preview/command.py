"""Try every codec on rows that a training really sent, and write the best one of each table.

examples:
  python -m trec_qcomm preview rows.pt
  python -m trec_qcomm preview rows.pt --codecs int4,int2,bound1% --top 30
  python -m trec_qcomm preview rows.pt --codec '{codec: topk, density: 0.1}'
  python -m trec_qcomm preview rows.pt --out mine.yaml --link-gb-s 1.25 --backward int8

FILE.pt is a file that QComm.capture_rows(steps, gradients=True) saved, or {"rows": {table: [n, dim]
float32, or a list of batches}} written by torch.save. Gradients are shown, too, if the file has
them. `print(qcomm.preview(20))` shows the same in a running training.

  rows        rows that are sent, of all rows: repeated rows are sent once (unique_bags, --all-rows)
  KB          encoded, without frame headers; saved KB and ratio are against float32 of these rows
  dB          signal to noise: 10 log10(sum of x^2 / sum of squared errors); 6 dB more are half the
              error. It tells how precise rows are, not whether the model's quality stays
  ms          of one thread of this machine's CPU, just measured: other machines, and GPUs, differ
  pays below  the link below which encoding, sending and decoding takes less time than float32:
              H (1 - 1/ratio), where H is the speed of encoding and decoding together

A codec is timed on its table alone, 1 MiB or more in a call, and nothing overlaps with it.

--out is a config for QComm.from_yaml, with the measurements in comments. Each table gets the
encoder that is fastest over the link, by its bytes and its time on these rows, or identity if
float32 is faster. Bounds above 0.01 cost quality on Criteo's rows.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from trec_qcomm.lab.command_line import check_out, parser_of, run_tool
from trec_qcomm.lab.preview.candidates import CODECS, NAMES, candidates
from trec_qcomm.lab.preview.choices import (
    ENCODERS,
    Options,
    choices_text,
    choose,
    config_text,
    summary,
)
from trec_qcomm.lab.preview.previews import load_captured, make_preview


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = parser_of("preview", __doc__)
    add = parser.add_argument
    add("rows", type=Path, metavar="FILE.pt", help="rows by table")
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
    add("--out", type=Path, metavar="FILE.yaml", help="the config to write; what follows is for it")
    add("--force", action="store_true", help="overwrite --out")
    add("--link-gb-s", type=float, default=0.125, help="GB/s a rank can send (default 0.125)")
    add("--encoders", type=names, default=ENCODERS, metavar="A,B", help="default: bitpack,rans")
    add("--backward", choices=CODECS["backward"], default="int4", help="codec of gradients")
    add("--bound", type=float, default=0.01, help="relative bound of rows (default 0.01)")
    return parser


def run(arguments: argparse.Namespace) -> str:
    """Measure, print the tables, write the config if asked, and return the last line.

    Raises: ValueError: a mistake; the error names the option, the file and field, or the codec.
    """
    options = read_options(arguments)
    out: Path | None = arguments.out
    check_out(out, force=arguments.force)
    captured = load_captured(arguments.rows, batch=arguments.batch)
    preview = make_preview(
        captured,
        {d: candidates(d, names=arguments.codecs, more=arguments.codec) for d in captured.blocks},
        more_forward={} if out is None else options.forward,
        distinct_rows=options.unique_bags,
        progress=partial(print, file=sys.stderr, flush=True),
    )
    print(preview.text(top=arguments.top) + "\n")
    if out is None:
        return (
            "Next: a codec for each table, and a config to train with: "
            f"python -m trec_qcomm preview {arguments.rows} --out mine.yaml --link-gb-s 0.125"
        )
    choices = [
        choose(figures, captured.blocks["forward"][figures.table], options)
        for figures in preview.tables["forward"]
    ]
    text = config_text(
        choices, options, source=arguments.rows.name, without_rows=captured.without_rows
    )
    out.write_text(text, encoding="utf-8")
    print(choices_text(choices) + "\n")
    return f"{summary(choices, captured.unit)}; wrote {out}"


def read_options(arguments: argparse.Namespace) -> Options:
    """Return the settings of the choices. Raises ValueError naming the option."""
    for option in ("top", "batch"):
        if getattr(arguments, option) < 1:
            raise ValueError(f"{option}: {getattr(arguments, option)} is not an integer >= 1")
    return Options(
        encoders=arguments.encoders,
        link_gb_s=arguments.link_gb_s,
        bound=arguments.bound,
        unique_bags=not arguments.all_rows,
        backward=CODECS["backward"][arguments.backward],
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run_tool(build_parser(), words, run)


def names(text: str) -> tuple[str, ...]:
    """Return a,b as ("a", "b"). argparse uses this function's name for invalid values."""
    return tuple(text.split(","))
