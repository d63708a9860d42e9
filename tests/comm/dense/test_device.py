"""Gradients all-reduced in a GPU's memory: the bits and bytes of the CPU's way, and nothing waits.

Without a GPU the kernels are interpreted, and tensors are taken for ones that the host cannot read.
"""

from contextlib import nullcontext
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from tests.comm.dense.reductions import gradients, parameters, played, reductions, same_bits
from tests.ops.fake_gpu import HostReads, fake_gpu
from trec_qcomm import Cast, Float6, Identity, Rowwise
from trec_qcomm.comm import touched_rows
from trec_qcomm.comm.dense.all_reduce import ALGORITHMS
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.rounds import Arrived, Round, play
from trec_qcomm.comm.touched_rows import all_reduce_touched
from trec_qcomm.comm.transport import DeviceTransport
from trec_qcomm.core.checks import Checks, deferring
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.testing import run_ranks

NUMELS = [70, 7, 33]
SHARED = torch.cuda.is_available()  # by all ranks, one GPU
DEVICE = torch.device("cuda", 0) if SHARED else torch.device("cpu")
# codec, error feedback, world sizes
CASES = {
    "bf16": (Cast("bf16"), False, (3,)),
    "int8": (Rowwise(8), False, (3,)),
    "float6": (Float6(rounding="stochastic"), False, (3,)),
    "int4 with feedback": (Rowwise(4, rounding="stochastic"), True, (2, 3)),
}


def steps(world_size):
    """Gradients of each rank: plain ones, then none of a parameter on rank 0 and nowhere of
    another, then some that are not finite."""
    found = [gradients(NUMELS, world_size, step) for step in range(3)]
    found[1][0][:70] = 0
    for own in found[1]:
        own[77:] = 0
    found[2][0][3], found[2][-1][80] = torch.inf, torch.nan
    return found


def several_steps(algorithm, world_size, case, device):
    """Results and residuals of each step, without feedback of the last, and what was counted."""
    codec, feedback, _ = CASES[case]
    ranks = reductions(algorithm, world_size, codec, error_feedback=feedback)
    found = []
    for buckets in steps(world_size)[0 if feedback else -1 :]:
        with deferring(checks := Checks()):
            found += played(ranks, NUMELS, [bucket.to(device) for bucket in buckets])
        checks.raise_found(wait=True)
        for rank in ranks if feedback else []:
            for sites in rank.error_feedback.state_dict().values():
                found += sites.values()
    counted = [(int(r.traffic.wire_nbytes), r.traffic.header_nbytes) for r in ranks]
    return [tensor.cpu() for tensor in found], counted


@pytest.mark.triton
@pytest.mark.parametrize(("case", "world_size"), [(c, n) for c in CASES for n in CASES[c][2]])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bits_and_bytes_are_those_of_the_cpu(algorithm, world_size, case):
    expected, expected_counts = several_steps(algorithm, world_size, case, "cpu")
    with fake_gpu():
        found, counts = several_steps(algorithm, world_size, case, DEVICE)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        numbers = ~ours.isnan()  # of two NaN a sum may take either one's bits
        assert same_bits(ours[numbers], theirs[numbers])
    assert counts == expected_counts


@pytest.mark.triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="watches what stands in for a GPU")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_host_reads_nothing(algorithm):
    ranks = reductions(algorithm, 3, Rowwise(4, rounding="stochastic"), error_feedback=True)
    buckets = gradients(NUMELS, 3)
    with fake_gpu():
        played(ranks, NUMELS, buckets)  # fetches the residuals
        reads = HostReads(*buckets)
        with reads.watching(), deferring(Checks()):
            of = parameters(NUMELS)
            play([r.start(of, bucket) for r, bucket in zip(ranks, buckets, strict=True)])
            assert reads.calls == []
            assert bool(buckets[0].isfinite().all())
            assert reads.calls == ["__bool__"]


def together(ranks):
    """Run generators of all ranks where a message leaves as late as its receiver waits for it, as
    NCCL's do: a rank goes on when all its peers of a round are in the rounds it pairs up with."""
    waiting = dict(enumerate(map(next, ranks)))
    while waiting:
        ready = ready_ranks(waiting)
        assert ready, f"ranks {sorted(waiting)} wait for one another"
        arrived = {
            rank: torch.cat(
                [torch.empty(0, dtype=torch.uint8)]
                + [m for s in dict.fromkeys(waiting[rank].sources) for m in sent(waiting[s], rank)]
            )
            for rank in ready
        }
        for rank in ready:
            wanted = waiting.pop(rank)
            try:
                waiting[rank] = ranks[rank].send(Arrived(arrived[rank], list(wanted.nbytes)))
            except StopIteration:
                continue


def sent(wanted, to):
    return [message for peer, message in wanted.sends if peer == to and message.numel()]


def due(wanted, source):
    return [n for s, n in zip(wanted.sources, wanted.nbytes, strict=True) if s == source and n]


