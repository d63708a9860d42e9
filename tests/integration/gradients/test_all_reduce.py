"""DDP's all-reduce, coded: parity, residuals over rebuilt buckets, resume, what DDP can do."""

import copy
from contextlib import contextmanager
from itertools import pairwise
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trec_qcomm import Config, GradientRule, Identity, Rowwise, TableRule, ddp_comm_hook
from trec_qcomm.comm.dense.all_reduce import ALGORITHMS
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.dense.error_feedback import owed
from trec_qcomm.control.cost_model import Link
from trec_qcomm.core.counters import Traffic
from trec_qcomm.integration.gradients import all_reduce
from trec_qcomm.integration.gradients.all_reduce import DenseGradients, make_reduction
from trec_qcomm.testing import run_ranks

BUCKET_MB = 0.01  # several buckets
WIDTHS = (9, 300, 40, 5)
RULES = (TableRule(tables=("*",), forward=Identity(), backward=Identity()),)


class Net(nn.Module):
    """An MLP; `spare` layers are used where a batch says so."""

    def __init__(self, num_spare=0):
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(WIDTHS)])
        self.spare = nn.ModuleList([nn.Linear(9, 300) for _ in range(num_spare)])

    def forward(self, x, use=()):
        first = self.layers[0](x) + sum(self.spare[n](x) for n in use)
        for layer in self.layers[1:]:
            first = layer(first.relu())
        return first.square().mean()


def config(**options):
    defaults = {"codec": Rowwise(4), "block": 16, "min_numel": 20, "algorithm": "two_shot"}
    return Config(dense=GradientRule(**defaults | options))


def distributed(hook, num_spare=0, **options):
    ddp = DistributedDataParallel(Net(num_spare), bucket_cap_mb=BUCKET_MB, **options)
    if hook is not None:
        hook.register(ddp)
    return ddp


def rows(step, rank=None):
    rank = dist.get_rank() if rank is None else rank
    return torch.randn(8, 9, generator=torch.Generator().manual_seed(100 * step + rank))


def train(ddp, steps, use=lambda step: ()):
    """Plain SGD; the gradients of each step as one vector."""
    found = []
    for step in steps:
        ddp.zero_grad(set_to_none=False)
        ddp(rows(step), use(step)).backward()
        found.append(flat_gradients(ddp))
        with torch.no_grad():
            for p in ddp.parameters():
                p -= 0.1 * p.grad if p.grad is not None else 0
    return found


def flat_gradients(ddp):
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in ddp.parameters()]
    return torch.cat([gradient.flatten() for gradient in found])


def residual_sums(hook, ddp):
    """Of all sites and ranks, [E] in the order of the parameters: what is owed to the mean."""
    (own,) = hook.state_dict().values()
    names = [name for name, _ in ddp.module.named_parameters()]
    total = torch.cat([owed(own["residuals"][name]) for name in names]).double()
    dist.all_reduce(total)
    return total


# With the identity codec: what DDP does by itself.


def what_ddp_can_do():
    """{case: whether all gradients equal DDP's own bit for bit}; at 2 ranks no order of sums."""
    return {algorithm: _what_ddp_can_do(algorithm) for algorithm in ALGORITHMS}


def _what_ddp_can_do(algorithm):
    found = {}

    def compare(case, step, num_spare=0, **options):
        ours = ddp_comm_hook(config(codec=Identity(), algorithm=algorithm))
        pair = [distributed(hook, num_spare, **options) for hook in (None, ours)]
        found[case] = all(torch.equal(*(step(ddp, number) for ddp in pair)) for number in range(4))

    def plain(ddp, number):
        ddp.zero_grad()
        ddp(rows(number)).backward()
        return flat_gradients(ddp)

    def accumulated(ddp, number):
        ddp.zero_grad()
        with ddp.no_sync():
            ddp(rows(number)).backward()
        ddp(rows(number + 50)).backward()
        return flat_gradients(ddp)

    def unused(ddp, number):
        ddp.zero_grad()
        use = [(0,), (0,) if dist.get_rank() else (), (), (0, 1)][number]
        ddp(rows(number), use).backward()
        return flat_gradients(ddp)

    compare("plain", plain)
    compare("views", plain, gradient_as_bucket_view=True)
    compare("static graph", plain, static_graph=True)
    compare("accumulated", accumulated)
    compare("unused", unused, num_spare=2, find_unused_parameters=True)
    return found


@pytest.mark.dist
def test_the_identity_codec_does_what_ddp_does():
    for found in run_ranks(what_ddp_can_do, 2):
        for algorithm, cases in found.items():
            assert cases == dict.fromkeys(cases, True), algorithm
            assert len(cases) == 5


# Error feedback.

STEPS = 50


def telescoping():
    return {algorithm: _telescoping(algorithm) for algorithm in ALGORITHMS}


