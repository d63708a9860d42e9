"""DDP's all-reduce in a GPU's memory: equal to the CPU's bit for bit; refusals; on a device.

Without a GPU the kernels are interpreted, and tensors are taken for ones that the host cannot read.
"""

import copy
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.integration.gradients.test_data_parallel import CASES, qcomm_of
from tests.integration.sharded_models.training import assert_same, run
from tests.ops.fake_gpu import fake_gpu
from trec_qcomm import Cast, ErrorBounded, Float6, GradientRule, Identity, Rowwise, Threshold, TopK
from trec_qcomm.comm.dense.all_reduce import ALGORITHMS
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.transport import DeviceTransport
from trec_qcomm.integration.gradients import all_reduce, joint, placement
from trec_qcomm.integration.gradients.dense import DenseGradients
from trec_qcomm.integration.gradients.placement import (
    check_launch_order,
    check_on_gpu,
    check_rows_on_gpu,
    device_of,
    make_transport,
)
from trec_qcomm.testing import run_ranks
from trec_qcomm.wire.frame import DEVICE_ALIGNMENT

BOTH = "cpu:gloo,cuda:nccl"
POOLED = replace(CASES["pooled"], tables=CASES["pooled"].tables[:3])


INT4 = Rowwise(4)


def dense_gradients(codec=INT4, algorithm="two_shot", error_feedback=True):
    rule = GradientRule(
        codec=codec, block=16, min_numel=20, algorithm=algorithm, error_feedback=error_feedback
    )
    return DenseGradients(rule)


def net(device="cpu"):
    torch.manual_seed(5)
    layers = nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 3)
    return nn.Sequential(*layers).to(device)


def train(ddp, steps):
    """Train and return the gradients of each step, one vector each, on CPU."""
    device, gradients = next(ddp.parameters()).device, []
    for step in steps:
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        rows = torch.randn(8, 9, generator=generator).to(device)
        ddp.zero_grad()
        ddp(rows).square().mean().backward()
        gradients.append(torch.cat([p.grad.flatten().cpu() for p in ddp.parameters()]))
        with torch.no_grad():
            for p in ddp.parameters():
                p -= 0.1 * p.grad
    return gradients


def each_alone():
    """Return a context in which no bucket waits for the next one."""
    return mock.patch.object(joint, "SMALL_NUMEL", 0)


def distributed(gradients, device="cpu", **options):
    ddp = DistributedDataParallel(net(device), **{"bucket_cap_mb": 0.0001} | options)
    gradients.register(ddp)
    return ddp


@contextmanager
def on_stand_ins():
    def made(*args, **_):
        return DeviceTransport(*args)

    with fake_gpu(), each_alone(), mock.patch.object(all_reduce, "make_transport", made):
        yield


def on_cpu_and_on_stand_ins():
    """Return gradients and states on CPU, then as on a GPU.

    There another DDP resumes the last step from a state of the first.
    """
    gradients = dense_gradients()
    ddp = distributed(gradients)
    expected = train(ddp, range(3))
    states = [gradients.state_dict()]
    with on_stand_ins():
        gradients = dense_gradients()
        ddp = distributed(gradients)
        came = train(ddp, range(2))
        state, model = copy.deepcopy((gradients.state_dict(), ddp.module.state_dict()))
        gradients = dense_gradients()
        gradients.load_state_dict(state)
        ddp = distributed(gradients)
        ddp.module.load_state_dict(model)
        came += train(ddp, [2])
        states.append(gradients.state_dict())
    return expected, came, states


def tables_on_cpu_and_on_stand_ins():
    """Train a DLRM whose tables are DATA_PARALLEL on CPU, then as on a GPU."""
    expected = run(POOLED, qcomm_of(Rowwise(8)), 2)
    with on_stand_ins():
        return expected, run(POOLED, qcomm_of(Rowwise(8)), 2)


def everything():
    return on_cpu_and_on_stand_ins(), tables_on_cpu_and_on_stand_ins()


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(everything, 3, timeout_s=250)


@pytest.mark.dist
@pytest.mark.triton
def test_a_dlrm_is_that_of_the_cpu(ranks):
    expected, came = zip(*(tables for _, tables in ranks), strict=True)
    assert_same(POOLED, expected, came)
    for theirs, ours in zip(expected, came, strict=True):
        for kind in ("dense", "data_parallel"):
            assert ours.stats[kind]["num_calls"] > 0
            (ours_nbytes, ours_header), (nbytes, header) = (
                (run.stats[kind]["wire_nbytes"], run.stats[kind]["header_nbytes"])
                for run in (ours, theirs)
            )
            # The padding behind frames, which only a GPU's have, counts as a part of their headers.
            assert ours_nbytes - ours_header == nbytes - header
            assert ours_header > header
            assert ours_nbytes % DEVICE_ALIGNMENT == 0
            for key in ("raw_nbytes", "num_calls"):
                assert ours.stats[kind][key] == theirs.stats[kind][key]


