"""The command line of a paper's script: run what is missing, then print claims and verdicts.

Knows: parts, exit statuses. Does not know: what a part measures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.papers import pages
from examples.papers.claims import Claim, table
from examples.papers.parts import (
    Paper,
    Part,
    Request,
    add_arguments,
    default_folder,
    records_of,
)
from trec_qcomm import quality

FAILED, INTERRUPTED = 1, 130


def main(paper: Paper, doc: str) -> int:
    """Run a paper's script; the exit status is 1 after an error, 130 after Ctrl-C.

    Args:
        paper: the published system.
        doc: docstring of the script, which --help shows above the list of parts.
    """
    parser = _parser(paper, doc)
    arguments, words = parser.parse_known_args()
    if arguments.show and words:
        parser.error(f"{' '.join(words)}: --show measures nothing")
    if arguments.seeds is not None and arguments.seeds < 1:
        parser.error(f"--seeds {arguments.seeds}: expected 1 or more")
    chosen = [part for part in paper.parts if part.name in arguments.parts]
    folder = arguments.out
    page = getattr(arguments, "report", None)
    try:
        if page:
            pages.check(page)
        if not arguments.show:
            folder = folder or default_folder(paper)
            request = Request(seeds=arguments.seeds, jobs=arguments.jobs, words=words)
            _measure(chosen, folder, request)
        claims = [claim for part in chosen for claim in part.claims(records_of(part, folder))]
        drawn = _draw(paper, folder, page, is_run=not arguments.show)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {folder}", file=sys.stderr)
        return INTERRUPTED
    except quality.TrainingFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    print(_text(paper, claims))
    if drawn:
        print(drawn)
    if not arguments.show:
        (folder / "claims.md").write_text(_text(paper, claims))
        print(folder / "claims.md", end=": ")
    print(f"{len(claims)} claims of {len(chosen)} parts")
    return 0


def _measure(parts: Sequence[Part], folder: Path, request: Request) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(parts, start=1):
        title = f"{part.name} ({number} of {len(parts)} parts): {part.title}"
        print(title, file=sys.stderr, flush=True)
        part.run(records_of(part, folder), request)


def _draw(paper: Paper, folder: Path | None, page: Path | None, *, is_run: bool) -> str:
    """Draw the page that was asked for, or that of a run; return a line to print, or nothing."""
    if paper.draw is None or (page is None and not is_run):
        return ""
    drawing = paper.draw({part.name: records_of(part, folder) for part in paper.parts})
    if page is not None:
        return pages.write_page(paper.title, drawing, page)
    assert folder is not None
    try:
        return pages.write_page(paper.title, drawing, folder / "report.html")
    except ValueError as error:  # the records are there, the page can be drawn later
        return f"no page: {error}"


def _text(paper: Paper, claims: Sequence[Claim]) -> str:
    return f"## {paper.title}\n\n{table(claims)}\n"


def _parser(paper: Paper, doc: str) -> argparse.ArgumentParser:
    width = max(len(part.name) for part in paper.parts)
    parts = "\n".join(f"  {part.name:{width}}  {part.title}" for part in paper.parts)
    parser = argparse.ArgumentParser(
        description=f"{doc}\nParts:\n{parts}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_arguments(parser, paper)
    return parser
