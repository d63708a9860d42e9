"""One rank of a long training: each step's loss, and the memory of its process, in a file.

A line of the file is "PROCESS STEP LOSS MEMORY", the loss with all its bits, the memory in KiB.

    python -m tests.chaos.rank FILE PAUSE [argument of train.py ...]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "criteo"


class Step(NamedTuple):
    """One step that a process took. loss: of this rank, as float.hex writes it."""

    process: int
    number: int
    loss: str
    memory_kib: int


def read_steps(file: Path) -> list[Step]:
    """Return all steps of a rank, in the order of time; those after a resume may come again."""
    rows = (line.split() for line in file.read_text().splitlines()) if file.exists() else ()
    return [Step(int(row[0]), int(row[1]), row[2], int(row[3])) for row in rows]


def watch(trainer_type: Any, lines: IO[str], pause_s: float) -> None:
    """Let every step of a Trainer begin with a pause and end with a line."""
    take_step, page_kib = trainer_type.train_next, os.sysconf("SC_PAGE_SIZE") // 1024

    def train_next(trainer: Any, feed: Any) -> None:
        time.sleep(pause_s)
        take_step(trainer, feed)
        memory_kib = page_kib * int(Path("/proc/self/statm").read_text().split()[1])
        loss = trainer.losses[-1].hex()
        print(os.getpid(), trainer.step, loss, memory_kib, file=lines, flush=True)

    trainer_type.train_next = train_next


if __name__ == "__main__":
    sys.path.insert(0, str(EXAMPLE))
    import train

    name, pause, *arguments = sys.argv[1:]
    sys.argv = [str(EXAMPLE / "train.py"), *arguments]
    with Path(name).open("a") as file:
        watch(train.Trainer, file, float(pause))
        sys.exit(train.main())
