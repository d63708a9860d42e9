"""What five papers claim, and what of it holds here: shows the claims, measures them anew.

  python -m examples.papers                             all claims, from the committed records
  python -m examples.papers dct kdd20                   those of two papers
  python -m examples.papers kdd20 --run --jobs 2 -- --data train.txt
                                                        measure them on your rows
  python -m examples.papers dct --studies bytes --run   one study
  python -m examples.papers kdd20 --run --seeds 2 --out runs/toy -- --rows 4096
                                                        a few synthetic rows
  python -m examples.papers kdd20 --out runs/toy        the claims that those records decide
  python -m examples.papers --check                     compare the tables of README.md; or --write

What is measured is one record a line in OUT/PAPER. After Ctrl-C the same command goes on; what is
recorded is not measured again. Options after -- are those of examples/criteo/train.py. Without
--data the rows are synthetic, and the figures not those of the page.

Papers and their studies; --run does not measure those with a *, README.md says what does:
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.papers import page
from examples.papers.claims import HEAD, PAPERS, VERDICTS, Paper, read_paper, table
from trec_qcomm import quality

FAILED, INTERRUPTED = 1, 130


def main(words: Sequence[str]) -> int:
    """Show, measure or check.

    Args: words: the command line.
    Returns: the exit status: 1 after an error or where the page differs, 130 after Ctrl-C.
    """
    ours, rest = list(words), []
    if "--" in ours:
        ours, rest = ours[: ours.index("--")], ours[ours.index("--") + 1 :]
    papers = [read_paper(name) for name in PAPERS]
    parser = _parser(papers)
    arguments = parser.parse_args(ours)
    chosen, folder = _chosen(parser, arguments, papers), arguments.out
    studies = arguments.studies
    try:
        if arguments.check or arguments.write:
            return _page(papers, write=arguments.write)
        if arguments.run:
            folder = folder or Path("runs/papers")
            _run(chosen, studies, folder, (arguments.seeds, arguments.jobs, rest))
        elif rest or arguments.seeds:
            raise ValueError(f"{' '.join(rest) or '--seeds'}: nothing is measured without --run")
        rows = {paper.name: paper.rows(folder, studies) for paper in chosen}
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {folder}", file=sys.stderr)
        return INTERRUPTED
    except quality.TrainingFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    for paper in chosen:
        print(f"## {paper.title}\n\n{table(HEAD, rows[paper.name])}\n")
    counts = Counter(row[4].strip("*") for each in rows.values() for row in each)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    if folder:
        print(f"Settings are those of the page; records in {folder} have the options of the run.")
    print(f"{counts.total()} claims of {folder or 'the committed records'}: {told}")
    return 0


def _run(
    papers: Sequence[Paper], studies: Sequence[str] | None, folder: Path, request: tuple[Any, ...]
) -> None:
    """Run the studies that can be run. Raises ValueError: there are none."""
    from examples.papers.run import Request, run  # takes seconds, and what only shows needs it not

    wanted = [(paper, name, study) for paper in papers for name, study in paper.studies.items()
              if (name in studies if studies else study.run)]  # fmt: skip
    for paper, name, study in wanted:
        if not study.run:
            raise ValueError(f"study {paper.name}/{name}: --run does not measure it, see README.md")
    if not wanted:
        raise ValueError("--run measures no study of these papers, see README.md")
    for number, (paper, name, study) in enumerate(wanted, start=1):
        title = f"[{number}/{len(wanted)}] {paper.name}/{name}: {study.about}"
        print(title, file=sys.stderr, flush=True)
        run(paper, name, paper.path(name, folder), Request(*request))


def _page(papers: Sequence[Paper], *, write: bool) -> int:
    """Compare the page's tables with those of the records, or put them right."""
    text = page.PAGE.read_text()
    made = page.generated(text, papers)
    if write:
        page.PAGE.write_text(made)
    same = "all tables agree with the records"
    print(same if made == text else f"{page.PAGE}: {'written' if write else 'differs; --write'}")
    return int(made != text and not write)


def _chosen(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, papers: Sequence[Paper]
) -> list[Paper]:
    unknown = [name for name in arguments.paper if name not in PAPERS]
    if unknown:
        parser.error(f"paper {unknown[0]}: expected one of {', '.join(PAPERS)}")
    chosen = [paper for paper in papers if not arguments.paper or paper.name in arguments.paper]
    names = {name for paper in chosen for name in paper.studies}
    unknown = [name for name in arguments.studies or () if name not in names]
    if unknown:
        parser.error(f"study {unknown[0]}: expected some of {', '.join(sorted(names))}")
    if arguments.seeds is not None and arguments.seeds < 1:
        parser.error(f"--seeds {arguments.seeds}: expected 1 or more")
    return chosen


def _parser(papers: Sequence[Paper]) -> argparse.ArgumentParser:
    listed = (
        f"  {paper.name:8} {paper.title}\n           "
        + " ".join(name + "*" * (not study.run) for name, study in paper.studies.items())
        for paper in papers
    )
    parser = argparse.ArgumentParser(
        prog="python -m examples.papers",
        description=f"{__doc__}\n" + "\n".join(listed),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("paper", nargs="*", metavar="PAPER", help=f"{', '.join(PAPERS)}; default: all")
    add("--studies", nargs="+", metavar="STUDY", help="default: all, with --run all without a *")
    add("--run", action="store_true", help="measure what OUT lacks, then show what it decides")
    add("--seeds", type=int, help="how many, from 0 (default: as many as the study has)")
    add("--jobs", type=int, default=1, help="processes of one thread each (default 1)")
    add("--out", type=Path, help="folder of records (default with --run: runs/papers)")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="status 1 if README.md differs")
    choice.add_argument("--write", action="store_true", help="put README.md right")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
