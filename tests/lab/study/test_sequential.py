"""Looks at a running trial: bounds equal published ones, and all together err seldom enough."""

from math import atan, inf, isclose, pi, sqrt
from statistics import NormalDist

import pytest
import torch

from trec_qcomm.lab.study.sequential import levels, spent
from trec_qcomm.lab.study.student_t import t_quantile_of_tail, t_tail

LOOKS = tuple(range(10, 51, 5))


def tail_of_one(t: float) -> float:
    return atan(1 / t) / pi


def tail_of_two(t: float) -> float:
    root = sqrt(2 + t * t)
    return 1 / (root * (root + t))  # (1 - t / root) / 2 without cancellation


@pytest.mark.parametrize("t", [1e-3, 0.5, 1.0, 3.0, 50.0, 1e5])
@pytest.mark.parametrize(("degrees", "exact"), [(1, tail_of_one), (2, tail_of_two)])
def test_the_tail_is_exact_however_far_out(t, degrees, exact):
    assert isclose(t_tail(t, degrees), exact(t), rel_tol=1e-10)
    assert isclose(t_tail(-t, degrees), 1 - exact(t), rel_tol=1e-10)
    assert isclose(t_quantile_of_tail(exact(t), degrees), t, rel_tol=1e-8, abs_tol=1e-8)


def test_the_tail_of_many_degrees_is_nearly_normal():
    for z in (1.0, 3.0, 6.0):
        # Student's tail exceeds the normal one by about a factor exp(z^4 / 4v).
        assert isclose(t_tail(z, 10**7), NormalDist().cdf(-z), rel_tol=1e-4)
    assert t_tail(inf, 3) == 0
    assert t_quantile_of_tail(0.0, 3) == inf


# Bounds of z for 5 equal steps and 2.5 % one-sided: Lan and DeMets 1983 after O'Brien and Fleming;
# and spending in proportion, whose first bound is the 0.5 % quantile.
PUBLISHED = {
    "late": (4.877, 3.357, 2.680, 2.290, 2.031),
    "even": (2.576, 2.492, 2.411, 2.339, 2.276),
}


@pytest.mark.parametrize("spending", PUBLISHED)
def test_bounds_are_the_published_ones(spending):
    looks = (10, 20, 30, 40, 50)
    bounds = [-NormalDist().inv_cdf(level) for level in levels(looks, 0.025, spending)]
    assert bounds == pytest.approx(PUBLISHED[spending], abs=1e-3)
    assert spent(1, 0.025, spending) == pytest.approx(0.025)


@pytest.mark.parametrize("spending", ["late", "even"])
def test_one_look_is_a_plain_test(spending):
    assert levels((7,), 0.05, spending) == pytest.approx((0.05,), abs=1e-9)


def test_a_first_look_far_too_early_never_rejects():
    first, last = levels((1, 1000), 0.05)
    assert first == 0
    assert last == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((), 0.05), "looks"), (((5, 5), 0.05), "increasing"), (((0, 5), 0.05), "positive"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        levels(*arguments)


def rejected(numbers: torch.Tensor, levels: dict[int, float]) -> float:
    """Share of trials [n, 50] that some look rejects though the mean is zero."""
    wrong = torch.zeros(len(numbers), dtype=torch.bool)
    for look, level in levels.items():
        seen = numbers[:, :look]
        t = seen.mean(1) / seen.std(1) * sqrt(look)
        wrong |= t > t_quantile_of_tail(level, look - 1)
    return float(wrong.double().mean())


@pytest.mark.parametrize("spending", ["late", "even"])
def test_all_looks_together_err_as_rarely_as_stated(spending):
    """Numbers are normal with an unknown variance, which the levels are an approximation for."""
    num_trials, error = 20_000, 0.05
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(num_trials, LOOKS[-1], generator=generator, dtype=torch.float64)
    noise = 3 * sqrt(error * (1 - error) / num_trials)
    rate = rejected(numbers, dict(zip(LOOKS, levels(LOOKS, error, spending), strict=True)))
    assert abs(rate - error) < noise
    naive = rejected(numbers, dict.fromkeys(LOOKS, error))
    assert naive > 2.5 * error
