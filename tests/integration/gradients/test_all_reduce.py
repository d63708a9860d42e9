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

from tests.integration.gradients.test_device import each_alone
from trec_qcomm import GradientRule, Identity, Rowwise, Threshold, load_preset
from trec_qcomm.comm.dense.all_reduce import ALGORITHMS
from trec_qcomm.comm.dense.error_feedback import owed
from trec_qcomm.comm.peers import make_gloo_group
from trec_qcomm.ext.dct.refresh import ThresholdRefresh
from trec_qcomm.ext.dual_level.schedule import Exponential
from trec_qcomm.integration.checkpoint import rank_key
from trec_qcomm.integration.gradients import all_reduce
from trec_qcomm.integration.gradients.dense import DenseGradients
from trec_qcomm.lab.ranks.ranks import PlayedRanks
from trec_qcomm.testing import run_ranks

BUCKET_MB = 0.01  # several buckets, which are reduced together
WIDTHS = (9, 300, 40, 5)


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


def rule(**options):
    defaults = {"codec": Rowwise(4), "block": 16, "min_numel": 20, "algorithm": "two_shot"}
    return GradientRule(**defaults | options)


def dense_gradients(**options):
    return DenseGradients(rule(**options))


def distributed(gradients, num_spare=0, **options):
    ddp = DistributedDataParallel(Net(num_spare), bucket_cap_mb=BUCKET_MB, **options)
    if gradients is not None:
        gradients.register(ddp)
    return ddp


def rows(step, rank=None):
    rank = dist.get_rank() if rank is None else rank
    return torch.randn(8, 9, generator=torch.Generator().manual_seed(100 * step + rank))


def train(ddp, steps, use=lambda step: ()):
    """Train with plain SGD and return the gradients of each step as one vector."""
    gradients = []
    for step in steps:
        ddp.zero_grad(set_to_none=False)
        ddp(rows(step), use(step)).backward()
        gradients.append(flat_gradients(ddp))
        with torch.no_grad():
            for p in ddp.parameters():
                p -= 0.1 * p.grad if p.grad is not None else 0
    return gradients


def flat_gradients(ddp):
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in ddp.parameters()]
    return torch.cat([gradient.flatten() for gradient in gradients])


def residual_sums(gradients, ddp):
    """Return [E] what all sites and ranks owe to the mean, in the order of the parameters."""
    (state,) = gradients.state_dict().values()
    names = [name for name, _ in ddp.module.named_parameters()]
    total = torch.cat([owed(state["residuals"][name]) for name in names]).double()
    dist.all_reduce(total)
    return total


# With the identity codec: what DDP does by itself.


def what_ddp_can_do():
    """Return {case: whether all gradients equal DDP's own bit for bit} for each algorithm.

    With 2 ranks a sum has one order only.
    """
    return {algorithm: _what_ddp_can_do(algorithm) for algorithm in ALGORITHMS}


def _what_ddp_can_do(algorithm):
    is_equal = {}

    def compare(case, step, num_spare=0, **options):
        ours = dense_gradients(codec=Identity(), algorithm=algorithm)
        pair = [distributed(gradients, num_spare, **options) for gradients in (None, ours)]
        is_equal[case] = all(
            torch.equal(*(step(ddp, number) for ddp in pair)) for number in range(4)
        )

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
    return is_equal


@pytest.mark.dist
def test_the_identity_codec_does_what_ddp_does(ranks):
    for by_algorithm in (rank["as DDP"] for rank in ranks):
        for algorithm, cases in by_algorithm.items():
            assert cases == dict.fromkeys(cases, True), algorithm
            assert len(cases) == 5


# Error feedback.

STEPS = 20


def telescoping():
    with each_alone():
        return {algorithm: _telescoping(algorithm) for algorithm in ALGORITHMS}


