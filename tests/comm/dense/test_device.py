"""Gradients all-reduced in a GPU's memory: the same bits and bytes as on CPU, and nothing waits.

Without a GPU the kernels are interpreted, and tensors count as ones that the host cannot read.
"""

import pytest
import torch
from torch.nn import functional as F

from tests.comm.dense.reductions import gradients, parameters, played, reductions, same_bits
from tests.ops.fake_gpu import HostReads, fake_gpu
from trec_qcomm import Cast, Float6, Rowwise
from trec_qcomm.comm import touched_rows
from trec_qcomm.comm.dense.all_reduce import ALGORITHMS
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.rounds import ReceivedMessages, Round
from trec_qcomm.comm.touched_rows import all_reduce_touched
from trec_qcomm.core.checks import DeferredChecks, deferring
from trec_qcomm.lab.ranks.rounds import play
from trec_qcomm.wire.frame import DEVICE_ALIGNMENT

NUMELS = [70, 7, 33]
SHARED = torch.cuda.is_available()  # one GPU for all ranks
DEVICE = torch.device("cuda", 0) if SHARED else torch.device("cpu")
# codec, error feedback
CASES = {
    "bf16": (Cast("bf16"), False),
    "int8": (Rowwise(8), False),
    "float6": (Float6(rounding="stochastic"), False),
    "int4 with feedback": (Rowwise(4, rounding="stochastic"), True),
}
# The codec that keeps residuals under each algorithm, and each codec under one.
RUNS = [
    *((algorithm, 3, "int4 with feedback") for algorithm in ALGORITHMS),
    ("recursive_doubling", 2, "int4 with feedback"),  # no rank is left over
    *zip(ALGORITHMS, (3, 3, 3), ("bf16", "int8", "float6"), strict=True),
]


def steps(world_size):
    """Return the buckets of each rank in three steps.

    In the second, one parameter has no gradient on rank 0 and another has none on any rank; in the
    third some values are not finite.
    """
    buckets_by_step = [gradients(NUMELS, world_size, step) for step in range(3)]
    buckets_by_step[1][0][:70] = 0
    for bucket in buckets_by_step[1]:
        bucket[77:] = 0
    buckets_by_step[2][0][3], buckets_by_step[2][-1][80] = torch.inf, torch.nan
    return buckets_by_step


def several_steps(algorithm, world_size, case, device):
    """Return results and residuals of each step (of the last one, without feedback) and counts."""
    codec, feedback = CASES[case]
    ranks = reductions(algorithm, world_size, codec, error_feedback=feedback)
    results = []
    for buckets in steps(world_size)[0 if feedback else -1 :]:
        with deferring(checks := DeferredChecks()):
            results += played(ranks, NUMELS, [bucket.to(device) for bucket in buckets])
        checks.raise_found(wait=True)
        for rank in ranks if feedback else []:
            for sites in rank.error_feedback.state_dict().values():
                results += sites.values()
    counted = [(int(r.traffic.wire_nbytes), r.traffic.header_nbytes) for r in ranks]
    return [tensor.cpu() for tensor in results], counted


@pytest.mark.triton
@pytest.mark.parametrize(("algorithm", "world_size", "case"), RUNS)
def test_bits_and_bytes_are_those_of_the_cpu(algorithm, world_size, case):
    expected, expected_counts = several_steps(algorithm, world_size, case, "cpu")
    with fake_gpu():
        results, counts = several_steps(algorithm, world_size, case, DEVICE)
    for ours, theirs in zip(results, expected, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        numbers = ~ours.isnan()  # of two NaN a sum may take either one's bits
        assert same_bits(ours[numbers], theirs[numbers])
    # Messages begin and end at multiples of 128 bytes; what is between frames counts as headers.
    assert [payload for payload, _ in counts] == [payload for payload, _ in expected_counts]
    assert all((payload + headers) % 128 == 0 for payload, headers in counts)


@pytest.mark.triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="watches what stands in for a GPU")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_host_reads_nothing(algorithm):
    ranks = reductions(algorithm, 3, Rowwise(4, rounding="stochastic"), error_feedback=True)
    buckets = gradients(NUMELS, 3)
    with fake_gpu():
        reads = HostReads(*buckets)
        with reads.watching(), deferring(DeferredChecks()):
            played(ranks, NUMELS, buckets)  # fetches the residuals, and uploads what is kept
            reads.calls.clear()
            shapes = parameters(NUMELS)
            play([r.start(shapes, bucket) for r, bucket in zip(ranks, buckets, strict=True)])
            assert reads.calls == []
            assert bool(buckets[0].isfinite().all())
            assert reads.calls == ["__bool__"]


