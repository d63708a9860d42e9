"""Compile kernels once for all processes that share a folder, and share the work among them.

The work is cut into jobs. A process locks a job that no other process holds, by a file in the
folder. It compiles the job's kernels and leaves a mark. So two ranks of a host share the work, and
both load all kernels. The operating system holds the lock (flock) and frees it when its holder
dies, however it dies. No process waits while it holds a lock, and no process waits longer than
PATIENCE_S for a holder that has stopped.

Knows: files, locks. Does not know: what the jobs do.
"""

import fcntl
import functools
import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from trec_qcomm.jit import COMPILES, cache, numba

PATIENCE_S = 120.0  # the longest job takes some 10 s where each core has one process
_POLL_S = 0.05


@dataclass(frozen=True)
class Job:
    """Kernels that are compiled together.

    Args:
        name: name that says what the kernels are for; equal names mean equal kernels.
        run: function that calls the kernels with small data.
    """

    name: str
    run: Callable[[], None]


def missing(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs whose kernels are not in the folder; all jobs where there is no folder.

    Without numba it is none.
    """
    if not COMPILES:
        return []
    folder = cache.folder()
    return [job for job in jobs if folder is None or not _mark(folder, job).exists()]


def compile_once(
    jobs: Sequence[Job],
    on_job: Callable[[Job], None] | None = None,
    *,
    patience_s: float = PATIENCE_S,
) -> None:
    """Compile the kernels that are missing, and return when all are there, whoever compiled them.

    Args:
        on_job: function that is told of each job before this process compiles it.
        patience_s: longest wait for other processes in seconds, counted from the last job of this
            process. Jobs that they have not finished by then are compiled here, too.
    """
    if not COMPILES:
        return
    folder, tell = cache.folder(), on_job or (lambda _job: None)
    if folder is None:
        for job in jobs:
            tell(job)
            job.run()
        return
    ours: set[str] = set()
    deadline = time.monotonic() + patience_s
    while left := [job for job in missing(jobs) if job.name not in ours]:
        late, held = time.monotonic() > deadline, 0
        for job in left:
            mark = _mark(folder, job)
            with _lock(mark.with_suffix(".lock")) as locked:
                if not locked and not late:
                    held += 1
                elif not mark.exists():
                    tell(job)
                    job.run()
                    _leave(mark)
                    ours.add(job.name)
                    deadline = time.monotonic() + patience_s
        if held == len(left):
            time.sleep(_POLL_S)


def _leave(mark: Path) -> None:
    """Make the mark; without one, the next process looks for itself."""
    try:
        mark.touch()
    except OSError:
        cache.warn(f"{mark.parent} cannot be written any more")


def _mark(folder: Path, job: Job) -> Path:
    name = job.name.replace(" ", "-").replace(":", "")
    return folder / f"{name}-{_compiler()}.compiled"


@functools.cache
def _compiler() -> str:
    """Return a name for what compiled kernels depend on beside their source, as numba's index."""
    binding = import_module("llvmlite.binding")  # where numba is, it is
    features = binding.get_host_cpu_features().flatten()
    wanted = numba.config.CPU_NAME, numba.config.CPU_FEATURES
    key = (platform.python_version(), binding.get_host_cpu_name(), features, wanted)
    return f"{numba.__version__}-{hashlib.sha256(repr(key).encode()).hexdigest()[:12]}"


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Hold the lock inside the block. Yields whether it is held: False means that another one has
    it. Where the file system has no locks, each process compiles for itself."""
    try:
        handle = open(path, "a")  # noqa: SIM115
    except OSError:
        yield True
        return
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass
        yield True
