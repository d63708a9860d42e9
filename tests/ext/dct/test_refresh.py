import math

import pytest
import torch

from trec_qcomm.ext.dct.refresh import SampledThreshold, ThresholdRefresh, quantile
from trec_qcomm.ext.dual_level.schedule import Exponential, Schedule


def refresh(**options):
    return ThresholdRefresh(**{"every": 10, "density": 0.1} | options)


@pytest.mark.parametrize("density", [0.01, 0.1, 0.5, 0.99])
def test_that_share_of_a_whole_sample_is_let_through(density):
    values = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
    threshold = quantile(values, refresh(density=density), step=0)
    assert int((values.abs() >= threshold).sum()) == math.ceil(density * values.numel())


def test_a_sample_of_many_values_is_near():
    """Binomial: 4096 draws, 6 standard deviations."""
    values = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
    threshold = quantile(values, refresh(), step=0)
    share = float((values.abs() >= threshold).float().mean())
    assert abs(share - 0.1) <= 6 * math.sqrt(0.1 * 0.9 / 4096)


def test_zeros_are_never_let_through_and_what_is_not_finite_is_not_counted():
    values = torch.zeros(100)
    values[3] = 1.0
    assert quantile(values, refresh(), step=0) == 2.0**-126
    values[:50] = torch.nan
    values[50:99] = torch.inf
    values[99] = 2.0
    assert quantile(values, refresh(), step=0) == 2.0
    assert quantile(torch.full((4,), torch.nan), refresh(), step=0) is None
    assert quantile(torch.zeros(4), refresh(), step=0) is None


def test_all_values_may_be_the_sample():
    values = torch.randn(9000, generator=torch.Generator().manual_seed(0))
    threshold = quantile(values, refresh(sample="all"), step=0)
    assert int((values.abs() >= threshold).sum()) == 900


def test_a_resumed_run_has_the_same_threshold():
    first, second = SampledThreshold(refresh()), SampledThreshold(refresh())
    assert [step for step in range(25) if first.is_due(step)] == [0, 10, 20]
    second.load_state_dict(first.state_dict())
    assert second.threshold is None
    first.observe(torch.arange(100.0), 0)
    second.load_state_dict(first.state_dict())
    assert second.threshold == first.threshold == 90.0
    first.observe(torch.full((3,), torch.nan), 10)
    assert first.threshold == 90.0
    with pytest.raises(ValueError, match=r"threshold: -1\.0"):
        second.load_state_dict({"threshold": torch.tensor(-1.0)})


def test_a_falling_density_is_that_of_the_step_that_looks():
    falling = refresh(sample="all", density=0.01, schedule=Exponential(start=64, end_step=30))
    values = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    for step, share in ((0, 0.64), (10, 0.16), (20, 0.04), (30, 0.01), (10**9, 0.01)):
        assert falling.density_at(step) == pytest.approx(share, rel=1e-14)
        kept = values.abs() >= quantile(values, falling, step=step)
        assert int(kept.sum()) == math.ceil(falling.density_at(step) * 4096)
    sampled = SampledThreshold(falling)
    sampled.observe(values, 20)
    assert sampled.threshold == quantile(values, falling, step=20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every: 0"),
        ({"every": True}, "every: True"),
        ({"sample": 0}, "sample: 0"),
        ({"density": 1.0}, "density: 1.0"),
        ({"density": 0.0}, "density: 0.0"),
        ({"density": "a"}, "density: 'a'"),
        ({"schedule": "cosine"}, r"schedule\.kind: 'cosine' is not one of \('constant'"),
        ({"schedule": Schedule}, "schedule: expected the name of a kind"),
        ({"schedule": Exponential(start=10.0)}, r"schedule\.start: 10\.0 times the density, 0\.1,"),
        ({"schedule": Exponential(start=2, end_step=9)}, "every: 10: the schedule has ended"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        refresh(**options)