def _telescoping(algorithm):
    """Return the largest |sum of exact means - sum of what came| over all steps.

    The first step rebuilds the buckets. "open" is without the residuals, "closed" with them.
    """
    gradients = dense_gradients(algorithm=algorithm, error_feedback=True)
    ddp = distributed(gradients)
    exact = torch.zeros(sum(p.numel() for p in ddp.parameters()), dtype=torch.float64)
    came, sizes = exact.clone(), exact.clone()
    for step in range(STEPS):
        by_rank = []
        for rank in range(dist.get_world_size()):
            twin = copy.deepcopy(ddp.module)
            twin.zero_grad()
            twin(rows(step, rank)).backward()
            by_rank.append(flat_gradients(twin))
        exact += torch.stack(by_rank).double().mean(0)
        came += train(ddp, [step])[0].double()
        sizes += torch.stack(by_rank).double().abs().mean(0)
    kept = residual_sums(gradients, ddp)
    return {
        "open": float((exact - came).abs().max()),
        "closed": float((exact - came - kept).abs().max()),
        "sizes": float(sizes.max()),
        "num_buckets": len(gradients._reduction.error_feedback._buckets),
        "came": came,
    }


@pytest.mark.dist
def test_what_was_sent_and_the_residual_are_the_input():
    first, *others = run_ranks(telescoping, 3)
    for by_algorithm in (first, *others):
        for algorithm, sums in by_algorithm.items():
            assert torch.equal(sums["came"], first[algorithm]["came"])
            assert sums["num_buckets"] > 1
            # Each step rounds the division, the sum of residual and value and the sum over ranks.
            assert sums["closed"] <= 8 * 2.0**-24 * sums["sizes"], algorithm
            assert sums["open"] > 1000 * sums["closed"]


def unused_parameter(num_steps):
    """Return the residuals of a layer that gets gradients in the first step only."""
    gradients = dense_gradients(error_feedback=True)
    ddp = distributed(gradients, num_spare=1, find_unused_parameters=True)
    residuals = []
    for step in range(num_steps):
        train(ddp, [step], lambda step: (0,) if step == 0 else ())
        (state,) = gradients.state_dict().values()
        residuals.append(state["residuals"]["spare.0.weight"])
    return residuals


@pytest.mark.dist
def test_a_parameter_without_gradient_keeps_its_residual(ranks):
    for first, *later in (rank["unused"] for rank in ranks):
        assert all(bool(residual.any()) for residual in first.values())
        for residuals in later:
            assert all(torch.equal(residuals[site], first[site]) for site in first)


# State.


NOISY = Rowwise(2, "stochastic")
RESUMED = {
    "residuals": rule(codec=Rowwise(4), error_feedback=True),
    "best": load_preset("best").dense,
    "ring": rule(codec=NOISY, error_feedback=True, algorithm="ring"),
    "recursive_doubling": rule(codec=NOISY, algorithm="recursive_doubling"),
    "threshold": rule(
        codec=Threshold(0.1),
        refresh=ThresholdRefresh(every=1, density=0.1, sample=500),
        scope="global",
    ),
    "falling_density": rule(
        codec=Threshold(0.1),
        refresh=ThresholdRefresh(
            every=2, density=0.1, schedule=Exponential(start=4.0, end_step=5), sample=500
        ),
    ),
}


def straight_and_resumed():
    """Return {rule: whether all is equal, with the state and without}.

    DDP has one bucket in its first step and several later, so resumed runs have others in step 3.
    Buckets are reduced one by one in the first run, and together in those that are resumed.
    """
    return {name: _straight_and_resumed(dense_rule) for name, dense_rule in RESUMED.items()}


def _straight_and_resumed(dense_rule):
    straight = distributed(DenseGradients(dense_rule))
    with each_alone():
        expected = train(straight, range(6))

    gradients = DenseGradients(dense_rule)
    first = distributed(gradients)
    train(first, range(3))
    state = copy.deepcopy((first.module.state_dict(), gradients.state_dict()))

    is_equal = []
    for loaded in (state[1], {}):
        gradients = DenseGradients(dense_rule)
        gradients.load_state_dict(loaded)
        second = distributed(gradients)
        second.module.load_state_dict(state[0])
        resumed = train(second, range(3, 6))
        pairs = [*zip(resumed, expected[3:], strict=True)]
        pairs += zip(second.parameters(), straight.parameters(), strict=True)
        is_equal.append(all(torch.equal(*pair) for pair in pairs))
    return is_equal


def everything():
    differing_rules()
    return {
        "as DDP": what_ddp_can_do(),
        "unused": unused_parameter(3),
        "resumed": straight_and_resumed(),
    }


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(everything, 2)


