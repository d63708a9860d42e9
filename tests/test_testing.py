"""run_ranks: ranks are forked from a server, which starts once and has its own environment."""

import importlib
import os
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trec_qcomm.testing import run_ranks


def variable() -> str | None:
    return os.environ.get("TREC_QCOMM_TEST")


def fails_on_rank_1() -> int:
    if dist.get_rank() == 1:
        raise ValueError("of rank 1")
    return 0


@pytest.mark.dist
def test_ranks_have_the_environment_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server starts with the first call; the environment is that of each call."""
    for value in ("one", "two"):
        monkeypatch.setenv("TREC_QCOMM_TEST", value)
        assert run_ranks(variable, 2) == [value, value]
    monkeypatch.delenv("TREC_QCOMM_TEST")
    assert run_ranks(variable, 1) == [None]


@pytest.mark.dist
def test_the_traceback_of_a_rank_that_fails_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)rank 1: Traceback.*ValueError: of rank 1"):
        run_ranks(fails_on_rank_1, 2)


@pytest.mark.dist
def test_an_interrupt_ends_the_ranks_that_have_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank would wait for the others in vain, for minutes."""
    start, started = ForkServerProcess.start, []

    def interrupted(process: ForkServerProcess) -> None:
        if started:
            raise KeyboardInterrupt
        started.append(process)
        start(process)

    monkeypatch.setattr(ForkServerProcess, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_ranks(variable, 2)
    assert not started[0].is_alive()


# A torch that is built for CUDA, as far as FBGEMM looks, and finds no GPU.
CUDA_BUILD = """
import os
import torch

asked = []  # processes that asked for GPUs, after which no fork of theirs can use one

def count():
    asked.append(os.getpid())
    return 0

torch._C._cuda_getDeviceCount = count
"""


@pytest.fixture
def of_a_cuda_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the next server, and the processes that it forks, have that torch."""
    (tmp_path / "sitecustomize.py").write_text(CUDA_BUILD)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    forkserver._forkserver._stop()  # it was written for tests
    yield
    forkserver._forkserver._stop()


def asked_for_cuda() -> tuple[int, bool]:
    """Return how often CUDA was asked for before this rank was forked; and that FBGEMM asks."""
    asked = importlib.import_module("sitecustomize").asked
    before = len(asked)
    importlib.import_module("fbgemm_gpu")
    return before, asked[before:] == [os.getpid()]


@pytest.mark.dist
@pytest.mark.usefixtures("of_a_cuda_build")
def test_nothing_asks_for_cuda_before_a_rank_is_forked() -> None:
    assert run_ranks(asked_for_cuda, 1) == [(0, True)]
