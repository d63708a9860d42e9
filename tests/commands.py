"""Python commands that tests run as a user does, without the seconds that their imports take.

`run` stands in for subprocess.run. A command is forked from the server of ranks, which has imported
torch and TorchRec (tests/preloaded.py), and has its own arguments, environment, folder, output and
exit status. Ranks, jobs and Python commands that it starts are forked from itself. How train.py
starts its ranks from a server of its own is tested where a test takes subprocess itself.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tests import fork_server

_subprocess_run = subprocess.run
ROOT = Path(__file__).parents[1]


def run(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Do what subprocess.run does. A Python command takes the options of `_run` and is quick."""
    if command[0] != sys.executable or not fork_server.CAN_PRELOAD:
        return _subprocess_run(command, **options)
    return _run([str(word) for word in command], **options)


def run_with(startup: str, folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new interpreter that runs `startup` first, as do its ranks.

    Args: folder: where `startup` is written, and from which the program may import.
    """
    (folder / "sitecustomize.py").write_text(startup)
    path = os.pathsep.join([str(folder), str(ROOT)])
    return _subprocess_run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def _run(
    command: list[str],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    capture_output: bool = False,
    stdout: int | None = None,
    text: bool = False,
    timeout: float = 250.0,
    check: bool = False,
) -> subprocess.CompletedProcess[Any]:
    context = multiprocessing.get_context("forkserver")  # inside a command: fork
    is_first = context.get_start_method() == "forkserver"
    if is_first:
        fork_server.start()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("stdout", "stderr")]
        how = (str(cwd or Path.cwd()), dict(env or os.environ), files, is_first)
        process: Any = context.Process(target=_execute, args=(command[1:], *how))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            os.killpg(process.pid, signal.SIGKILL) if is_first else process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, timeout, *(f.read_bytes() for f in files))
        written = [file.read_bytes() for file in files]
    outputs: list[Any] = [data.decode() if text else data for data in written]
    for number, target in ((0, stdout), (1, None)):
        if not capture_output and target is None:
            os.write(number + 1, written[number])
        if not capture_output and target != subprocess.PIPE:
            outputs[number] = None
    done = subprocess.CompletedProcess(command, process.exitcode, *outputs)
    if check:
        done.check_returncode()
    return done


def _execute(
    words: list[str], folder: str, environment: dict[str, str], files: Sequence[Path], leads: bool
) -> None:
    if leads:
        os.setsid()  # so that a timeout ends all that it has started
    for number, file in enumerate(files, start=1):
        with open(file, "wb") as output:
            os.dup2(output.fileno(), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    subprocess.run, fork = run, multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: fork
    first, *rest = words
    if first == "-m":
        sys.argv, sys.path[0] = rest, folder
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], folder
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = words, os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")
