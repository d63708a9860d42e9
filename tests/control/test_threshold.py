import math

import pytest
import torch

from trec_qcomm.control.threshold import SampledThreshold, ThresholdRefresh, quantile


def refresh(**options):
    return ThresholdRefresh(**{"every": 10, "density": 0.1} | options)


@pytest.mark.parametrize("density", [0.01, 0.1, 0.5, 0.99])
def test_that_share_of_a_whole_sample_is_let_through(density):
    values = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
    threshold = quantile(values, refresh(density=density))
    assert int((values.abs() >= threshold).sum()) == math.ceil(density * values.numel())


def test_a_sample_of_many_values_is_near():
    """Binomial: 4096 draws, 6 standard deviations."""
    values = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
    threshold = quantile(values, refresh())
    share = float((values.abs() >= threshold).float().mean())
    assert abs(share - 0.1) <= 6 * math.sqrt(0.1 * 0.9 / 4096)


def test_zeros_are_never_let_through_and_what_is_not_finite_is_not_counted():
    values = torch.zeros(100)
    values[3] = 1.0
    assert quantile(values, refresh()) == 2.0**-126
    values[:50] = torch.nan
    values[50:99] = torch.inf
    values[99] = 2.0
    assert quantile(values, refresh()) == 2.0
    assert quantile(torch.full((4,), torch.nan), refresh()) is None
    assert quantile(torch.zeros(4), refresh()) is None


def test_all_values_may_be_the_sample():
    values = torch.randn(9000, generator=torch.Generator().manual_seed(0))
    threshold = quantile(values, refresh(sample="all"))
    assert int((values.abs() >= threshold).sum()) == 900


def test_a_resumed_run_has_the_same_threshold():
    first, second = SampledThreshold(refresh()), SampledThreshold(refresh())
    assert [step for step in range(25) if first.is_due(step)] == [0, 10, 20]
    second.load_state_dict(first.state_dict())
    assert second.threshold is None
    first.observe(torch.arange(100.0))
    second.load_state_dict(first.state_dict())
    assert second.threshold == first.threshold == 90.0
    first.observe(torch.full((3,), torch.nan))
    assert first.threshold == 90.0
    with pytest.raises(ValueError, match=r"threshold: -1\.0"):
        second.load_state_dict({"threshold": torch.tensor(-1.0)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every: 0"),
        ({"every": True}, "every: True"),
        ({"sample": 0}, "sample: 0"),
        ({"density": 1.0}, "density: 1.0"),
        ({"density": 0.0}, "density: 0.0"),
        ({"density": "a"}, "density: 'a'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        refresh(**options)