def ready_ranks(waiting):
    """Those whose sends and receives of this round are what their peers' rounds say, and theirs."""
    good = set(waiting)
    while True:
        bad = {
            rank
            for rank in good
            for peer in {p for p, _ in waiting[rank].sends} | set(waiting[rank].sources)
            if peer not in good
            or [m.numel() for m in sent(waiting[rank], peer)] != due(waiting[peer], rank)
            or [m.numel() for m in sent(waiting[peer], rank)] != due(waiting[rank], peer)
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
    of = parameters(NUMELS)
    generators = [r.start(of, bucket) for r, bucket in zip(ranks, buckets, strict=True)]
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
    """Means of tables of which ranks touched some rows, or none, and one rank a row of NaN."""
    tables = [ParameterShape("a", 40 * 3, 3), ParameterShape("b", 30 * 8, 8)]
    ranks = reductions("two_shot", 3, Rowwise(8))
    buckets = [torch.zeros(360) for _ in ranks]
    for rank, bucket in enumerate(buckets[1:]):
        for row in (0, 7, 39):
            bucket[3 * row + rank : 3 * row + 3] = torch.randn(3 - rank)
        bucket[120 + 8 * rank : 128 + 8 * rank] = torch.linspace(-1, 1, 8)
    buckets[0][350] = torch.nan
    buckets = [bucket.to(device) for bucket in buckets]
    with deferring(checks := Checks()):
        play([all_reduce_touched(r, tables, b) for r, b in zip(ranks, buckets, strict=True)])
    checks.raise_found(wait=True)
    return [bucket.cpu() for bucket in buckets], [int(r.traffic.wire_nbytes) for r in ranks]


@pytest.mark.triton
def test_touched_rows_are_those_of_the_cpu():
    torch.manual_seed(0)
    expected, expected_nbytes = touched("cpu")
    torch.manual_seed(0)
    with fake_gpu():
        found, nbytes = touched(DEVICE)
    assert nbytes == expected_nbytes
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))
        assert int(ours.isnan().sum()) == 1


@pytest.mark.parametrize("num_rows", [0, 1, 64, 75])
def test_bits_of_touched_rows_are_those_of_the_cpu(num_rows):
    chosen = torch.rand(num_rows, generator=torch.Generator().manual_seed(0)) < 0.5
    expected = touched_rows._packed(chosen)
    with fake_gpu():
        found = touched_rows._packed(chosen.to(DEVICE))
        assert torch.equal(touched_rows._unpacked(found, num_rows).cpu(), chosen)
    assert torch.equal(found.cpu(), expected)


# On ranks.


def launched(transport, reduction, buckets):
    """The means of buckets that are all in flight."""
    buckets = [bucket.to(DEVICE) for bucket in buckets]
    futures = [
        transport.start(reduction.start(parameters(NUMELS, f"b{k}"), bucket), bucket, _ignored)
        for k, bucket in enumerate(buckets)
    ]
    return [future.wait().cpu() for future in futures]


def _ignored(_seconds):
    pass


def staged(ops):
    """batch_isend_irecv of a GPU's tensors with gloo, as NCCL wants a GPU for each rank."""
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
    """{(world size, algorithm): the means of two buckets that were in flight}."""
    found = {}
    for world_size in (2, 3):
        pg = dist.new_group(range(world_size))
        if dist.get_rank() >= world_size:
            continue
        transport = DeviceTransport(pg, DEVICE, Checks())
        for algorithm in ALGORITHMS:
            ours = reductions(algorithm, world_size, Rowwise(4))[pg.rank()]
            means = launched(transport, ours, buckets_of(world_size, pg.rank()))
            found[world_size, algorithm] = means
    return found


def losing_a_rank():
    """What the others' futures say where rank 1 takes no part."""
    dist.barrier()
    pg = dist.new_group(timeout=timedelta(seconds=5))
    transport, found = DeviceTransport(pg, DEVICE, Checks()), []
    reduction = reductions("ring", 3, Identity())[pg.rank()]
    for _ in range(2) if pg.rank() != 1 else ():
        try:
            launched(transport, reduction, [torch.zeros(sum(NUMELS))])
        except RuntimeError as error:
            found.append(str(error))
    dist.barrier()
    return found


def damaging_a_frame():
    """What the first and the next future of rank 0 say of a frame of rank 1 that was changed."""
    pg = dist.new_group([0, 1])
    if dist.get_rank() > 1:
        return None
    transport = DeviceTransport(pg, DEVICE, Checks())
    launch = transport._launch

    def damage(wanted):
        arrived = launch(wanted)
        arrived.buffer[40] ^= 1
        return arrived

    if pg.rank() == 0:
        transport._launch = damage
    reduction = reductions("two_shot", 2, Rowwise(8))[pg.rank()]
    launched(transport, reduction, [torch.ones(sum(NUMELS))])
    if pg.rank() == 1:
        return None
    found = []
    for _ in range(2):
        try:
            launched(transport, reduction, [torch.ones(sum(NUMELS))])
        except (CorruptFrameError, RuntimeError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


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
