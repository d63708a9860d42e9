"""run_ranks: ranks are forked from a server, which starts once and has its own environment."""

import os

import pytest
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
