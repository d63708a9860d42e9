"""The index is the count of its definition, and what is not quantized stays apart."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trec_qcomm.ext.dual_level.error_bound import count_distinct, homogenization_index


@given(
    num_rows=st.integers(1, 60),
    dim=st.integers(1, 9),
    num_values=st.integers(1, 4),
    scale=st.sampled_from([1, 2**22, 2**31, 2**40]),
    seed=st.integers(0, 2**31),
)
def test_distinct_rows_are_those_that_torch_counts(num_rows, dim, num_values, scale, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(-num_values, num_values, (num_rows, dim), generator=generator) * scale
    assert count_distinct(rows) == len(rows.unique(dim=0))


def test_rows_that_differ_in_one_high_bit_are_counted() -> None:
    """A plain sum of products loses high bits: 2^63 times any even factor is 0."""
    bits = torch.tensor([0, *(1 << k for k in range(63)), -(2**63)])
    assert count_distinct(bits[:, None]) == 65
    square = torch.stack([bits.repeat(65), bits.repeat_interleave(65)], dim=1)
    assert count_distinct(square) == 65 * 65


@given(
    num_rows=st.integers(2, 40),
    dim=st.integers(1, 5),
    bound=st.sampled_from([0.001, 0.01, 0.03, 0.2]),
    shift=st.sampled_from([0.0, 3.0, -100.0]),
    seed=st.integers(0, 2**31),
)
def test_the_index_is_its_definition(num_rows, dim, bound, shift, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(num_rows, dim, generator=generator) + shift
    rows = torch.cat([rows, rows[: num_rows // 2]])  # repeats count once
    exact = rows.double()
    step = 2 * bound * (exact.max() - exact.min())
    after = len(torch.round(exact / step).unique(dim=0))
    assert homogenization_index(rows, bound=bound) == after / len(rows.unique(dim=0))


def test_rows_near_one_another_become_one() -> None:
    """9 rows within the bound of 0 beside 1 far away: 10 become 2."""
    rows = torch.cat([torch.linspace(-0.01, 0.01, 9)[:, None].expand(9, 4), torch.ones(1, 4)])
    assert homogenization_index(rows, bound=0.03) == 0.2
    assert homogenization_index(rows, bound=1e-6) == 1


@pytest.mark.parametrize(
    ("rows", "bound", "index"),
    [
        ([[5.0, 5.0]], 0.03, 1),
        ([[5.0], [5.0]], 0.03, 1),
        ([[0.0], [-0.0]], 0.03, 1),
        ([[1e-39], [2e-39], [0.0]], 0.4, 1),  # the step is no normal float32: sent as they are
        ([[3e38], [-3e38], [1.0], [2.0]], 0.2, 1),  # nor is the inverse of this one
        ([[3e38], [-3e38], [1.0], [2.0]], 0.03, 3 / 4),
        ([[math.nan], [math.inf], [-math.inf]], 0.03, 1),
        ([[math.nan, 1.0], [math.nan, 2.0]], 0.03, 1),
        ([[math.nan, 1.0], [math.nan, 1.0]], 0.03, 1),  # one row that occurs twice
        ([[1.0], [0.0], [1.0 + 2**-23], [math.inf], [math.nan]], 0.03, 4 / 5),
        ([[1e6], [1e6 + 0.0625], [1e6 + 0.125]], 0.03, 1),  # |code| > 2^22: sent as they are
    ],
)
def test_what_is_not_quantized_stays_apart(rows, bound, index) -> None:
    assert homogenization_index(torch.tensor(rows), bound=bound) == index


@pytest.mark.parametrize(
    ("rows", "bound", "message"),
    [
        (torch.zeros(3), 0.1, r"rows: expected \[n >= 1, D >= 1\] float32, got \[3\]"),
        (torch.zeros(0, 3), 0.1, r"got \[0, 3\]"),
        (torch.zeros(3, 0), 0.1, r"got \[3, 0\]"),
        (torch.zeros(3, 3, dtype=torch.float64), 0.1, r"float64"),
        (torch.zeros(3, 3), 0.0, r"bound: 0.0 is not between 0 and 1"),
        (torch.zeros(3, 3), 1.0, r"bound: 1.0"),
        (torch.zeros(3, 3), math.nan, r"bound: nan"),
    ],
)
def test_bad_rows_are_refused(rows, bound, message) -> None:
    with pytest.raises(ValueError, match=message):
        homogenization_index(rows, bound=bound)
