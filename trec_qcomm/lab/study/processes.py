"""Run the missing trainings of a study, in this process or in several; write each when it is done.

A process takes one seed at a time, with all its missing runs. When a process is free, the next seed
is chosen by the records so far, so that a study that may stop early does not run far ahead.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import time
import traceback
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from trec_qcomm.lab import records
from trec_qcomm.lab.records import StudyRecord
from trec_qcomm.lab.study.engine import Study
from trec_qcomm.lab.study.progress import Progress
from trec_qcomm.testing.ranks import modules_to_preload

_PATIENCE_S = 10.0  # for a process to end in good order


class TrainingFailedError(RuntimeError):
    """Error of a training in another process, in one line."""


def run_all(
    study: Study, done: list[StudyRecord], path: Path, *, jobs: int, show_progress: bool = True
) -> None:
    """Run missing trainings, and append each record to the file when it is there.

    Args:
        study: the study; with several jobs each process unpickles it.
        done: records so far; new ones are added.
        path: file of the records.
        jobs: number of processes, of one thread each; 1 runs in this process.
        show_progress: whether to write progress to stderr.
    Raises:
        TrainingFailedError: a training in another process failed, or its process was lost.
    """
    most = "at most " * bool(study.rules.looks)
    progress = Progress(study.name, most=most, show=show_progress)
    log = path.parent / "errors.log"
    source = _here(study, done) if jobs == 1 else _in_processes(study, done, jobs, log)
    try:
        for record in source:
            records.append(path, record)
            done.append(record)
            if show_progress:
                missing = sum(map(len, study.missing(done).values()))
                progress.step(f"seed {record.seed}, {record.configuration}", missing)
    finally:
        source.close()
        progress.close()


def check_picklable(study: Study, jobs: int) -> None:
    """Raise ValueError if other processes could not import `train`."""
    reason = ""
    try:
        pickle.dumps(study)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        reason = str(error)
    main = sys.modules["__main__"]
    if getattr(study.train, "__module__", "") == "__main__" and not hasattr(main, "__file__"):
        reason = "it is defined in an interactive session"
    if reason:
        raise ValueError(
            f"jobs {jobs}: train cannot be sent to other processes ({reason}); define it at the "
            "top level of a module, or take jobs=1"
        )


def _here(study: Study, done: list[StudyRecord]) -> Generator[StudyRecord, None, None]:
    while missing := study.missing(done):
        seed = next(iter(missing))
        yield from study.run_seed(seed, missing[seed])


def _in_processes(
    study: Study, done: list[StudyRecord], jobs: int, log: Path
) -> Generator[StudyRecord, None, None]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(modules_to_preload())
    tasks, results = context.Queue(), context.Queue()
    running: set[int] = set()  # seeds

    def give_task() -> None:
        free = (pair for pair in study.missing(done).items() if pair[0] not in running)
        seed, missing = next(free, (None, None))
        if seed is not None:
            running.add(seed)
            tasks.put((seed, missing))

    processes = [
        # No daemons: these may have no ranks of their own.
        context.Process(
            target=_work, args=(study, tasks, results, job, dict(os.environ)), daemon=False
        )
        for job in range(min(jobs, len(study.missing(done))))
    ]
    try:
        for process in processes:
            process.start()
            give_task()
        while running:
            kind, value = _next_result(results, processes)
            if kind == "failed":
                raise TrainingFailedError(_logged(study, log, *value))
            if kind == "record":
                yield value  # the caller adds it to `done`
                continue
            running.remove(value)
            while len(running) < len(processes) and study.missing(done).keys() - running:
                give_task()
    finally:
        for process in processes:
            if process.pid is not None:
                process.terminate()
        for process in processes:
            if process.pid is not None:
                process.join(_PATIENCE_S)
                process.kill()


def _next_result(results: Any, processes: Any) -> tuple[str, Any]:
    """Return the next message. Raises TrainingFailedError: a process was lost."""
    while True:
        try:
            message: tuple[str, Any] = results.get(timeout=5)
            return message
        except queue.Empty:
            if any(process.exitcode is not None for process in processes):
                raise TrainingFailedError("a process of the study was lost") from None


def _logged(study: Study, log: Path, reason: str, details: str) -> str:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(f"{time.ctime()}: {study.name}\n{details}\n")
    return f"{reason} (traceback: {log})"


def _work(study: Study, tasks: Any, results: Any, job: int, environment: dict[str, str]) -> None:
    """Train seed after seed until the parent ends this process.

    Only the first of the processes warns of what all of them read.
    """
    logging.basicConfig(format="%(message)s", level="ERROR" if job else "WARNING", force=True)
    os.environ.clear()  # the server's, which may be older
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    signal.signal(signal.SIGTERM, _leave)
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    try:
        while parent is not None and parent.is_alive():
            try:
                seed, missing = tasks.get(timeout=5)
            except queue.Empty:
                continue
            for record in study.run_seed(seed, missing):
                if not parent.is_alive():
                    return  # it was killed, and nobody would write the records
                results.put(("record", record))
            results.put(("done", seed))
    except Exception as error:
        name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        results.put(("failed", (f"{name}{error}", traceback.format_exc())))


def _leave(number: int, frame: FrameType | None) -> None:
    """End this process in good order, so that ranks which `train` started end, too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise SystemExit(128 + number)
