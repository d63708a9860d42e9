"""Write one page of figures from records of measurements: JSON lines, told apart by their fields.

examples:
  python -m trec_qcomm.report runs/
  python -m trec_qcomm.report examples/bench/results/net.jsonl --out runs/net.html --title "Net"
  python -m trec_qcomm.report runs/ examples/criteo/results/dense.jsonl --png pictures/

Known are the records of examples/criteo/train.py and accuracy.py, of make bench-net and make
bench-codec, and of python -m trec_qcomm.simulate; of a folder all *.jsonl in it. A line that is
none of these is an error. A kind of picture that has no records is named, on the page and on
stderr.
The page needs nothing beside it; the PNGs are the same figures for elsewhere. Needs matplotlib
(pip install 'matplotlib>=3.8').
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trec_qcomm.report.figures import KINDS
from trec_qcomm.report.page import Drawn, page_html
from trec_qcomm.report.records import Record, read_all
from trec_qcomm.report.runs import Run, runs_of, told_apart
from trec_qcomm.report.style import Looks, matplotlib, render

_MODELLED = ("validation", "scale", "break_even")


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trec_qcomm.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("records", nargs="+", type=Path, metavar="FILE_OR_FOLDER", help="JSON lines")
    add("--out", type=Path, default=Path("report.html"), help="default report.html")
    add("--png", type=Path, metavar="FOLDER", help="default: a folder beside --out, STEM_png")
    add("--title", default="Compressed communication: what was measured", help="of the page")
    return parser


def run(arguments: argparse.Namespace) -> str:
    """Read, draw, write; returns the last line.

    Raises: ValueError naming the option, the file and its line, or what is missing.
    """
    out: Path = arguments.out
    png: Path = arguments.png or out.with_name(f"{out.stem}_png")
    if out.is_dir() or not out.parent.is_dir():
        raise ValueError(f"out {out}: expected a file in a folder that exists")
    if png.exists() and not png.is_dir():
        raise ValueError(f"png {png}: is not a folder")
    matplotlib()  # missing: said before any work
    records = read_all(arguments.records)
    runs, earlier = runs_of(records)
    png.mkdir(parents=True, exist_ok=True)
    drawn, missing = draw_all(records, runs, png)
    if not drawn:
        needs = "; ".join(f"{kind}: {what}" for kind, what in missing.items())
        raise ValueError(f"no figure can be made of these {len(records)} records. {needs}")
    text = page_html(
        arguments.title, drawn, records, missing=missing, notes=notes(records, runs, earlier)
    )
    out.write_text(text, encoding="utf-8")
    absent = f"; missing: {', '.join(missing)}" if missing else ""
    return (
        f"{out}: {len(drawn)} figures of {len(records)} records, {len(text.encode()) / 1e3:.0f} "
        f"KB, also as PNG in {png}{absent}"
    )


def draw_all(
    records: Sequence[Record], runs: Sequence[Run], png: Path | None
) -> tuple[list[Drawn], dict[str, str]]:
    """All figures, and by kind what would make the records of those that are missing."""
    modelled = [record["way"] for record in records if record.kind in _MODELLED]
    looks = Looks([*(run.way for run in runs), *modelled])
    drawn, missing = [], {}
    for number, kind in enumerate(KINDS, start=1):
        print(f"{number} of {len(KINDS)}: {kind.name}", file=sys.stderr, flush=True)
        figures = kind.build(records, runs, looks)
        drawn += [Drawn(figure, render(figure, png)) for figure in figures]
        if not figures:
            missing[kind.name] = kind.needs
            print(f"missing: {kind.name}; it needs {kind.needs}", file=sys.stderr, flush=True)
    return drawn, missing


def notes(records: Sequence[Record], runs: Sequence[Run], earlier: int) -> list[str]:
    """What was read and not drawn, or under another name."""
    found = []
    if earlier:
        found.append(f"{earlier} runs were measured again later in the files; the last one counts.")
    if apart := told_apart(runs):
        found.append(
            "One name stands for several configs in these records, so that each bears the "
            f"beginning of its config's SHA-256: {', '.join(apart)}."
        )
    if off := dict.fromkeys(run.way for run in runs if run.ne is None):
        found.append(
            "Scored with the codec off only (--eval-codec), and so not in quality against bytes: "
            f"{', '.join(off)}."
        )
    finished = {(r.file, r.get("name")) for r in records if r.kind == "training"}
    progress = [(r.file, r.get("name")) for r in records if r.kind == "progress"]
    if progress:
        found.append(f"{len(progress)} lines of progress are not drawn: final records have it all.")
    open_ended = dict.fromkeys(str(n or f) for f, n in progress if (f, n) not in finished)
    if open_ended:
        found.append(f"Without a final record, and so in no figure: {', '.join(open_ended)}.")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """As the command line says; a mistake in it, or in a record, ends with status 2."""
    parser = build_parser()
    arguments = parser.parse_args(words)
    try:
        print(run(arguments))
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
