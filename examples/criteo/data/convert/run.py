"""All stages in turn: which are done, what was read, dataset.json.

Knows: the stages, what a folder holds. Does not know: text, counts, the command line.
A run that was ended goes on with the same arguments: what it has finished stays. All that is not
finished is in a folder of its own, .work, which goes when dataset.json is there.
"""

from __future__ import annotations

import fcntl
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.convert.files import Part, save_json
from data.convert.numbers import check_as_ids, column_ids, make_ids, make_vocabulary
from data.convert.parts import PART_NBYTES, list_jobs, list_parts, read_parts
from data.convert.workers import Workers, workers
from data.ids import IdChoice, num_train_of
from data.tsv import NUM_SPARSE, LineCount, list_files

logger = logging.getLogger(__name__)

MANIFEST, WORK, VERSION = "dataset.json", ".work", 1
LOCK = ".lock"
BEGUN = "begun.json"


@dataclass(frozen=True)
class Conversion:
    """A TSV that becomes a folder of arrays.

    Args:
        files: text, in time order.
        out: the folder.
        choice: how ids are made.
        part_nbytes: bytes of text that a process reads at once.
    """

    files: list[Path]
    out: Path
    choice: IdChoice
    part_nbytes: int = PART_NBYTES

    @property
    def work(self) -> Path:
        """Folder of what is not finished."""
        return self.out / WORK

    def identity(self) -> dict[str, Any]:
        """Return all that decides what the folder holds."""
        stats = [(file, file.stat()) for file in self.files]
        sources = [
            {"name": file.name, "nbytes": s.st_size, "mtime_ns": s.st_mtime_ns} for file, s in stats
        ]
        return {"version": VERSION, "ids": self.choice.to_json(), "sources": sources}


def is_made(todo: Conversion) -> bool:
    """Return whether the folder is there and that of the files as they are now."""
    manifest = _read_json(todo.out / MANIFEST)
    return manifest.items() >= todo.identity().items()


def convert(
    source: Path,
    out: Path,
    choice: IdChoice,
    *,
    jobs: int = 1,
    show: bool = False,
    replace: bool = False,
    part_nbytes: int = PART_NBYTES,
) -> dict[str, Any]:
    """Make a folder of arrays of a TSV, unless it is there; return what dataset.json says.

    Args:
        source: a file or a folder of files.  out: the folder to make.
        jobs: number of processes.  show: whether to show how far they are.
        replace: whether what preprocess.py has made of other files, or in another way, goes.
        part_nbytes: bytes of text that a process reads at once.
    Raises: ValueError: no rows, a malformed file, or another data set in the folder.
    """
    todo = Conversion(list_files(source), out, choice, part_nbytes)
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        if not is_made(todo):
            _claim(todo, replace=replace)
            with workers(jobs, show=show) as processes:
                manifest = _run(todo, processes) | todo.identity()
            save_json(out / MANIFEST, manifest)
            shutil.rmtree(todo.work)
        return _read_json(out / MANIFEST)


def _run(todo: Conversion, processes: Workers) -> dict[str, Any]:
    """Run all stages; return what they say of the rows."""
    work = todo.work
    try:
        _read(todo, processes)
    except ValueError:
        _count_lines(todo, _told(todo))  # what is wrong with the others may help
        raise
    told = _told(todo)
    parts = [*told]
    counts = _count_lines(todo, told)
    for count in counts:
        count.check()
    rows = [told[part]["rows"] for part in parts]
    if not sum(rows):
        raise ValueError(f"{', '.join(map(str, todo.files))}: no rows")
    parts = [part for part in parts if told[part]["rows"]]
    rows = [n for n in rows if n]
    num_train = num_train_of(sum(rows))
    largest = [max(told[part]["largest"][k] for part in parts) for k in range(NUM_SPARSE)]
    if todo.choice.as_they_are:
        check_as_ids(largest)
    if todo.choice.min_count is not None:
        _count(todo, processes, _train_parts(parts, rows, num_train))
    sizes = [column_ids(work, k, todo.choice, largest).num_ids for k in range(NUM_SPARSE)]
    _number(todo, processes, parts, rows, largest)
    return {
        "num_rows": sum(rows),
        "num_train": num_train,
        "num_embeddings": sizes,
        "dense": "log(1 + x), missing or negative as 0",
        "rows": rows,
        "lines": [
            {"file": c.path.name, "lines": c.num_lines, "malformed": c.num_malformed}
            for c in counts
        ],
    }


