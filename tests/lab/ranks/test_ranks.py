"""Played ranks do what real ranks do, bit for bit, and fail at once where real ranks would hang."""

import gc
import os
import random
import signal
import threading

import pytest
import torch
import torch.distributed as dist

from tests.lab.ranks import programs
from tests.rank_programs import results_of, run_programs
from trec_qcomm.lab.ranks.ranks import PlayedRanks

NUM_RANKS = 3  # the order of sums shows from three on


@pytest.fixture(scope="module")
def real():
    return run_programs(programs.run, NUM_RANKS, {name: name for name in programs.PROGRAMS})


@pytest.fixture(scope="module")
def ranks():
    return PlayedRanks(NUM_RANKS)


@pytest.mark.dist
@pytest.mark.parametrize("name", list(programs.PROGRAMS))
def test_equals_gloo(real, ranks, name):
    expected = results_of(real[name])
    played = ranks.run(programs.PROGRAMS[name])
    for rank, (theirs, ours) in enumerate(zip(expected, played, strict=True)):
        assert len(theirs) == len(ours) > 0
        for number, (a, b) in enumerate(zip(theirs, ours, strict=True)):
            assert torch.equal(a, b), (rank, number)


def test_each_rank_has_what_a_process_has(ranks):
    torch.manual_seed(5)
    before = torch.get_rng_state()

    def first():
        torch.manual_seed(dist.get_rank())
        dist.barrier()
        return torch.rand(()).item(), os.environ["RANK"], os.environ["WORLD_SIZE"]

    def second():
        dist.barrier()
        return torch.rand(()).item()

    expected = [
        torch.rand(2, generator=torch.Generator().manual_seed(r)).tolist() for r in range(NUM_RANKS)
    ]
    assert ranks.run(first) == [(e[0], str(r), "3") for r, e in enumerate(expected)]
    assert ranks.run(second) == [e[1] for e in expected]
    assert torch.equal(torch.get_rng_state(), before)
    assert not dist.is_initialized()
    assert "WORLD_SIZE" not in os.environ


def test_arguments_and_grad_mode_are_the_callers(ranks):
    assert ranks.run(lambda a, b: (a, b, dist.get_rank()), "xyz", [1, 2, 3]) == [
        ("x", 1, 0),
        ("y", 2, 1),
        ("z", 3, 2),
    ]
    with torch.no_grad():
        assert ranks.run(torch.is_grad_enabled) == [False] * NUM_RANKS
    assert ranks.run(torch.is_grad_enabled) == [True] * NUM_RANKS
    with pytest.raises(ValueError, match=r"argument 2 of .*: 2 items for 3 ranks"):
        ranks.run(lambda a, b: None, "xyz", [1, 2])


def test_the_order_of_ranks_repeats():
    def order():
        seen = []
        ranks = PlayedRanks(4)

        def visit():
            for _ in range(5):
                seen.append(dist.get_rank())
                if random.random() < 0.5:
                    torch.rand(1000).sum()
                dist.barrier()

        ranks.run(visit)
        return seen

    assert order() == order()


def fails_in(where):
    value = torch.ones(3)
    if dist.get_rank() == 1:
        raise KeyError("my own error")
    where(value)


@pytest.mark.parametrize(
    "where", [dist.all_reduce, lambda value: dist.all_to_all_single(torch.empty_like(value), value)]
)
def test_a_failed_rank_ends_all_with_its_own_error(where):
    ranks = PlayedRanks(NUM_RANKS)
    with pytest.raises(KeyError, match="my own error") as caught:
        ranks.run(lambda: fails_in(where))
    assert caught.value.__notes__ == ["raised on rank 1 of 3 played ranks"]
    with pytest.raises(RuntimeError, match="rank 1 failed in an earlier run"):
        ranks.run(dist.barrier)


def test_an_error_inside_ddp_is_told():
    """The all-reduce of one rank waits in C++, inside autograd, when the other rank fails."""

    def train():
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        if dist.get_rank() == 1:
            model.register_comm_hook(None, _broken_hook)
        model(torch.ones(1, 2)).sum().backward()

    with pytest.raises(ZeroDivisionError):
        PlayedRanks(2).run(train)


def _broken_hook(state, bucket):
    raise ZeroDivisionError("in a hook")


def leaves_early():
    if dist.get_rank() == 1:
        return
    dist.all_reduce(torch.ones(1))


def other_collective():
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1))
    dist.barrier()


def other_size():
    dist.all_gather([torch.empty(2) for _ in range(NUM_RANKS)], torch.empty(2 + dist.get_rank()))


def no_sender():
    dist.recv(torch.empty(1), src=(dist.get_rank() + 1) % NUM_RANKS)


def gloo_group():
    dist.new_group([0, 1, 2], backend="gloo")


@pytest.mark.parametrize(
    ("program", "error", "text"),
    [
        (leaves_early, RuntimeError, r"rank 0 waits for all_reduce of group '0', to which rank 1"),
        (other_collective, RuntimeError, "rank 1 calls all_reduce where rank 0 calls barrier"),
        (other_size, ValueError, "a message of 3 torch.float32 is received as 2 torch.float32"),
        (no_sender, RuntimeError, "rank 2 waits for a message of rank 0"),
        (gloo_group, RuntimeError, "leave out the backend"),
    ],
)
def test_what_would_hang_or_crash_is_an_error(program, error, text):
    with pytest.raises(error, match=text):
        PlayedRanks(NUM_RANKS).run(program)


def test_bad_numbers_of_ranks():
    for number in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match=r"ranks: .* is not a whole number of 1 or more"):
            PlayedRanks(number)
    with pytest.raises(ValueError, match="ranks_per_node: 3 ranks are not nodes of 2 each"):
        PlayedRanks(3, ranks_per_node=2)


def test_ctrl_c_ends_all_ranks():
    """Ctrl-C comes while the caller waits, and the ranks end at their next collective."""

    def run():
        if dist.get_rank() == 1:
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # which wakes no other thread
        while True:
            dist.barrier()

    ranks = PlayedRanks(2)
    # In the background of a shell SIGINT is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ranks.run(run)
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(RuntimeError, match="failed in an earlier run"):
        ranks.run(dist.barrier)


def test_threads_end_with_the_ranks():
    before = threading.active_count()
    ranks = PlayedRanks(3)
    assert threading.active_count() == before + 3
    assert ranks.run(dist.get_world_size) == [3, 3, 3]
    del ranks
    gc.collect()
    assert threading.active_count() == before


def test_runs_do_not_nest(ranks):
    with pytest.raises(RuntimeError, match="neither inside of a rank"):
        PlayedRanks(2).run(lambda: ranks.run(dist.barrier))