def _telescoping(algorithm):
    """Over 50 steps, whose first rebuilds the buckets, the largest
    |sum of exact means - sum of what came|, open, and less the residuals, closed."""
    hook = ddp_comm_hook(config(algorithm=algorithm, error_feedback=True))
    ddp = distributed(hook)
    exact = torch.zeros(sum(p.numel() for p in ddp.parameters()), dtype=torch.float64)
    came, sizes = exact.clone(), exact.clone()
    for step in range(STEPS):
        own = []
        for rank in range(dist.get_world_size()):
            twin = copy.deepcopy(ddp.module)
            twin.zero_grad()
            twin(rows(step, rank)).backward()
            own.append(flat_gradients(twin))
        exact += torch.stack(own).double().mean(0)
        came += train(ddp, [step])[0].double()
        sizes += torch.stack(own).double().abs().mean(0)
    kept = residual_sums(hook, ddp)
    return {
        "open": float((exact - came).abs().max()),
        "closed": float((exact - came - kept).abs().max()),
        "sizes": float(sizes.max()),
        "num_buckets": len(hook._reduction.error_feedback._buckets),
    }


@pytest.mark.dist
def test_what_was_sent_and_the_residual_are_the_input():
    for ranks in run_ranks(telescoping, 3):
        for algorithm, found in ranks.items():
            assert found["num_buckets"] > 1
            # Each step rounds the division, the sum of residual and value and the sum over ranks.
            assert found["closed"] <= 8 * 2.0**-24 * found["sizes"], algorithm
            assert found["open"] > 1000 * found["closed"]


def unused_parameter(num_steps):
    """Residuals of a layer that gets gradients in the first step only."""
    hook = ddp_comm_hook(config(error_feedback=True))
    ddp = distributed(hook, num_spare=1, find_unused_parameters=True)
    found = []
    for step in range(num_steps):
        train(ddp, [step], lambda step: (0,) if step == 0 else ())
        (own,) = hook.state_dict().values()
        found.append(own["residuals"]["spare.0.weight"])
    return found


@pytest.mark.dist
def test_a_parameter_without_gradient_keeps_its_residual():
    for first, *later in run_ranks(unused_parameter, 2, 3):
        assert all(bool(residual.any()) for residual in first.values())
        for residuals in later:
            assert all(torch.equal(residuals[site], first[site]) for site in first)


# State.


def straight_and_resumed():
    options = {"codec": Rowwise(4), "error_feedback": True}
    straight = distributed(ddp_comm_hook(config(**options)))
    expected = train(straight, range(6))

    hook = ddp_comm_hook(config(**options))
    first = distributed(hook)
    train(first, range(3))
    state = copy.deepcopy((first.module.state_dict(), hook.state_dict()))

    found = {}
    for case, gradients in (("resumed", state[1]), ("without residuals", {})):
        hook = ddp_comm_hook(config(**options))
        hook.load_state_dict(gradients)
        second = distributed(hook)
        second.module.load_state_dict(state[0])
        resumed = train(second, range(3, 6))
        found[case] = all(torch.equal(*pair) for pair in zip(resumed, expected[3:], strict=True))
    return found | {"state": state[1]}


@pytest.fixture(scope="module")
def resumed():
    return run_ranks(straight_and_resumed, 2)


@pytest.mark.dist
def test_resumed_training_is_the_same(resumed):
    for found in resumed:
        assert found["resumed"]
        assert not found["without residuals"]


def owed_after_loading(state, on_resize):
    """Of one rank that loads the state of two."""
    hook = ddp_comm_hook(config(error_feedback=True, on_resize=on_resize))
    hook.load_state_dict(state)
    ddp = distributed(hook)
    return residual_sums(hook, ddp), [name for name, _ in ddp.module.named_parameters()]


@pytest.mark.dist
def test_another_world_size_goes_on_with_the_sum_or_with_nothing(resumed):
    merged = resumed[0]["state"] | resumed[1]["state"]
    assert list(merged) == ["rank0of2", "rank1of2"]
    ((found, names),) = run_ranks(owed_after_loading, 1, merged, "sum")
    parts = [[sum(own["residuals"][n].values()) for n in names] for own in merged.values()]
    expected = sum(torch.cat([p.flatten() for p in own]).double() for own in parts)
    assert bool(expected.any())
    assert bool(((found - expected).abs() <= 2.0**-22 * expected.abs().max()).all())
    ((found, _),) = run_ranks(owed_after_loading, 1, merged, "reset")
    assert not bool(found.any())
    with pytest.raises(RuntimeError, match="ValueError: state of 2 ranks, loaded by 1: rank1of2"):
        run_ranks(owed_after_loading, 1, resumed[0]["state"], "sum")


