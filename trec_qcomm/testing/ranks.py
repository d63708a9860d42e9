"""Run a function on several ranks for a test: processes that a gloo process group joins.

Knows: processes, torch.distributed. Does not know: codecs, TorchRec.
"""

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_ranks(
    fn: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 120.0
) -> list[Any]:
    """Call `fn(*args)` on `world_size` new processes joined by a gloo process group.

    The processes are forked from a server, which the first call starts. The server has imported
    this package and computed nothing. A fork takes 20 ms, a new interpreter with this import 4 s.

    All ranks inherit from the server: the seed of string hashes, numpy's global generator, what a
    module read from the environment when it was imported, and where stdout goes. The environment
    itself is the caller's. Ranks may use CUDA, because the server never asks for it.

    Args:
        fn: function of a module that the ranks can import (no lambda, no local function). It asks
            dist.get_rank() for its rank.
        world_size: how many ranks.
        args: arguments of `fn`, the same on each rank; they are pickled.
        timeout_s: limit in seconds for each collective, and for the wait for results.
    Returns: the result of `fn` on each rank, in rank order; results are pickled, too.
    Raises: RuntimeError: a rank failed (its traceback is in the message), or the timeout passed.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(modules_to_preload())
    with tempfile.TemporaryDirectory() as folder:
        pipes: list[Connection] = []
        processes = []
        patience_s = 5
        try:
            for rank in range(world_size):
                ours, theirs = context.Pipe(duplex=False)
                where = (rank, world_size, str(Path(folder) / "store"), timeout_s)
                main_args = (theirs, where, dict(os.environ), fn, args)
                process = context.Process(target=_rank_main, args=main_args)
                process.start()
                processes.append(process)
                theirs.close()
                pipes.append(ours)
            return _collect(pipes, timeout_s)
        except (KeyboardInterrupt, SystemExit):
            patience_s = 0
            raise
        finally:
            for process in processes:
                process.join(0 if process.exitcode is not None else patience_s)
                if process.is_alive():
                    process.kill()
                    process.join()


def modules_to_preload() -> list[str]:
    """Return the modules that the server imports, if they are installed.

    TorchRec imports FBGEMM, which asks whether there is a GPU. After that no fork can use a GPU. So
    where torch is built for CUDA, ranks that need TorchRec import it themselves.
    """
    may_have_gpu = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
    return [__name__] if may_have_gpu else [__name__, "trec_qcomm.qcomm"]


def _rank_main(
    pipe: Connection,
    where: tuple[int, int, str, float],
    environment: dict[str, str],
    fn: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    rank, world_size, store, timeout_s = where
    try:
        os.environ.clear()
        os.environ.update(environment)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        # A rank whose `fn` ends at once would close connections that another one is still opening.
        dist.barrier()
        # Plain pickle copies tensors; the pipe's own shares memory that ends with this process.
        pipe.send_bytes(pickle.dumps((True, fn(*args))))
        dist.destroy_process_group()
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
        raise


def _collect(pipes: Sequence[Connection], timeout_s: float) -> list[Any]:
    """Wait for one message from each pipe. A rank that ends without sending one has failed."""
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        pending = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = wait(pending, timeout=timeout_s)
        if not ready:
            raise RuntimeError(f"only ranks {sorted(results)} ended within {timeout_s} s")
        for rank, pipe in enumerate(pipes):
            if pipe not in ready or rank in results:
                continue
            try:
                ok, result = pickle.loads(pipe.recv_bytes())
            except EOFError:
                ok, result = False, "ended without a result"
            if not ok:
                raise RuntimeError(f"rank {rank}: {result}")
            results[rank] = result
    return [results[rank] for rank in range(len(pipes))]
