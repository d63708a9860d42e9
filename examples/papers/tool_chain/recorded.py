"""The parts whose experiment is a command of examples/criteo, with a folder of its records.

Knows: commands, folders. Does not know: what they measure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.papers.claims import Claim
from examples.papers.parts import Request


@dataclass(frozen=True)
class RecordedPart:
    """An experiment that other commands run; a Part of a paper's script.

    The folder of its records is the path of a Part without its suffix.

    Args:
        name: name of the part.
        title: what it measures and how long that takes.
        measure: (folder, request) -> nothing; runs what the folder lacks.
        decide: folder -> claims; it exists.
        committed: folder of the committed records.
        trained: files there that have the seconds of the part's trainings.
    """

    name: str
    title: str
    measure: Callable[[Path, Request], None]
    decide: Callable[[Path], list[Claim]]
    committed: Path
    trained: Sequence[str] = ()

    def run(self, path: Path, request: Request) -> None:
        """Run the commands. Raises ValueError: one of them ends with an error."""
        folder = path.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        self.measure(folder, request)

    def claims(self, path: Path) -> list[Claim]:
        folder = path.with_suffix("")
        return self.decide(folder) if folder.is_dir() else []


def call(main: Callable[[], int], words: Sequence[str | Path]) -> None:
    """Run a script's main in this process, with a command line.

    Raises: ValueError: its exit status is not 0.  KeyboardInterrupt: it was interrupted.
    """
    before, sys.argv = sys.argv, [main.__module__, *map(str, words)]
    try:
        status = main()
    except SystemExit as stop:
        status = int(stop.code or 0)
    finally:
        sys.argv = before
    if status == 130:
        raise KeyboardInterrupt
    if status:
        raise ValueError(f"{main.__module__} {' '.join(map(str, words))}: exit status {status}")