class OnDevice(torch.Tensor):
    """Stands in for a residual that a GPU is writing in the stream of who loads it."""

    inside = None  # whether another stream is current

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        assert cls.inside is False, func.__name__
        found = super().__torch_function__(func, types, args, kwargs)
        return found.as_subclass(torch.Tensor) if func.__name__ == "cpu" else found


@contextmanager
def noted_stream(*_given, **_options):
    before, OnDevice.inside = OnDevice.inside, True
    yield
    OnDevice.inside = before


def loaded_from_a_device():
    """Residuals loaded before and after a DDP is there, of which another stream reads nothing."""
    hook = ddp_comm_hook(config(error_feedback=True))
    ones = {"contribution": torch.ones(300).as_subclass(OnDevice)}
    state = {"rank0of1": {"num_calls": 1, "residuals": {"layers.0.bias": ones}}}
    with mock.patch.object(all_reduce, "side_stream", noted_stream):
        OnDevice.inside = False
        hook.load_state_dict(state)
        distributed(hook)
        hook.load_state_dict(state)
    (own,) = hook.state_dict().values()
    (residual,) = own["residuals"]["layers.0.bias"].values()
    assert type(residual) is torch.Tensor
    assert torch.equal(residual, torch.ones(300))


@pytest.mark.dist
def test_loaded_residuals_are_read_in_the_stream_of_who_loads_them():
    run_ranks(loaded_from_a_device, 1)


# The choice of the algorithm.


@pytest.mark.parametrize(
    ("world_size", "numel", "latency_s", "expected"),
    [
        (2, 10**6, 0.0, "two_shot"),  # as many bytes as recursive doubling
        (2, 10**3, 1e-3, "recursive_doubling"),  # one message instead of two
        (8, 10**6, 0.0, "two_shot"),  # 14/8 instead of 3 times the bytes
        (8, 10**3, 1e-3, "recursive_doubling"),  # 3 messages instead of 14
        (5, 10**6, 5e-5, "two_shot"),
    ],
)
def test_auto_is_the_fastest_over_the_link(world_size, numel, latency_s, expected):
    link = Link(latency_s=latency_s, gb_s=0.0125)
    rule = config(algorithm="auto", link=link).dense
    made = make_reduction(
        rule, [ParameterShape("p", numel, rule.block)], 0, world_size, Traffic("dense", ["all"])
    )
    assert made.options.algorithm == expected


# What is refused.


def refused():
    hook = ddp_comm_hook(config())
    with pytest.raises(ValueError, match=r"gradients of 'layers.0.weight': torch.float64 on cpu"):
        hook.register(DistributedDataParallel(Net().double()))
    assert hook.state_dict() == {}
    gpu = mock.patch.object(all_reduce, "_device_of", return_value=torch.device("cuda", 0))
    message = "has gloo there, and the all-reduce needs nccl"
    with gpu, pytest.raises(ValueError, match=message):
        distributed(hook)
    assert hook.state_dict() == {}
    distributed(hook)
    assert list(hook.state_dict()) == ["rank0of1"]
    with pytest.raises(ValueError, match="there is a DDP already"):
        distributed(hook)
    hook = DenseGradients(config(error_feedback=True).dense)
    bad = {"rank0of1": {"num_calls": 1, "residuals": {"layers.0.bias": {"owner": torch.zeros(2)}}}}
    hook.load_state_dict(bad)
    with pytest.raises(ValueError, match=r"residual of 'layers.0.bias', owner: \[2\] values"):
        distributed(hook)
    assert hook.state_dict() == bad
    hook.load_state_dict({})
    distributed(hook)


def differing_rules():
    bits = (4, 8)[dist.get_rank()]
    hook = ddp_comm_hook(config(codec=Rowwise(bits)))
    for _ in range(2):
        with pytest.raises(ValueError, match="ranks 0 and 1 of the group have different rules"):
            distributed(hook)
        assert hook.state_dict() == {}


@pytest.mark.dist
def test_ranks_with_different_rules_are_refused():
    run_ranks(differing_rules, 2)


@pytest.mark.dist
def test_what_cannot_be_is_refused():
    run_ranks(refused, 1)
    with pytest.raises(ValueError, match="dense: missing"):
        ddp_comm_hook(Config(data_parallel=None, embedding=RULES))


def test_rules_name_what_is_wrong():
    for options, message in (
        ({"algorithm": "tree"}, "algorithm: 'tree' is not one of"),
        ({"block": 0}, "block: 0 is not an integer >= 1"),
        ({"min_numel": -1}, "min_numel: -1"),
        ({"codec": Identity(), "error_feedback": True}, "error_feedback: identity keeps nothing"),
        ({"on_resize": "drop"}, "on_resize: 'drop' is not one of"),
    ):
        with pytest.raises(ValueError, match=message):
            config(**options)
