"""Progress of a study or a search on stderr: steps done, steps left, time left."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """Lines on stderr that show progress; on a terminal one line is overwritten.

    Args: name: beginning of the lines.  most: "at most " if steps may be left out.
    """

    def __init__(
        self, name: str, *, most: str = "", show: bool = True, file: TextIO | None = None
    ) -> None:
        self._name, self._most, self._show = name, most, show
        self._file = sys.stderr if file is None else file
        self._done, self._left, self._started = 0, 0, time.monotonic()

    def begin(self, text: str, steps: int = 0) -> None:
        """Print the beginning. Args: steps: number of steps."""
        self._done, self._left, self._started = 0, steps, time.monotonic()
        self._say(text, "\n")

    def step(self, text: str, left: int | None = None) -> None:
        """Print that a step is done. Args: left: number of steps left, if not one fewer."""
        self._done, self._left = self._done + 1, self._left - 1 if left is None else left
        seconds = (time.monotonic() - self._started) / self._done * self._left
        counts = f"{self._done} done, {self._most}{self._left} left"
        end = "\033[K\r" if self._file.isatty() and self._left else "\n"
        self._say(f"{text}; {counts}, {self._most}{_duration(seconds)}", end)

    def close(self) -> None:
        """End the line on a terminal."""
        if self._done and self._left and self._file.isatty() and self._show:
            print(file=self._file)

    def _say(self, text: str, end: str) -> None:
        if self._show:
            print(f"{self._name}: {text}", end=end, file=self._file, flush=True)


def _duration(seconds: float) -> str:
    """Return a duration in its largest unit: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
