"""Slots in a GPU's memory: the rows of the CPU's, launched before any size is known.

Without a GPU the kernels are interpreted, and tensors count as ones that the host cannot read.
"""

import pytest
import torch
import torch.distributed as dist

from tests.comm.rows.test_device import as_on_a_gpu
from tests.comm.slots.test_exchange import KINDS, make
from tests.ops.backends import device_of
from trec_qcomm.codecs import ErrorBounded
from trec_qcomm.core.counters import kind_stats
from trec_qcomm.testing import run_ranks
from trec_qcomm.wire import slot

pytestmark = [pytest.mark.dist, pytest.mark.triton, pytest.mark.timeout(600)]

SIZES = (3, 2)
STEPS = 2
ALIGNMENTS = {"all-to-all": 8, "reduce-scatter": slot.DEVICE_ALIGNMENT}


def rows_of(step, shape):
    """Noise in the second step, whose code is larger than the first's."""
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
    return rows if step == 1 else (rows > 1.0) * 2.0 + 1e-3 * rows


def training(kind, device, slots):
    op, results = make(kind, slots, bounded=ErrorBounded(0.02)), []
    for step in range(STEPS):
        rows = rows_of(step, (sum(SIZES), op.layout.dim_sum(op.rank))).to(device).requires_grad_()
        out = op.start(rows, SIZES).wait()
        (grad,) = torch.autograd.grad(out, rows, rows_of(step, out.shape).to(device))
        op.checks.raise_found(wait=True)
        results += [out.detach().cpu(), grad.cpu()]
    return results, [kind_stats([t]) for t in (op.forward_traffic, op.backward_traffic)]


def everything():
    results = {(kind, "cpu"): training(kind, "cpu", False) for kind in KINDS}
    with as_on_a_gpu():
        for kind in KINDS:
            slot.DEVICE_ALIGNMENT = ALIGNMENTS[kind]
            results[kind, "gpu"] = training(kind, device_of("gpu"), True)
    dist.barrier()
    return results


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(everything, 2, timeout_s=250)


@pytest.mark.parametrize("kind", KINDS)
def test_slots_of_a_gpu_change_no_bit(ranks, kind):
    for rank in ranks:
        (ours, counted), (theirs, announced) = rank[kind, "gpu"], rank[kind, "cpu"]
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a.view(torch.int32), b.view(torch.int32))
        for with_slots, without in zip(counted, announced, strict=True):
            assert with_slots.tables == without.tables
            assert with_slots.num_calls == without.num_calls == STEPS
        if kind == "all-to-all":  # whose capacities are tight
            assert counted[0].num_overflows + counted[1].num_overflows > 0
        else:
            assert counted[0].padding_nbytes > 0
