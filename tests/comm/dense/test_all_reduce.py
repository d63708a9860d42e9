"""All-reduce by three algorithms: equal bits, error, bytes. Played in one process."""

import pytest
import torch
import torch.distributed as dist

from tests.comm.deflate_codec import Deflate
from tests.comm.dense.reductions import gradients, parameters, played, reductions, same_bits
from trec_qcomm import Cast, ErrorBounded, Identity, Rowwise
from trec_qcomm.comm.dense.all_reduce import ALGORITHMS
from trec_qcomm.comm.peers import Peers
from trec_qcomm.comm.rounds import Round
from trec_qcomm.comm.transport import run_round
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.testing import run_ranks

WORLD_SIZES = (1, 2, 3, 6)  # 6: two levels, and two ranks more
BUCKETS = ([1000, 7, 300], [3], [], [0, 5], [64], [19, 20])
CODECS = (Identity(), Cast("bf16"), Rowwise(4), Rowwise(2, rounding="stochastic"), Deflate())


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_ranks_end_with_equal_bits_run_to_run(algorithm, world_size):
    for codec in CODECS:
        for numels in BUCKETS:
            buckets = gradients(numels, world_size)
            twice = [
                played(reductions(algorithm, world_size, codec), numels, buckets) for _ in range(2)
            ]
            for results in twice:
                assert all(same_bits(result, twice[0][0]) for result in results)
            mean = torch.stack(buckets).double().mean(0)
            summands = torch.stack(buckets).double().abs().mean(0)
            if codec.contract is Identity().contract:
                # N - 1 additions, and a division of each summand.
                slack = (2 * world_size - 1) * 2.0**-24 * summands
                assert bool(((twice[0][0] - mean).abs() <= slack).all())


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_error_is_at_most_that_of_each_encoding_times_their_number(algorithm, world_size):
    bound, numels = 2.0**-8, [1000, 7, 300]
    buckets = gradients(numels, world_size)
    ranks = reductions(algorithm, world_size, ErrorBounded(bound, mode="abs"))
    mean = torch.stack(buckets).double().mean(0)
    worst = (played(ranks, numels, buckets)[0] - mean).abs().max()
    count = num_encodings(algorithm, world_size)
    sums = 2 * world_size * 2.0**-24 * torch.stack(buckets).double().abs().mean(0).max()
    assert worst <= count * bound + sums
    assert worst > bound / 2 or count == 0  # the bound is not idle


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_parameters_below_the_least_size_and_rests_are_exact(algorithm):
    numels = [19, 20]
    buckets = [torch.randint(-8, 8, (39,)).float() for _ in range(4)]
    result = played(reductions(algorithm, 4, Rowwise(2)), numels, buckets)[0]
    exact = torch.stack(buckets).mean(0)
    assert torch.equal(result[:19], exact[:19])
    assert torch.equal(result[35:], exact[35:])
    assert not torch.equal(result[19:35], exact[19:35])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("error_feedback", [False, True])
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "hierarchical"])
def test_what_is_not_finite_reaches_all_ranks_and_no_residual(algorithm, error_feedback, value):
    by_node = {"intra": Cast("bf16"), "ranks_per_node": 2} if algorithm == "hierarchical" else {}
    numels = [1000]
    for codec in (Rowwise(4), ErrorBounded(0.01), Cast("fp16")):
        ranks = reductions(algorithm, 4, codec, error_feedback=error_feedback, **by_node)
        played(ranks, numels, gradients(numels, 4, step=1))
        if error_feedback:
            before = [r.error_feedback.state_dict() for r in ranks]
        buckets = gradients(numels, 4, step=2)
        buckets[2][500] = value
        for result in played(ranks, numels, buckets):
            assert bool(result[500].isnan()) == (value != value)
            assert not bool(result[500].isfinite())
            assert int((~result.isfinite()).sum()) == 1
        if error_feedback:
            for r, old in zip(ranks, before, strict=True):
                new = r.error_feedback.state_dict()["p0"]
                assert new.keys() == old["p0"].keys()
                assert all(torch.equal(new[site], old["p0"][site]) for site in new)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_wrong_gradients_are_refused(algorithm):
    (reduction,) = reductions(algorithm, 1, Identity())
    with pytest.raises(ValueError, match="expected float32 on cpu"):
        reduction.start(parameters([3]), torch.zeros(3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"expected \[4\]"):
        reduction.start(parameters([4]), torch.zeros(3))


# On ranks.


def num_encodings(algorithm, world_size):
    """Return how often one chunk is encoded by all ranks together on its way into the sum.

    A codec with |error| <= e gives |error of the sum| <= that number times e, plus the rounding of
    the sum itself.
    """
    power = 1 << (world_size.bit_length() - 1)
    return {
        "ring": world_size,
        "recursive_doubling": 2 * (power - 1) + world_size - power,
        "two_shot": world_size + 1,
    }[algorithm]


def refuses_sizes():
    """Rank 0 announces a size that no frame of ours has."""
    pg = dist.group.WORLD
    message = torch.zeros(64, dtype=torch.uint8)
    if dist.get_rank() == 0:
        run_round(Peers(pg), Round([(1, message)], [], nbytes=None, max_nbytes=[]), "test")
        return None
    try:
        run_round(Peers(pg), Round([], [0], nbytes=None, max_nbytes=[56]), "test")
    except CorruptFrameError as error:
        pg.recv([message], 0, 0).wait()
        return str(error)


@pytest.mark.dist
def test_a_size_that_nobody_has_reason_to_announce_is_refused():
    assert run_ranks(refuses_sizes, 2)[1] == "frame from rank 0: 64 bytes announced, at most 56"