@pytest.mark.dist
def test_resumed_training_is_the_same(ranks):
    for results in (rank["resumed"] for rank in ranks):
        for name, (with_state, without_state) in results.items():
            assert with_state, name
            assert not without_state, name


class OnDevice(torch.Tensor):
    """Stand-in for a residual that a GPU is writing in the stream of who loads it."""

    inside = None  # whether another stream is current

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        assert cls.inside is False, func.__name__
        result = super().__torch_function__(func, types, args, kwargs)
        return result.as_subclass(torch.Tensor) if func.__name__ == "cpu" else result


@contextmanager
def noted_stream(*_given, **_options):
    before, OnDevice.inside = OnDevice.inside, True
    yield
    OnDevice.inside = before


def loaded_from_a_device():
    """Load residuals before and after a DDP is there; no other stream reads them."""
    gradients = dense_gradients(error_feedback=True)
    ones = {"contribution": torch.ones(300).as_subclass(OnDevice)}
    state = {"rank0of1": {"num_steps": 1, "residuals": {"layers.0.bias": ones}}}
    with mock.patch.object(all_reduce, "side_stream", noted_stream):
        OnDevice.inside = False
        gradients.load_state_dict(state)
        distributed(gradients)
        gradients.load_state_dict(state)
    (state,) = gradients.state_dict().values()
    residuals = state["residuals"]["layers.0.bias"]
    assert all(type(residual) is torch.Tensor for residual in residuals.values())
    assert torch.equal(residuals.pop("contribution"), torch.ones(300))
    assert not any(residual.any() for residual in residuals.values())  # of other sites


def test_loaded_residuals_are_read_in_the_stream_of_who_loads_them():
    PlayedRanks(1).run(loaded_from_a_device)


# What is refused.


def refused():
    gradients = dense_gradients()
    with pytest.raises(ValueError, match=r"gradients of 'layers.0.weight': torch.float64 on cpu"):
        gradients.register(DistributedDataParallel(Net().double()))
    assert gradients.state_dict() == {}
    gpu = mock.patch.object(all_reduce, "device_of", return_value=torch.device("cuda", 0))
    message = "has gloo there, and the all-reduce needs nccl"
    with gpu, pytest.raises(ValueError, match=message):
        distributed(gradients)
    assert gradients.state_dict() == {}
    distributed(gradients)
    assert list(gradients.state_dict()) == [rank_key(0, 1)]
    with pytest.raises(ValueError, match="there is a DDP already"):
        distributed(gradients)
    gradients = dense_gradients(error_feedback=True)
    bad = {
        rank_key(0, 1): {"num_steps": 1, "residuals": {"layers.0.bias": {"owner": torch.zeros(2)}}}
    }
    gradients.load_state_dict(bad)
    with pytest.raises(ValueError, match=r"residual of 'layers.0.bias', owner: \[2\], not \["):
        distributed(gradients)
    assert gradients.state_dict() == bad
    gradients.load_state_dict({})
    distributed(gradients)


def test_a_process_group_that_torch_has_forgotten_is_refused():
    with pytest.raises(ValueError, match="was made before destroy_process_group"):
        make_gloo_group(object())


def differing_rules():
    """Check that ranks with different rules are refused."""
    bits = (4, 8)[dist.get_rank()]
    gradients = dense_gradients(codec=Rowwise(bits))
    for _ in range(2):
        message = "different rules or parameters:\\nrule.codec.bits: 4 on rank 0; 8 on rank 1$"
        with pytest.raises(ValueError, match=message):
            distributed(gradients)
        assert gradients.state_dict() == {}


@pytest.mark.dist
def test_what_cannot_be_is_refused():
    run_ranks(refused, 1)


def test_rules_name_what_is_wrong():
    for options, message in (
        ({"algorithm": "tree"}, "algorithm: 'tree' is not one of"),
        ({"block": 0}, r"block: 0 is not an integer in 1\.\.1048576"),
        ({"min_numel": -1}, "min_numel: -1"),
        ({"codec": Identity(), "error_feedback": True}, "error_feedback: identity keeps nothing"),
        ({"on_resize": "drop"}, "on_resize: 'drop' is not one of"),
    ):
        with pytest.raises(ValueError, match=message):
            rule(**options)