def together(ranks):
    """Run the generators of all ranks where a message leaves only when its receiver waits for it.

    NCCL works so: a rank goes on when all its peers of a round are in the rounds it pairs up with.
    """
    waiting = dict(enumerate(map(next, ranks)))
    while waiting:
        ready = ready_ranks(waiting)
        assert ready, f"ranks {sorted(waiting)} wait for one another"
        received = {
            rank: torch.cat(
                [torch.empty(0, dtype=torch.uint8)]
                + [m for s in dict.fromkeys(waiting[rank].sources) for m in sent(waiting[s], rank)]
            )
            for rank in ready
        }
        for rank in ready:
            wanted = waiting.pop(rank)
            try:
                waiting[rank] = ranks[rank].send(
                    ReceivedMessages(received[rank], list(wanted.nbytes))
                )
            except StopIteration:
                continue


def sent(wanted, to):
    return [message for peer, message in wanted.sends if peer == to and message.numel()]


def expected_nbytes(wanted, source):
    return [n for s, n in zip(wanted.sources, wanted.nbytes, strict=True) if s == source and n]


def ready_ranks(waiting):
    """Return the ranks whose sends and receives fit those of all their peers in this round."""
    good = set(waiting)
    while True:
        bad = {
            rank
            for rank in good
            for peer in {p for p, _ in waiting[rank].sends} | set(waiting[rank].sources)
            if peer not in good
            or [m.numel() for m in sent(waiting[rank], peer)]
            != expected_nbytes(waiting[peer], rank)
            or [m.numel() for m in sent(waiting[peer], rank)]
            != expected_nbytes(waiting[rank], peer)
        }
        if not bad:
            return good
        good -= bad


@pytest.mark.parametrize("world_size", range(1, 9))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_rank_sends_before_another_receives(algorithm, world_size):
    """Each round is one group of sends and receives, as NCCL has them: it ends as a whole."""
    codec = Rowwise(4)
    buckets = gradients(NUMELS, world_size)
    expected = played(reductions(algorithm, world_size, codec), NUMELS, buckets)
    ranks = reductions(algorithm, world_size, codec)
    shapes = parameters(NUMELS)
    generators = [r.start(shapes, bucket) for r, bucket in zip(ranks, buckets, strict=True)]
    if world_size > 1:
        together(generators)
        assert all(same_bits(a, b) for a, b in zip(buckets, expected, strict=True))


def test_ranks_that_both_send_first_are_noticed():
    def sends_then_receives(peer):
        yield Round([(peer, torch.zeros(8, dtype=torch.uint8))], [], [], [])
        yield Round([], [peer], [8], [8])

    play([sends_then_receives(1), sends_then_receives(0)])  # a message waits for its receiver here
    with pytest.raises(AssertionError, match="wait for one another"):
        together([sends_then_receives(1), sends_then_receives(0)])


def touched(device):
    """Return the means of tables where ranks touched some rows or none, and one a row of NaN."""
    tables = [ParameterShape("a", 40 * 3, 3), ParameterShape("b", 30 * 8, 8)]
    ranks = reductions("two_shot", 3, Rowwise(8))
    buckets = [torch.zeros(360) for _ in ranks]
    for rank, bucket in enumerate(buckets[1:]):
        for row in (0, 7, 39):
            bucket[3 * row + rank : 3 * row + 3] = torch.randn(3 - rank)
        bucket[120 + 8 * rank : 128 + 8 * rank] = torch.linspace(-1, 1, 8)
    buckets[0][350] = torch.nan
    buckets = [bucket.to(device) for bucket in buckets]
    with deferring(checks := DeferredChecks()):
        play([all_reduce_touched(r, tables, b) for r, b in zip(ranks, buckets, strict=True)])
    checks.raise_found(wait=True)
    return [bucket.cpu() for bucket in buckets], [int(r.traffic.wire_nbytes) for r in ranks]


@pytest.mark.triton
def test_touched_rows_are_those_of_the_cpu():
    torch.manual_seed(0)
    expected, expected_nbytes = touched("cpu")
    torch.manual_seed(0)
    with fake_gpu():
        results, nbytes = touched(DEVICE)
    assert nbytes == expected_nbytes
    for ours, theirs in zip(results, expected, strict=True):
        assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))
        assert int(ours.isnan().sum()) == 1


@pytest.mark.parametrize("num_rows", [0, 1, 64, 75])
def test_bits_of_touched_rows_are_those_of_the_cpu(num_rows):
    chosen = torch.rand(num_rows, generator=torch.Generator().manual_seed(0)) < 0.5
    expected = touched_rows._packed(chosen)
    expected = F.pad(expected, (0, -len(expected) % DEVICE_ALIGNMENT))
    with fake_gpu():
        bits = touched_rows._packed(chosen.to(DEVICE))
        assert torch.equal(touched_rows._unpacked(bits, num_rows).cpu(), chosen)
    assert torch.equal(bits.cpu(), expected)
