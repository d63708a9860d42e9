"""A process that has imported what takes seconds, and forks ranks: python -m tests.chaos.forks.

It reads one JSON object a line, the fields of `Start`, and answers {"pid": ...} at once and
{"pid": ..., "status": ..., "time": ...} when that rank has ended. A rank runs at the top of the
module, so that it ends as a process of its own does. At the end of its input this process ends.
Ranks train on CPU: after the import of FBGEMM no fork can use CUDA.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "criteo"
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Start:
    """A rank to start.

    Args:
        arguments: arguments of train.py.
        env: variables to set.
        log: file of its output.
        marks: file of its marks.
        network: a process in whose network it runs; None: this one's.
        fault, phase: what happens to it, and when; fault None: nothing.
    """

    arguments: list[str]
    env: dict[str, str]
    log: str
    marks: str
    network: int | None
    fault: str | None
    phase: str


def _serve() -> Start:
    """Fork ranks until the input ends; return only in a rank."""
    buffer, pids = b"", set()
    while True:
        ready, _, _ = select.select([0], [], [], 0.02)
        while pids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            pids.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            _answer({"pid": pid, "status": code, "time": time.time()})
        if not ready:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            sys.exit(0)
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            pid = os.fork()
            if not pid:
                return Start(**json.loads(line))
            pids.add(pid)
            _answer({"pid": pid})


def _answer(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _become(start: Start) -> None:
    """Make this process the rank: its output, its network, its environment, its command line."""
    log = os.open(start.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)
    if start.network is not None:
        network = os.open(f"/proc/{start.network}/ns/net", os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(network, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(network)
    os.environ |= start.env
    sys.argv = [str(EXAMPLE / "train.py"), *start.arguments]


if __name__ == "__main__":
    sys.path.insert(0, str(EXAMPLE))
    import torchrec.metrics.ne  # noqa: F401  (what the evaluation imports)
    import train

    from tests.chaos.faults import Phases, install

    _answer({"pid": os.getpid()})
    start = _serve()
    _become(start)
    install(Phases(Path(start.marks), start.fault, start.phase))
    sys.exit(train.main())
