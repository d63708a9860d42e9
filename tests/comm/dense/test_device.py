"""Gradients all-reduced in a GPU's memory: the same bits and bytes as on CPU, and nothing waits.

Without a GPU the kernels are interpreted, and tensors count as ones that the host cannot read.
"""

from contextlib import nullcontext
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

from tests.comm.dense.reductions import gradients, parameters, played, reductions, same_bits
from tests.ops.fake_gpu import HostReads, fake_gpu
from trec_qcomm import Cast, Float6, Identity, Rowwise
from trec_qcomm.comm import touched_rows
from trec_qcomm.comm.dense.all_reduce import ALGORITHMS
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.rounds import ReceivedMessages, Round, play
from trec_qcomm.comm.touched_rows import all_reduce_touched
from trec_qcomm.comm.transport import DeviceTransport
from trec_qcomm.core.checks import DeferredChecks, deferring
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.testing import run_ranks
from trec_qcomm.wire.frame import DEVICE_ALIGNMENT

NUMELS = [70, 7, 33]
SHARED = torch.cuda.is_available()  # one GPU for all ranks
DEVICE = torch.device("cuda", 0) if SHARED else torch.device("cpu")
# codec, error feedback, world sizes
CASES = {
    "bf16": (Cast("bf16"), False, (3,)),
    "int8": (Rowwise(8), False, (3,)),
    "float6": (Float6(rounding="stochastic"), False, (3,)),
    "int4 with feedback": (Rowwise(4, rounding="stochastic"), True, (2, 3)),
}


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
    codec, feedback, _ = CASES[case]
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
@pytest.mark.parametrize(("case", "world_size"), [(c, n) for c in CASES for n in CASES[c][2]])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
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


# On ranks.


def launched(transport, reduction, buckets):
    """Return the means of buckets that are all in flight."""
    buckets = [bucket.to(DEVICE) for bucket in buckets]
    futures = [
        transport.start(reduction.start(parameters(NUMELS, f"b{k}"), bucket), bucket, _ignored)
        for k, bucket in enumerate(buckets)
    ]
    return [future.wait().cpu() for future in futures]


def _ignored(_seconds):
    pass


def staged(ops):
    """Do what batch_isend_irecv does with a GPU's tensors, on gloo: NCCL wants a GPU a rank."""
    hosts = [op.tensor.cpu() for op in ops]
    works = [
        getattr(op.group, "send" if op.op is dist.isend else "recv")([host], op.group_peer, 0)
        for op, host in zip(ops, hosts, strict=True)
    ]
    for work in works:
        work.wait()
    for op, host in zip(ops, hosts, strict=True):
        if op.op is dist.irecv:
            op.tensor.copy_(host)
    return []


def buckets_of(world_size, rank):
    return [gradients(NUMELS, world_size, step)[rank] for step in range(2)]


def on_ranks():
    """Return {(world size, algorithm): the means of two buckets that were in flight}."""
    means_by_case = {}
    for world_size in (2, 3):
        pg = dist.new_group(range(world_size))
        if dist.get_rank() >= world_size:
            continue
        transport = DeviceTransport(pg, DEVICE, DeferredChecks())
        for algorithm in ALGORITHMS:
            ours = reductions(algorithm, world_size, Rowwise(4))[pg.rank()]
            means = launched(transport, ours, buckets_of(world_size, pg.rank()))
            means_by_case[world_size, algorithm] = means
    return means_by_case


def losing_a_rank():
    """Return the errors of the other ranks' futures where rank 1 takes no part."""
    dist.barrier()
    pg = dist.new_group(timeout=timedelta(seconds=5))
    transport, errors = DeviceTransport(pg, DEVICE, DeferredChecks()), []
    reduction = reductions("ring", 3, Identity())[pg.rank()]
    for _ in range(2) if pg.rank() != 1 else ():
        try:
            launched(transport, reduction, [torch.zeros(sum(NUMELS))])
        except RuntimeError as error:
            errors.append(str(error))
    dist.barrier()
    return errors


def damaging_a_frame():
    """Return the errors of two futures of rank 0 after a frame of rank 1 was changed."""
    pg = dist.new_group([0, 1])
    if dist.get_rank() > 1:
        return None
    transport = DeviceTransport(pg, DEVICE, DeferredChecks())
    launch = transport._launch

    def damage(wanted):
        received = launch(wanted)
        received.buffer[40] ^= 1
        return received

    if pg.rank() == 0:
        transport._launch = damage
    reduction = reductions("two_shot", 2, Rowwise(8))[pg.rank()]
    launched(transport, reduction, [torch.ones(sum(NUMELS))])
    if pg.rank() == 1:
        return None
    errors = []
    for _ in range(2):
        try:
            launched(transport, reduction, [torch.ones(sum(NUMELS))])
        except (CorruptFrameError, RuntimeError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    return errors


def everything():
    staging = mock.patch.object(dist, "batch_isend_irecv", staged) if SHARED else nullcontext()
    with staging, fake_gpu():
        return {"damaged": damaging_a_frame(), "lost": losing_a_rank()} | on_ranks()


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(everything, 3, timeout_s=200)


@pytest.mark.dist
@pytest.mark.triton
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_ranks_end_with_the_bits_of_the_cpu(ranks, algorithm, world_size):
    ours = reductions(algorithm, world_size, Rowwise(4))
    buckets = [buckets_of(world_size, rank) for rank in range(world_size)]
    for k, each in enumerate(zip(*buckets, strict=True)):
        play([r.start(parameters(NUMELS, f"b{k}"), b) for r, b in zip(ours, each, strict=True)])
        for rank in range(world_size):
            assert same_bits(ranks[rank][world_size, algorithm][k], each[rank])


@pytest.mark.dist
@pytest.mark.triton
def test_a_lost_rank_is_an_error_on_all_others(ranks):
    errors = [ranks[rank]["lost"] for rank in (0, 2)]
    assert any("imed out" in first for first, _ in errors)  # the other may see that one leave
    for first, second in errors:
        assert "before this one failed" in second
        assert "before this one failed" not in first


@pytest.mark.dist
@pytest.mark.triton
def test_a_damaged_frame_is_raised_by_the_next_all_reduce(ranks):
    first, second = ranks[0]["damaged"]
    assert first.startswith("CorruptFrameError: frame from rank 1")
    assert "before this one failed: frame from rank 1" in second
