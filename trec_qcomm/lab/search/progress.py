"""Progress of a search on stderr: its stage, steps done and left, time left of the stage."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from trec_qcomm.lab.study.progress import duration


class Progress:
    """Line on stderr that says how far a stage is; on a terminal it is written over and over."""

    def __init__(self, *, show: bool = True, file: TextIO | None = None) -> None:
        self._show, self._file = show, sys.stderr if file is None else file
        self._done, self._left, self._started = 0, 0, 0.0

    def begin(self, text: str, steps: int = 0) -> None:
        """Say what begins. Args: steps: number of its steps."""
        self._done, self._left, self._started = 0, steps, time.monotonic()
        self._say(f"search: {text}", end="\n")

    def step(self, text: str) -> None:
        """Say that a step is done, and how many are left."""
        self._done, self._left = self._done + 1, self._left - 1
        left = (time.monotonic() - self._started) / self._done * self._left
        end = "\033[K\r" if self._file.isatty() and self._left else "\n"
        self._say(f"search: {text}; {self._left} left, {duration(left)}", end=end)

    def _say(self, text: str, end: str) -> None:
        if self._show:
            print(text, end=end, file=self._file, flush=True)
