"""The ranks of a training: started here or by a launcher, their errors and signals, agreement.

Knows: processes, signals, the process group. Does not know: what a rank does.
Where RANK and WORLD_SIZE are set (torchrun, or a launcher on several hosts) this process is that
rank; else it starts --ranks processes itself and passes Ctrl-C and SIGTERM on to them. A rank that
fails says so in one line; its traceback goes to OUT/errors.log. Warnings are those of rank 0.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, start_processes

T = TypeVar("T")
Run = Callable[[argparse.Namespace], bool]  # what each rank does; False if it was interrupted
FAILED, INTERRUPTED = 1, 130  # exit status
# Modules that take seconds to import, and compute nothing when they are.
_PRELOAD = ["torchrec.models.dlrm", "torchrec.metrics.ne", "trec_qcomm.qcomm"]


class EveryRankError(ValueError):
    """Error that every rank raises with the same words."""


def run_ranks(run: Run, options: argparse.Namespace) -> int:
    """Call `run` on every rank, in an initialized process group; return the exit status.

    Args:
        run: function of a module, which each process imports by its name.
        options: options of train.py: ranks, ranks_per_node, device, timeout, checkpoint_dir, out.
    Returns: 0, FAILED after an error, which has been told, or INTERRUPTED after a signal.
    """
    if {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return join(run, options)
    return _start_ranks(run, options)


def join(run: Run, options: argparse.Namespace) -> int:
    """Join the process group that the environment describes, and run; return the exit status."""
    os.environ.setdefault("MASTER_PORT", "29500")
    if options.ranks_per_node is not None:
        os.environ["LOCAL_WORLD_SIZE"] = str(options.ranks_per_node)  # what TorchRec calls a node
    try:
        if options.device == "cuda":
            _set_gpu()
        backend = "gloo" if options.device == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, timeout=timedelta(seconds=options.timeout))
        level = "WARNING" if dist.get_rank() == 0 else "ERROR"
        logging.basicConfig(format="%(message)s", level=level, force=True)
        logging.captureWarnings(True)
        silence_start()
        return 0 if run(options) else INTERRUPTED
    except Exception as error:
        _tell(error, options.out)
        return FAILED
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _tell(error: Exception, out: Path) -> None:
    """Say on stderr why this rank failed; what all ranks raise is said once on each machine."""
    rank, log = os.environ["RANK"], out / "errors.log"
    out.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        details = "".join(traceback.format_exception(error))
        file.write(f"{time.ctime()}, rank {rank}: {' '.join(sys.argv)}\n{details}\n")
    is_shared = isinstance(error, EveryRankError)
    if not is_shared or local_rank() == 0:
        who = "" if is_shared else f"rank {rank}: "
        what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        print(f"error: {who}{what} (traceback: {log})", file=sys.stderr, flush=True)
    if is_shared and dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.barrier()  # the first rank to end ends all, and rank 0 must have said why


def _set_gpu() -> None:
    """Take the GPU of this rank's number. Raises EveryRankError: fewer GPUs than ranks."""
    needed = max(local_rank() + 1, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if there < needed:
        raise EveryRankError(
            f"--device cuda: {needed} ranks on this machine need a GPU each, there are {there}"
        )
    torch.cuda.set_device(local_rank())


def local_rank() -> int:
    """Return the number of this rank on its machine."""
    return int(os.environ.get("LOCAL_RANK", 0))


def silence_start() -> None:
    """Hide what torch says about its deprecated names because TorchRec uses them."""
    for name in ("torch.fx", *(f"torchrec.distributed.{m}" for m in ("planner", "comm", "utils"))):
        logging.getLogger(name).setLevel("ERROR")
    for message in ("`broadcast_buffers` is deprecated", "Please use DTensor instead"):
        warnings.filterwarnings("ignore", message, FutureWarning)


def _start_ranks(run: Run, options: argparse.Namespace) -> int:
    """Run --ranks processes on this machine; return the exit status."""
    threads = max(1, (os.cpu_count() or 1) // options.ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    children = _start_children(run, options)
    signals: list[int] = []

    def pass_on(number: int, _: Any) -> None:
        signals.append(number)
        for process in children.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number if options.checkpoint_dir else signal.SIGTERM)

    logging.getLogger("torch.multiprocessing.spawn").setLevel("ERROR")  # it tells whom it ends
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    try:
        while not children.join():
            pass
    except ProcessExitedException as error:
        was_stopped = signals and (error.exit_code != FAILED or not options.checkpoint_dir)
        if not was_stopped:
            if error.exit_code != FAILED:  # a signal ended it; a rank that failed has said why
                print(f"error: rank {error.error_index}: {error}", file=sys.stderr, flush=True)
            return FAILED
    return INTERRUPTED if signals else 0


def _start_children(run: Run, options: argparse.Namespace) -> Any:
    """Start the ranks: on CPU as forks of a server that has imported what takes seconds.

    FBGEMM asks for CUDA when it is imported, and a fork of a process that did cannot use CUDA. So
    on GPUs each rank is a new interpreter, which takes seconds more, once.

    A SIGTERM to all processes must not end the server, as the ends of ranks are told by it: it
    starts with the signal blocked, and the ranks unblock it.
    """
    method = "spawn" if options.device == "cuda" else "forkserver"
    if method == "forkserver":
        multiprocessing.get_context(method).set_forkserver_preload(_PRELOAD)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start: Any = start_processes  # torch leaves it untyped
    resource_tracker.ensure_running()  # or the server starts it, which unblocks signals
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    how = {"nprocs": options.ranks, "join": False, "start_method": method}
    children = start(_rank_process, (run, options, port), **how)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return children


def _rank_process(rank: int, run: Run, options: argparse.Namespace, port: int) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # see _start_children
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["LOCAL_WORLD_SIZE"] = str(options.ranks)  # unless --ranks-per-node, see join
    if join(run, options) == FAILED:
        sys.exit(FAILED)


class StopRequest:
    """Ctrl-C or SIGTERM asks for a stop after the step; a third one stops at once."""

    def __init__(self) -> None:
        self.num_signals = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._count)

    def _count(self, number: int, frame: Any) -> None:
        self.num_signals += 1
        if self.num_signals >= 3:
            raise KeyboardInterrupt

    def agreed(self) -> bool:
        """Return whether any rank was asked to stop. Collective, and nobody waits for a GPU."""
        flag = torch.tensor(self.num_signals, dtype=torch.int32)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)


def agreed(call: Callable[[], T]) -> T:
    """Return what the call returns, or raise on all ranks if it fails on one. Collective.

    Else the other ranks would wait for the one that failed until the timeout.
    Raises: EveryRankError: the call raised a ValueError or an OSError on some rank.
    """
    result, failure = None, None
    try:
        result = call()
    except (ValueError, OSError) as error:
        failure = error
    messages = gather(None if failure is None else str(failure))
    for rank, message in enumerate(messages):
        if message is not None:
            where = "" if set(messages) == {message} else f"rank {rank}: "
            raise EveryRankError(f"{where}{message}") from failure
    return result  # type: ignore[return-value]


def gather(value: Any) -> list[Any]:
    """Return the value of every rank, in rank order. Collective."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
