"""Write one page of figures from records of measurements, the JSON lines of trec_qcomm.lab.records.

examples:
  python -m trec_qcomm report runs/
  python -m trec_qcomm report examples/bench/results/net.jsonl --out runs/net.html --title "Net"
  python -m trec_qcomm report runs/ examples/criteo/results/dense.jsonl --png pictures/

A training of yours leaves such a record with records.TrainingRecord.from_qcomm and records.append;
of a folder all *.jsonl in it are read. A line that is no record is an error. A kind of figure that
has no records is named, on the page and on stderr.
The page needs nothing beside it; the PNGs are the same figures for elsewhere. Needs matplotlib
(pip install 'matplotlib>=3.8').
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trec_qcomm.lab.records import (
    BreakEvenRecord,
    ProgressRecord,
    Record,
    ScaleRecord,
    TrainingRecord,
    ValidationRecord,
    read_all,
)
from trec_qcomm.lab.report.figures import FIGURE_KINDS
from trec_qcomm.lab.report.page import Drawn, page_html
from trec_qcomm.lab.report.runs import Run, renamed, runs_of
from trec_qcomm.lab.report.style import Looks, matplotlib, render

_PREDICTED = (ValidationRecord, ScaleRecord, BreakEvenRecord)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trec_qcomm report",
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
    """Read, draw and write; return the last line to print.

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
    """Return all figures, and what would make the records of the kinds that are missing."""
    predicted = [record.configuration for record in records if isinstance(record, _PREDICTED)]
    looks = Looks([*(run.configuration for run in runs), *predicted])
    drawn, missing = [], {}
    for number, kind in enumerate(FIGURE_KINDS, start=1):
        print(f"{number} of {len(FIGURE_KINDS)}: {kind.name}", file=sys.stderr, flush=True)
        figures = kind.build(records, runs, looks)
        drawn += [Drawn(figure, render(figure, png)) for figure in figures]
        if not figures:
            missing[kind.name] = kind.needs
            print(f"missing: {kind.name}; it needs {kind.needs}", file=sys.stderr, flush=True)
    return drawn, missing


def notes(records: Sequence[Record], runs: Sequence[Run], earlier: int) -> list[str]:
    """Return what was read and not drawn, or drawn under another name."""
    texts = []
    if earlier:
        texts.append(f"{earlier} runs were measured again later in the files; the last one counts.")
    if names := renamed(runs):
        texts.append(
            "One name stands for several configs in these records, so that each bears the "
            f"beginning of its config's SHA-256: {', '.join(names)}."
        )
    if unscored := dict.fromkeys(run.configuration for run in runs if run.ne is None):
        texts.append(
            'Without a metric "ne" that was measured with the codecs on, and so not in quality '
            f"against bytes: {', '.join(unscored)}."
        )
    trainings = [record for record in records if isinstance(record, TrainingRecord)]
    progress = [record for record in records if isinstance(record, ProgressRecord)]
    if progress:
        texts.append(f"{len(progress)} lines of progress are not drawn: final records have it all.")
    finished = {_training_name(record) for record in trainings}
    names_by_training = {_training_name(record): record.run for record in progress}
    unfinished = [str(n or key[0]) for key, n in names_by_training.items() if key not in finished]
    if unfinished:
        texts.append(f"Without a final record, and so in no figure: {', '.join(unfinished)}.")
    return texts


def _training_name(record: TrainingRecord | ProgressRecord) -> tuple[str, str | None]:
    return ("" if record.origin is None else record.origin.file, record.run)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command. A mistake in its words, or in a record, ends with status 2."""
    parser = build_parser()
    arguments = parser.parse_args(words)
    try:
        print(run(arguments))
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
