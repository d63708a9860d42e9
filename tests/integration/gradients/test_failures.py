"""Errors that the user of a DDP gets where an all-reduce fails, and that no state comes of it."""

import os
from contextlib import contextmanager
from datetime import timedelta
from unittest import mock

import pytest
import torch.distributed as dist

from tests.integration.gradients.test_device import (
    dense_gradients,
    distributed,
    each_alone,
    on_stand_ins,
    train,
)
from trec_qcomm.comm import transport
from trec_qcomm.testing import run_ranks

TIMEOUT_S = 5
NUM_ROUNDS = 2  # of a step: one of each bucket


def registered(num_reduced=NUM_ROUNDS):
    """Return gradients and their DDP, on a process group of its own, after two steps.

    By then DDP has put its buckets together anew: there are several, and it communicates in
    backward only.

    Args: num_reduced: number of all-reduces of a step.
    """
    dist.barrier()
    gradients = dense_gradients()
    pg = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    ddp = distributed(gradients, process_group=pg, bucket_cap_mb=0.0001)
    train(ddp, range(2))
    assert len(gradients._reduction.error_feedback._buckets) == num_reduced
    return gradients, ddp


def step(ddp):
    train(ddp, [2])


def error_of(call, *args):
    """Return class and text of the error that a call raises."""
    with pytest.raises(RuntimeError) as raised:
        call(*args)
    return f"{raised.type.__name__}: {raised.value}"


def damaging(run, number):
    """Return a function that runs rounds and changes what arrived in one of them."""
    num_rounds = 0

    def damaged(*args, **options):
        nonlocal num_rounds
        num_rounds += 1
        arrived = run(*args, **options)
        arrived.buffer[40] ^= num_rounds == number
        return arrived

    return damaged


# On CPU.


def damaged_on_rank_0(num_reduced):
    """Return the errors of two backwards.

    Rank 0 refuses a frame in the first, and rank 1 waits for rank 0: in the next round, which is
    in the second backward if a backward has one round.
    """
    _, ddp = registered(num_reduced)
    run = transport.run_round
    damaged = damaging(run, 1) if dist.get_rank() == 0 else run
    if dist.get_rank() == 1 and num_reduced == 1:
        step(ddp)
    with mock.patch.object(transport, "run_round", damaged):
        return [error_of(step, ddp) for _ in range(2)]


# On stand-ins for a GPU.


@contextmanager
def after_a_damaged_step():
    """Yield gradients and DDP after a step in which rank 0 got a frame that was changed."""
    gradients, ddp = registered()
    if dist.get_rank() == 0:
        gradients._transport._launch = damaging(gradients._transport._launch, NUM_ROUNDS)
    step(ddp)
    yield gradients, ddp
    dist.barrier()


def state_asked_for_first():
    with after_a_damaged_step() as (gradients, ddp):
        if dist.get_rank() == 0:
            asked = [error_of(gradients.state_dict) for _ in range(2)]
            return [*asked, error_of(step, ddp)]


def state_asked_for_after_a_step():
    with after_a_damaged_step() as (gradients, ddp):
        if dist.get_rank() == 0:
            return [error_of(step, ddp), error_of(gradients.state_dict)]


def silent_on_rank_1():
    """Return the error of a backward of rank 0, where rank 1 takes no part."""
    _, ddp = registered()
    error = error_of(step, ddp) if dist.get_rank() == 0 else ""
    dist.barrier()
    return error


def everything():
    errors = {"together": damaged_on_rank_0(1)}
    with each_alone():
        errors["cpu"] = damaged_on_rank_0(NUM_ROUNDS)
    with on_stand_ins():
        errors["state first"] = state_asked_for_first()
        errors["step first"] = state_asked_for_after_a_step()
        errors["silent"] = silent_on_rank_1()
    return errors


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(everything, 2, timeout_s=100)


@pytest.mark.dist
@pytest.mark.triton
@pytest.mark.parametrize("case", ["cpu", "together"])
def test_backward_says_what_was_wrong_with_a_frame(ranks, case):
    first, second = ranks[0][case]
    assert first.startswith("RuntimeError: ")
    assert "CorruptFrameError: frame from rank 1: " in first
    assert "an all-reduce before this one failed: frame from rank 1: " in second


@pytest.mark.dist
@pytest.mark.triton
@pytest.mark.parametrize("case", ["cpu", "together"])
def test_backward_says_that_it_waited_too_long(ranks, case):
    first, second = ranks[1][case]
    assert "LostPeerError: rank 1: rank 0 did not answer in 5" in first
    number = 3 if case == "together" else 2
    assert f" s: all-reduce of dense gradients, step {number}: " in first
    assert "Unable to cast" not in first  # DDP's words where it takes an error for a tensor
    assert "an all-reduce before this one failed: " in second


@pytest.mark.dist
@pytest.mark.triton
@pytest.mark.parametrize("case", ["state first", "step first"])
def test_each_call_after_a_bad_frame_on_a_gpu_says_so(ranks, case):
    for error in ranks[0][case]:
        assert error.startswith("CorruptFrameError: frame from rank 1: ")


@pytest.mark.dist
@pytest.mark.triton
def test_backward_on_a_gpu_says_that_a_rank_is_silent(ranks):
    assert "imed out" in ranks[0]["silent"]


# A rank that ends.


def note_what_a_lost_rank_is(folder):
    """Rank 1 ends in the second round of its backward."""
    with each_alone():
        _lose_rank_1(folder)


def _lose_rank_1(folder):
    _, ddp = registered()
    run, num_rounds = transport.run_round, 0

    def until_it_ends(*args, **options):
        nonlocal num_rounds
        num_rounds += 1
        if num_rounds == 2:
            os._exit(0)
        return run(*args, **options)

    if dist.get_rank() == 1:
        with mock.patch.object(transport, "run_round", until_it_ends):
            step(ddp)
    (folder / "error").write_text(error_of(step, ddp))
    os._exit(0)  # the default group cannot be left in order without rank 1


@pytest.mark.dist
def test_backward_says_that_a_rank_is_lost(tmp_path):
    with pytest.raises(RuntimeError, match="rank 1: ended without a result"):
        run_ranks(note_what_a_lost_rank_is, 2, tmp_path, timeout_s=60)
    error = (tmp_path / "error").read_text()
    assert "Unable to cast" not in error
    assert "LostPeerError: rank 0: lost rank 1 after " in error
    assert "onnection closed by peer" in error or "onnection reset by peer" in error, error
