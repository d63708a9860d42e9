"""A loss scaler beside compressed dense gradients, on two ranks."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trec_qcomm import Config, GradientRule, Rowwise, compress_ddp
from trec_qcomm.config import LowRank
from trec_qcomm.testing import run_ranks

CAST = {"block": 16, "min_numel": 8}
RULES = {
    "error_feedback": GradientRule(codec=Rowwise(4), error_feedback=True, **CAST),
    "low_rank": GradientRule(codec=Rowwise(8), low_rank=LowRank(rank=2), **CAST),
}
SCALES = (2.0**10, 2.0**10, 2.0**9, 2.0**12, 2.0**12)


class PlantedScaler:
    """Scaler of a loss whose scale a test sets."""

    scale = 1.0

    def get_scale(self):
        return self.scale


def started(rule):
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 8)))
    return ddp, compress_ddp(ddp, Config(dense=rule))


def gradients(ddp, step, scale=1.0, *, overflows=False):
    """Return the gradients of a step, divided by the scale."""
    ddp.zero_grad()
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(step))
    loss = ddp(x).square().mean() * scale
    if overflows:
        loss = loss * torch.inf
    loss.backward()
    return torch.cat([p.grad.flatten() for p in ddp.parameters()]) / scale


def scaled_and_plain(rule):
    """Return the gradients of a run with a changing scale, of one without, and of one resumed."""
    plain, _ = started(rule)
    expected = [gradients(plain, step) for step in range(len(SCALES))]
    ddp, handle = started(rule)
    handle.scaler = PlantedScaler()
    got = []
    for step, scale in enumerate(SCALES):
        if step == 3:
            state = copy.deepcopy(handle.state_dict())
        handle.scaler.scale = scale
        got.append(gradients(ddp, step, scale))
    again, resumed = started(rule)
    resumed.load_state_dict(state)
    resumed.scaler = PlantedScaler()
    resumed.scaler.scale = SCALES[3]
    return expected, got, gradients(again, 3, SCALES[3])


def with_torchs_scaler(rule):
    """Return gradients after steps that a scaler threw away, and those of a run without them."""
    plain, _ = started(rule)
    expected = [gradients(plain, step) for step in range(3)]
    ddp, handle = started(rule)
    handle.scaler = scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer, got = torch.optim.SGD(ddp.parameters(), lr=0.0), []
    for step, overflows in ((0, False), (1, True), (1, True), (1, False), (2, False)):
        scaler.scale(torch.zeros(()))  # as in scaler.scale(loss)
        grads = gradients(ddp, step, scaler.get_scale(), overflows=overflows)
        if not overflows:
            got.append(grads)
        scaler.step(optimizer)
        scaler.update()
    return expected, got, scaler.get_scale()


def all_of_it():
    return {n: (scaled_and_plain(r), with_torchs_scaler(r)) for n, r in RULES.items()}


@pytest.fixture(scope="module")
def outcomes():
    return run_ranks(all_of_it, 2)


@pytest.mark.dist
@pytest.mark.parametrize("kind", RULES)
def test_gradients_do_not_depend_on_the_scale(outcomes, kind):
    for expected, got, resumed in (outcome[kind][0] for outcome in outcomes):
        for step, (one, other) in enumerate(zip(expected, got, strict=True)):
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-7, msg=f"step {step}")
        torch.testing.assert_close(resumed, expected[3], rtol=1e-5, atol=1e-7)


@pytest.mark.dist
@pytest.mark.parametrize("kind", RULES)
def test_steps_that_a_scaler_throws_away_leave_no_trace(outcomes, kind):
    for expected, got, scale in (outcome[kind][1] for outcome in outcomes):
        assert scale == 2.0**8  # halved twice
        for one, other in zip(expected, got, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-7)
