"""Progress of a study on stderr: runs done, runs left at most, time left."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from trec_qcomm.lab.records import StudyRecord


class Progress:
    """Line on stderr that says how far a study is.

    On a terminal it is written over and over; elsewhere there is one line a run.
    """

    def __init__(self, name: str, *, may_stop_early: bool, file: TextIO | None = None) -> None:
        self._name, self._most = name, "at most " * may_stop_early
        self._file = sys.stderr if file is None else file
        self._started, self._done = time.monotonic(), 0

    def ran(self, record: StudyRecord, num_missing: int) -> None:
        """Say that a run is done, and how many are missing now."""
        self._done += 1
        left = (time.monotonic() - self._started) / self._done * num_missing
        line = (
            f"{self._name}: seed {record.seed}, {record.configuration}; {self._done} done, "
            f"{self._most}{num_missing} left, {self._most}{duration(left)}"
        )
        end = "\033[K\r" if self._file.isatty() else "\n"
        print(line, end=end, file=self._file, flush=True)

    def close(self) -> None:
        """End the line on a terminal."""
        if self._done and self._file.isatty():
            print(file=self._file)


def duration(seconds: float) -> str:
    """Return a duration in its largest unit: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