@pytest.mark.dist
@pytest.mark.triton
def test_gradients_and_residuals_are_those_of_the_cpu(ranks):
    for expected, came, (theirs, ours) in (gradients for gradients, _ in ranks):
        for a, b in zip(came, expected, strict=True):
            assert torch.equal(a.view(torch.int32), b.view(torch.int32))
        ((key, theirs),) = theirs.items()
        residuals = ours[key]["residuals"]
        assert any(bool(r.any()) for sites in residuals.values() for r in sites.values())
        assert residuals.keys() == theirs["residuals"].keys()
        for name, sites in residuals.items():
            assert sites.keys() == theirs["residuals"][name].keys()
            assert all(torch.equal(sites[s], theirs["residuals"][name][s]) for s in sites)


def test_what_a_gpu_cannot_do_is_refused():
    for codec in (Identity(), Cast("bf16"), Float6(), Rowwise(4), TopK(density=0.1)):
        check_on_gpu("codec", codec, BOTH)
        check_on_gpu("codec", codec, "cuda:nccl")
    check_rows_on_gpu([ParameterShape("w", 8192, 8192), ParameterShape("whole", 8192, 8193)])
    with pytest.raises(ValueError, match=r"'w': on cuda .* \(block\), of at most 8192 .* 8193"):
        check_rows_on_gpu([ParameterShape("w", 8193, 8193)])
    for codec in (Threshold(0.1), TopK(threshold=0.1), ErrorBounded(0.01, encoder="rans")):
        with pytest.raises(ValueError, match=r"intra: .* on cuda .* only with codecs that have a"):
            check_on_gpu("intra", codec, BOTH)
    for backends, name in (("cpu:gloo,cuda:gloo", "gloo"), ("cpu:gloo", "None")):
        with pytest.raises(ValueError, match=f"has {name} there, and the all-reduce needs nccl"):
            check_on_gpu("codec", Cast("bf16"), backends)


def test_a_group_of_its_own_needs_the_order_of_launches(monkeypatch):
    told = []
    monkeypatch.setattr(placement, "check_equal", lambda group, ours, _: told.append(ours))
    monkeypatch.setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1")
    check_launch_order("group")
    monkeypatch.delenv("NCCL_LAUNCH_ORDER_IMPLICIT")
    with pytest.raises(ValueError, match=r"own_group: .* set NCCL_LAUNCH_ORDER_IMPLICIT=1 on all"):
        check_launch_order("group")
    assert told == [{"NCCL_LAUNCH_ORDER_IMPLICIT": value} for value in ("1", "unset")]
    monkeypatch.setattr(placement, "make_group", lambda *made: made)
    monkeypatch.setattr(placement, "DeviceTransport", lambda group, *_: group)
    for own_group, group in ((False, "group"), (True, ("group", "nccl"))):
        made = make_transport("group", torch.device("cuda"), None, own_group=own_group)
        assert made == group


class Placed(NamedTuple):
    """Stand-in for a parameter: all that `device_of` reads."""

    device: torch.device
    dtype: torch.dtype = torch.float32


def test_parameters_lie_on_one_device():
    here, there = (Placed(torch.device("cuda", n)) for n in range(2))
    assert device_of({there: "a.weight"}) == there.device
    with pytest.raises(ValueError, match="one device only, got 'a' on cuda:0, 'b' on cuda:1"):
        device_of({here: "a", there: "b"})
    with pytest.raises(ValueError, match=r"gradients of 'a': .* on meta"):
        device_of({Placed(torch.device("meta")): "a"})


# On a device.


def alone_with_nccl():
    """Return {algorithm: (DDP's own gradients, ours)} of one rank, several buckets in flight.

    With a lossy codec the host may not wait for the device in a step.
    """
    torch.cuda.set_device(0)
    pg = dist.new_group(backend="nccl", timeout=timedelta(seconds=60))
    options = {"device_ids": [0], "process_group": pg, "bucket_cap_mb": 0.0001}
    expected = train(DistributedDataParallel(net("cuda"), **options), range(4))
    by_algorithm = {}
    for algorithm in ALGORITHMS:
        gradients = dense_gradients(Identity(), algorithm, error_feedback=False)
        by_algorithm[algorithm] = (
            expected,
            train(distributed(gradients, "cuda", **options), range(4)),
        )
        gradients = dense_gradients(algorithm=algorithm)
        ddp = distributed(gradients, "cuda", **options)
        train(ddp, range(3))  # compiles, fetches residuals
        rows = torch.randn(8, 9, device="cuda")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            ddp(rows).square().mean().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        gradients.state_dict()
    with pytest.raises(ValueError, match="has gloo there, and the all-reduce needs nccl"):
        distributed(dense_gradients(), "cuda", device_ids=[0])
    return by_algorithm


@pytest.mark.gpu
@pytest.mark.dist
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_one_rank_of_nccl_does_what_ddp_does():
    (by_algorithm,) = run_ranks(alone_with_nccl, 1, timeout_s=200)
    for algorithm, (expected, ours) in by_algorithm.items():
        assert all(map(torch.equal, ours, expected)), algorithm
