"""Missing trainings of a study in several processes, each written when it is done."""

from __future__ import annotations

import multiprocessing
import queue
import signal
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from study.engine import Missing, Study
from trec_qcomm import records
from trec_qcomm.records import StudyRecord


def run_all(study: Study, missing: Mapping[int, Missing], path: Path, *, jobs: int) -> None:
    """Run what is missing, and append each record to the file when it is there.

    Args:
        study: the study; each process unpickles it.
        missing: what is missing, see Study.missing.
        path: file of the records.
        jobs: number of processes, of one thread each.
    Raises: RuntimeError: a training failed, or its process was lost.
    """
    total = sum(len(configurations) for configurations in missing.values())
    with tqdm(total=total, unit="run", desc=study.name) as bar:
        for record in _in_processes(study, missing, min(jobs, len(missing))):
            records.append(path, record)
            bar.set_postfix_str(f"seed {record.seed} {record.configuration}")
            bar.update(1)


def _in_processes(study: Study, missing: Mapping[int, Missing], jobs: int) -> Iterator[StudyRecord]:
    context = multiprocessing.get_context("spawn")
    tasks, results = context.Queue(), context.Queue()
    for task in (*missing.items(), *[None] * jobs):
        tasks.put(task)
    processes = [
        context.Process(target=_work, args=(study, tasks, results), daemon=True)
        for _ in range(jobs)
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
                    raise RuntimeError("a process of the study was lost") from None
                continue
            if kind == "failed":
                raise RuntimeError(f"a training failed:\n{value}")
            if kind == "record":
                yield value
            running -= kind == "done"
    finally:
        for process in processes:
            process.terminate()


def _work(study: Study, tasks: Any, results: Any) -> None:
    """Train seed after seed until there are no more, in a process of its own."""
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
    except Exception:
        results.put(("failed", traceback.format_exc()))
