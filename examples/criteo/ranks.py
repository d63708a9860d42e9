"""The ranks of a training: started on this machine, or joined as a launcher has set them up.

Knows: processes, signals, the process group. Does not know: what a rank does.
Where RANK and WORLD_SIZE are set (torchrun, or a launcher on several hosts) this process is that
rank; else it starts --ranks processes itself and passes Ctrl-C and SIGTERM on to them.
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
import tempfile
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from failures import EveryRankError, Once, show_warnings, tell
from options import FAILED, INTERRUPTED
from torch._C._distributed_c10d import _dump_fr_trace_json
from torch.multiprocessing.spawn import ProcessExitedException, start_processes

Run = Callable[[argparse.Namespace], bool]  # what each rank does; False if it was interrupted
# Modules that take seconds to import, and compute nothing when they are.
_PRELOAD = ["torchrec.models.dlrm", "torchrec.metrics.ne", "trec_qcomm.qcomm"]


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


def join(run: Run, options: argparse.Namespace, *, share_stderr: bool = False) -> int:
    """Join the process group that the environment describes, and run; return the exit status.

    Args: share_stderr: whether all ranks have one stderr, where the first to fail says why for all.
    """
    os.environ.setdefault("MASTER_PORT", "29500")
    if options.ranks_per_node is not None:
        os.environ["LOCAL_WORLD_SIZE"] = str(options.ranks_per_node)  # what TorchRec calls a node
    once = Once()
    try:
        once.store = _join_group(options)
        show_warnings(once)
        silence_start()
        return 0 if run(options) else INTERRUPTED
    except Exception as error:
        if isinstance(error, RuntimeError) and dist.is_initialized():  # a lost peer, for one
            error.add_note(f"The last collectives of this rank: {_write_collectives()}")
        tell(error, once if share_stderr else Once(), options.out)
        return FAILED
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _join_group(options: argparse.Namespace) -> dist.Store:
    """Initialize the process group; return a store that all ranks share."""
    timeout = timedelta(seconds=options.timeout)
    if options.device == "cuda":
        _set_gpu()
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")  # collectives that torch remembers
    store, rank, world_size = next(dist.rendezvous("env://", timeout=timeout))
    dist.init_process_group(
        "gloo" if options.device == "cpu" else "cpu:gloo,cuda:nccl",
        timeout=timeout,
        store=dist.PrefixStore("default_pg", store),
        rank=rank,
        world_size=world_size,
    )
    return dist.PrefixStore("said", store)


def _set_gpu() -> None:
    """Take the GPU of this rank's number. Raises EveryRankError: fewer GPUs than ranks."""
    needed = max(local_rank() + 1, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if there < needed:
        raise EveryRankError(
            f"--device cuda: {needed} ranks on this machine need a GPU each, there are {there}"
        )
    torch.cuda.set_device(local_rank())


def _write_collectives() -> Path:
    """Write what torch's flight recorder has and return the file.

    With NCCL torch writes such a file itself at a timeout; with gloo nobody does. There it knows
    when each collective was started, but not whether it ended.
    """
    file = Path(tempfile.gettempdir()) / f"collectives_{os.getpid()}_rank{dist.get_rank()}.json"
    file.write_bytes(_dump_fr_trace_json())
    return file


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
            _tell_how_it_ended(error, children)
            return FAILED
    return INTERRUPTED if signals else 0


def _tell_how_it_ended(error: ProcessExitedException, children: Any) -> None:
    """Say which ranks a signal ended; one that failed by itself has said why."""
    for rank, process in enumerate(children.processes):
        code = process.exitcode or 0
        if code < 0 and (code != -signal.SIGTERM or rank == error.error_index):
            name = signal.Signals(-code).name
            hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
            print(f"error: rank {rank} was ended by {name}{hint}", file=sys.stderr, flush=True)


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
    start: Any = start_processes  # torch leaves it untyped
    resource_tracker.ensure_running()  # or the server starts it, which unblocks signals
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    children = start(
        _rank_process,
        (run, options, _free_port()),
        nprocs=options.ranks,
        join=False,
        start_method=method,
    )
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return children


def _rank_process(rank: int, run: Run, options: argparse.Namespace, port: int) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # see _start_children
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(options.ranks),
        "LOCAL_WORLD_SIZE": str(options.ranks),  # unless --ranks-per-node, see join
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if join(run, options, share_stderr=True) == FAILED:
        sys.exit(FAILED)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
