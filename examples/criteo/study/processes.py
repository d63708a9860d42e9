"""A study's missing runs in several processes, written one by one as they are done."""

from __future__ import annotations

import json
import multiprocessing
import queue
import signal
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from study.runs import Modes, Study, run_seed
from study.show import Record


def run_all(study: Study, missing: Mapping[int, Modes], path: Path, *, jobs: int) -> None:
    """Run what is missing in that many processes; every run is written when it is done.

    Raises: RuntimeError: a run failed, or its process was lost.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    total = sum(len(configs) for configs in missing.values())
    records = _in_processes(study, missing, min(jobs, len(missing)))
    cut_short = path.exists() and not path.read_text().endswith("\n")
    with path.open("a") as file, tqdm(total=total, unit="run", desc="accuracy") as bar:
        file.write("\n" * cut_short)
        for record in records:
            file.write(json.dumps(record) + "\n")
            file.flush()
            bar.set_postfix_str(f"seed {record['seed']} {record['config']}")
            bar.update(1)


def _in_processes(study: Study, missing: Mapping[int, Modes], jobs: int) -> Iterator[Record]:
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
                raise RuntimeError(f"a run failed:\n{value}")
            if kind == "record":
                yield value
            running -= kind == "done"
    finally:
        for process in processes:
            process.terminate()


def _work(study: Study, tasks: Any, results: Any) -> None:
    """One process: seed after seed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    try:
        while (task := tasks.get()) is not None:
            for record in run_seed(study, *task):
                if parent is None or not parent.is_alive():
                    return  # it was killed, and nobody would write the records
                results.put(("record", record))
        results.put(("done", None))
    except Exception:
        results.put(("failed", traceback.format_exc()))
