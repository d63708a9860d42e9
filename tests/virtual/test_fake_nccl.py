"""Exchanges over a fake NCCL: right though everything arrives late, aligned, in one order."""

from unittest import mock

import pytest
import torch
import torch.distributed as dist

from tests.comm.rows.test_device import CODECS, make, once
from tests.ops.fake_gpu import fake_gpu
from tests.rank_programs import results_of, run_programs
from tests.virtual.fake_nccl import ALIGNMENT, FakeWork, fake_nccl
from trec_qcomm.codecs import Rowwise
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.rows.all_to_all import PooledAllToAll
from trec_qcomm.comm.transport import DeviceTransport, Transport
from trec_qcomm.config import GradientRule
from trec_qcomm.core.checks import DeferredChecks
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.integration.gradients.reduction import make_reduction
from trec_qcomm.testing import interleaved_segments, round_trip

pytestmark = [
    pytest.mark.dist,
    pytest.mark.triton,
    pytest.mark.skipif(torch.cuda.is_available(), reason="plays a GPU"),
]


def rows(codecs):
    """Results of one call on the CPU's way, and on the GPU's over the fake NCCL."""
    plain = once(make(PooledAllToAll, codecs), "cpu")
    with fake_gpu(), fake_nccl():
        return plain, once(make(PooledAllToAll, codecs), "cpu")


def all_to_all():
    return rows("rowwise")


def sizes_first():
    return rows("error_bounded")


def gradients():
    """Means of one bucket, of an all-reduce on CPU and of one as on a GPU."""
    shapes = [ParameterShape("w", 70, 8), ParameterShape("b", 3, 8)]
    rule = GradientRule(codec=Rowwise(8), block=8, min_numel=0, algorithm="two_shot")
    pg, cpu = dist.group.WORLD, torch.device("cpu")

    def mean(make_transport):
        bucket = torch.arange(73.0) * (1 + pg.rank())
        traffic = Traffic("dense", ["all"])
        reduction = make_reduction(rule, shapes, pg.rank(), pg.size(), traffic)
        rounds = reduction.start(shapes, bucket)
        make_transport().start(rounds, bucket, lambda seconds: None).wait()
        return {"mean": bucket}

    plain = mean(lambda: Transport(pg))
    with fake_gpu(), fake_nccl():
        return plain, mean(lambda: DeviceTransport(pg, cpu, DeferredChecks()))


CLEAN = {program.__name__: program for program in (all_to_all, sizes_first, gradients)}


def a_lost_wait():
    with fake_gpu(), fake_nccl(), mock.patch.object(FakeWork, "wait"):
        once(make(PooledAllToAll, "rowwise"), "cpu")


def another_order():
    small, large = torch.zeros(2 * ALIGNMENT), torch.zeros(4 * ALIGNMENT)
    with fake_nccl():
        for tensor in (small, large) if dist.get_rank() else (large, small):
            dist.all_to_all_single(torch.empty_like(tensor), tensor, group=dist.group.WORLD)


def another_size():
    sent = torch.zeros(2 * ALIGNMENT * (1 + dist.get_rank()))
    with fake_nccl():
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=dist.group.WORLD)


def a_misaligned_piece():
    sent = torch.zeros(ALIGNMENT + 16, dtype=torch.uint8)
    with fake_nccl():
        dist.all_to_all_single(sent.clone(), sent, group=dist.group.WORLD)


def read_early():
    """Return what is received before and after the wait."""
    sent = torch.ones(2 * ALIGNMENT, dtype=torch.uint8)
    received = torch.zeros_like(sent)
    with fake_nccl():
        work = dist.all_to_all_single(received, sent, group=dist.group.WORLD, async_op=True)
        early = received.clone()
        work.wait()
    return early.unique().tolist(), received.unique().tolist()


FAULTS = {
    a_lost_wait: "CorruptFrameError: frame from rank",
    another_order: "in another order than the peers'",
    another_size: "of other sizes",
    a_misaligned_piece: f"a piece at byte 72, no multiple of {ALIGNMENT}",
}


def outcome(program):
    try:
        return program()
    except (AssertionError, CorruptFrameError) as error:
        return f"{type(error).__name__}: {error}"


PROGRAMS = {program.__name__: program for program in (*CLEAN.values(), *FAULTS, read_early)}


@pytest.fixture(scope="module")
def results():
    for codec in (*CODECS["rowwise"], *CODECS["error_bounded"]):
        # This compiles numba's kernels once, and not in each rank.
        round_trip(codec, torch.randn(4, 8), interleaved_segments(4, 1, 8, gap=0))
    return run_programs(outcome, 2, PROGRAMS, timeout_s=250)


@pytest.mark.parametrize("name", CLEAN)
def test_results_are_those_of_the_cpu(results, name):
    for plain, late in results_of(results[name]):
        for key in ("out", "grad", "mean"):
            if key in plain:
                assert torch.equal(plain[key], late[key]), key


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_faults_are_found(results, fault):
    for told in results_of(results[fault.__name__]):
        assert FAULTS[fault] in told


def test_what_is_read_early_is_poison(results):
    assert results_of(results["read_early"]) == [([255], [1])] * 2
