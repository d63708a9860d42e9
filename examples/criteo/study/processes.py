"""Missing trainings of a study in several processes, each written when it is done."""

from __future__ import annotations

import logging
import multiprocessing
import queue
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from study.engine import Missing, Study
from trec_qcomm import records
from trec_qcomm.records import StudyRecord


class TrainingFailedError(RuntimeError):
    """Error of a training in another process, in one line."""


def run_all(study: Study, missing: Mapping[int, Missing], path: Path, *, jobs: int) -> None:
    """Run what is missing, and append each record to the file when it is there.

    Args:
        study: the study; each process unpickles it.
        missing: what is missing, see Study.missing.
        path: file of the records.
        jobs: number of processes, of one thread each.
    Raises: TrainingFailedError: a training failed, or its process was lost.
    """
    total = sum(len(configurations) for configurations in missing.values())
    log = path.parent / "errors.log"
    with tqdm(total=total, unit="run", desc=study.name) as bar:
        for record in _in_processes(study, missing, min(jobs, len(missing)), log):
            records.append(path, record)
            bar.set_postfix_str(f"seed {record.seed} {record.configuration}")
            bar.update(1)


def _in_processes(
    study: Study, missing: Mapping[int, Missing], jobs: int, log: Path
) -> Iterator[StudyRecord]:
    context = multiprocessing.get_context("spawn")
    tasks, results = context.Queue(), context.Queue()
    for task in (*missing.items(), *[None] * jobs):
        tasks.put(task)
    processes = [
        context.Process(target=_work, args=(study, tasks, results, job), daemon=True)
        for job in range(jobs)
    ]
    for process in processes:
        process.start()
    try:
        running = jobs
        while running:
            try:
                kind, value = results.get(timeout=5)
            except queue.Empty:
                if any(process.exitcode not in (None, 0) for process in processes):
                    raise TrainingFailedError("a process of the study was lost") from None
                continue
            if kind == "failed":
                reason, details = value
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("a") as file:
                    file.write(f"{time.ctime()}: {study.name}\n{details}\n")
                raise TrainingFailedError(f"{reason} (traceback: {log})")
            if kind == "record":
                yield value
            running -= kind == "done"
    finally:
        for process in processes:
            process.terminate()


def _work(study: Study, tasks: Any, results: Any, job: int) -> None:
    """Train seed after seed until there are no more, in a process of its own.

    Only the first of the processes warns of what all of them read.
    """
    logging.basicConfig(format="%(message)s", level="ERROR" if job else "WARNING", force=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    try:
        while (task := tasks.get()) is not None:
            for record in study.run_seed(*task):
                if parent is None or not parent.is_alive():
                    return  # it was killed, and nobody would write the records
                results.put(("record", record))
        results.put(("done", None))
    except Exception as error:
        name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        results.put(("failed", (f"{name}{error}", traceback.format_exc())))
