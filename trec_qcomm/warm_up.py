"""Compile the CPU kernels of configs ahead, so that a training's first step does not.

examples:
  python -m trec_qcomm.warm_up best                     a preset
  python -m trec_qcomm.warm_up my.yaml unique_int4      several
  python -m trec_qcomm.warm_up best --lengths int64     batches whose lengths are int64

In the image of a container, with a folder that the training may write:
  ENV NUMBA_CACHE_DIR=/opt/numba
  RUN python -m trec_qcomm.warm_up best && chmod -R a+rwX /opt/numba

Compiled kernels are for this kind of processor, this Python and this numba. Others compile anew.
"""

import argparse
import logging
import sys
import time
from collections.abc import Sequence

import torch

from trec_qcomm.config import Config, read_config
from trec_qcomm.integration.warm_up import jobs
from trec_qcomm.kernels import cache
from trec_qcomm.kernels.once import Job, compile_once, missing

_DTYPES = {"int32": torch.int32, "int64": torch.int64}


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trec_qcomm.warm_up",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("configs", nargs="+", metavar="CONFIG", help="YAML files or names of presets")
    add("--ids", choices=_DTYPES, default="int64", help="dtype of batches' ids (default int64)")
    add("--lengths", choices=_DTYPES, default="int32", help="of their lengths (default int32)")
    return parser


def run(configs: Sequence[Config], *, ids: torch.dtype, lengths: torch.dtype) -> str:
    """Compile what the configs use, job by job; return the last line."""
    started = time.monotonic()
    wanted: dict[str, Job] = {}
    for config in configs:
        wanted |= {job.name: job for job in jobs(config, ids=ids, lengths=lengths)}
    left, told = missing(list(wanted.values())), 0

    def tell(job: Job) -> None:
        nonlocal told
        told += 1
        print(
            f"{told} of {len(left)}: {job.name}, about {max(1, round(job.about_s))} s",
            file=sys.stderr,
        )

    compile_once(left, tell)
    folder = cache.folder()
    if folder is None:
        raise ValueError("NUMBA_CACHE_DIR: set it to a folder that can be written, to keep kernels")
    there = len(wanted) - len(left)
    return (
        f"compiled {len(left)} of {len(wanted)} jobs in {time.monotonic() - started:.0f} s"
        f"{f' ({there} were there)' if there else ''}: {folder}"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Compile kernels and return the exit status; 2 after a mistake in the command line."""
    logging.basicConfig(format="%(message)s")
    parser = build_parser()
    arguments = parser.parse_args(words)
    try:
        configs = [read_config(name) for name in arguments.configs]
        dtypes = {name: _DTYPES[getattr(arguments, name)] for name in ("ids", "lengths")}
        print(run(configs, **dtypes))
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