def _told(todo: Conversion) -> dict[Part, dict[str, Any]]:
    """Return what is known of the parts that are read."""
    parts = list_parts(todo.work, todo.files, todo.part_nbytes)
    told = {part: part.told(todo.work) for part in parts}
    return {part: each for part, each in told.items() if each is not None}


def _read(todo: Conversion, processes: Workers) -> None:
    jobs = [
        (todo.work, todo.files[file], file, index, todo.part_nbytes)
        for file, index in list_jobs(todo.files, todo.part_nbytes)
    ]
    nbytes: dict[Path, int] = {}  # by told.json

    def done() -> int:
        for file in todo.work.glob("*_told.json"):
            if file not in nbytes:
                nbytes[file] = json.loads(file.read_text())["nbytes"]
        return sum(nbytes.values())

    total = sum(file.stat().st_size for file in todo.files)
    processes.run("1 of 3, read", read_parts, jobs, total=total, done=done, unit="B")


def _count(todo: Conversion, processes: Workers, parts: list[tuple[Part, int]]) -> None:
    jobs = [(todo.work, parts, k, todo.choice.min_count) for k in range(NUM_SPARSE)]

    def done() -> int:
        return len([*todo.work.glob("vocabulary_*.json")])

    what = "2 of 3, count"
    processes.run(what, make_vocabulary, jobs, total=NUM_SPARSE, done=done, unit=" columns")


def _number(
    todo: Conversion, processes: Workers, parts: list[Part], rows: list[int], largest: list[int]
) -> None:
    jobs = [
        (todo.work, todo.out, part, day, todo.choice, largest) for day, part in enumerate(parts)
    ]

    def done() -> int:
        there = (part.at(todo.work, "raw.npy").exists() for part in parts)
        return sum(n for n, is_raw in zip(rows, there, strict=True) if not is_raw)

    processes.run("3 of 3, write", make_ids, jobs, total=sum(rows), done=done, unit=" rows")


def _count_lines(todo: Conversion, told: dict[Part, dict[str, Any]]) -> list[LineCount]:
    """Say what is malformed in each file, and return it."""
    counts = [LineCount(path) for path in todo.files]
    for part, each in told.items():
        problems = {kind: (line, reason) for kind, (line, reason) in each["problems"].items()}
        counts[part.file].append(LineCount(Path(), each["lines"], each["malformed"], problems))
    for count in counts:
        logger.log(logging.WARNING if count.num_malformed else logging.INFO, "%s", count)
    return counts


def _train_parts(parts: list[Part], rows: list[int], num_train: int) -> list[tuple[Part, int]]:
    """Return the parts that have rows that train, and how many each has."""
    chosen, left = [], num_train
    for part, num_rows in zip(parts, rows, strict=True):
        if left > 0:
            chosen.append((part, min(num_rows, left)))
        left -= num_rows
    return chosen


def _claim(todo: Conversion, *, replace: bool) -> None:
    """Begin in an empty folder, or go on with what was begun there."""
    now = todo.identity() | {"part_nbytes": todo.part_nbytes}
    before = _read_json(todo.work / BEGUN) or _read_json(todo.out / MANIFEST)
    changed = [name for name, value in now.items() if before and before.get(name) != value]
    if changed and replace:
        _empty(todo.out)
    elif changed:
        name = changed[0]
        raise ValueError(
            f"{todo.out}: made with {name} {before.get(name)}, now {now[name]}; delete the folder "
            "or take another"
        )
    others = [path.name for path in todo.out.iterdir() if path.name not in (LOCK, WORK)]
    if others and not (todo.work / BEGUN).exists():
        raise ValueError(f"{todo.out}: holds other files ({others[0]}); take an empty folder")
    todo.work.mkdir(exist_ok=True)
    save_json(todo.work / BEGUN, now)
    (todo.out / ".gitignore").write_text("*\n")  # rows are not for publication


def _empty(out: Path) -> None:
    """Remove what was made in a folder."""
    (out / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(out / WORK, ignore_errors=True)
    for path in (*out.glob("day_*.npy"), out / ".gitignore"):
        path.unlink(missing_ok=True)


def _read_json(file: Path) -> dict[str, Any]:
    """Return what a file says, nothing if there is none."""
    content: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return content


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Let one process at a time make the folder; others wait."""
    with (out / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
