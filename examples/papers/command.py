"""The command line of a paper's script: run what is missing, then print claims and verdicts.

Knows: parts, exit statuses. Does not know: what a part measures.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from examples.papers.claims import table
from examples.papers.parts import Paper, Request, add_arguments, records_of
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
    folder: Path = arguments.out
    request = Request(seeds=arguments.seeds, jobs=arguments.jobs, words=words)
    if arguments.show and words:
        parser.error(f"{' '.join(words)}: --show measures nothing")
    chosen = [part for part in paper.parts if part.name in arguments.parts]
    claims = []
    try:
        for part in chosen:
            path = records_of(part, folder)
            if not arguments.show:
                print(f"{part.name}: {part.title}", file=sys.stderr, flush=True)
                part.run(path, request)
            claims += part.claims(path)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {folder}", file=sys.stderr)
        return INTERRUPTED
    except quality.TrainingFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    text = f"## {paper.title}\n\n{table(claims)}\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claims.md").write_text(text)
    print(f"{text}\n{len(claims)} claims of {len(chosen)} parts; {folder / 'claims.md'}")
    return 0


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
