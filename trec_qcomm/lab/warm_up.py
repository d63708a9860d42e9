"""Compile the CPU kernels of configs ahead, so that a training's first step does not.

examples:
  python -m trec_qcomm warm-up best                     a preset
  python -m trec_qcomm warm-up my.yaml unique_int4      several
  python -m trec_qcomm warm-up best --ids int32         batches whose ids are int32
  python -m trec_qcomm warm-up int8 --rows fp16         lookups with output_dtype FP16

In the image of a container, with a folder that the training may write:
  ENV NUMBA_CACHE_DIR=/opt/numba
  RUN python -m trec_qcomm warm-up best && chmod -R a+rwX /opt/numba

Compiled kernels fit this kind of processor, this Python and this numba. Other machines compile
anew.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from trec_qcomm.config import Config, read_config
from trec_qcomm.integration.warm_up import jobs
from trec_qcomm.jit import cache, numba
from trec_qcomm.jit.once import Job, compile_once, missing

_DTYPES = {"int32": torch.int32, "int64": torch.int64}
_ROW_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trec_qcomm warm-up",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("configs", nargs="+", metavar="CONFIG", help="YAML files or names of presets")
    add("--ids", choices=_DTYPES, default="int64", help="dtype of batches' ids (default int64)")
    add("--rows", choices=_ROW_DTYPES, default="fp32", help="output_dtype of lookups (fp32)")
    return parser


def run(configs: Sequence[Config], ids: torch.dtype, rows_dtype: torch.dtype) -> str:
    """Compile what the configs use, one job a core at a time; return the last line to print."""
    if numba is None:
        raise ValueError("numba: not installed, so that nothing can be compiled; pip install numba")
    started, folder = time.monotonic(), cache.folder()
    if folder is None:
        raise ValueError("NUMBA_CACHE_DIR: set it to a folder that can be written, to keep kernels")
    wanted: dict[str, Job] = {}
    for config in configs:
        wanted |= {job.name: job for job in jobs(config, ids=ids, rows_dtype=rows_dtype)}
    left = missing(list(wanted.values()))
    _compile(left)
    there = len(wanted) - len(left)
    return (
        f"compiled {len(left)} of {len(wanted)} jobs in {time.monotonic() - started:.0f} s"
        f"{f' ({there} were there)' if there else ''}: {folder}"
    )


def _compile(left: Sequence[Job]) -> None:
    """Compile the jobs in as many processes as there are cores, which share them by locks.

    They are forks, as a new interpreter takes as long to start as many a job. What one of them
    could not compile this process tries, too, and so raises why.
    """
    context = multiprocessing.get_context("fork")
    told = context.Value("i", 0)
    others = [
        context.Process(target=_compile_here, args=(left, told), daemon=True)
        for _ in range(min(len(left), _num_cores()) - 1)
    ]
    for process in others:
        process.start()
    _compile_here(left, told)
    for process in others:
        process.join()


def _num_cores() -> int:
    """Return how many cores this process may use; where the system does not say, all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compile_here(left: Sequence[Job], told: Any) -> None:
    """Compile the jobs that no other process has. Args: told: int32, how many were announced."""

    def tell(job: Job) -> None:
        with told.get_lock():
            told.value += 1
            print(f"{told.value} of {len(left)}: {job.name}", file=sys.stderr, flush=True)

    compile_once(left, tell)


def main(words: Sequence[str] | None = None) -> int:
    """Compile kernels and return the exit status; 2 after a mistake in the command line."""
    logging.basicConfig(format="%(message)s")
    parser = build_parser()
    arguments = parser.parse_args(words)
    try:
        configs = [read_config(name) for name in arguments.configs]
        print(run(configs, _DTYPES[arguments.ids], _ROW_DTYPES[arguments.rows]))
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    return 0
