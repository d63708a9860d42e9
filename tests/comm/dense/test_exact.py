"""Linear algebra with equal bits on every machine."""

from unittest import mock

import pytest
import torch

from tests.comm.dense.other_machine import other_bmm, other_mm, real_bmm, real_mm
from tests.comm.dense.reductions import same_bits
from trec_qcomm.comm.dense.low_rank.exact import (
    orthonormal_rows,
    reciprocal_roots,
    write_products,
)
from trec_qcomm.wire import frame


def matrices(scale=1.0):
    generator = torch.Generator().manual_seed(1)
    return scale * torch.randn(3, 8, 100, generator=generator)


def product_of_factors(left, right):
    results = left.new_empty(len(left), left.shape[2], right.shape[2])
    write_products(left, right, results)
    return results


def test_another_order_of_sums_gives_other_bits_but_not_here():
    given = matrices()
    with mock.patch.object(torch, "matmul", torch.matmul):
        assert not same_bits(other_bmm(given, given.mT), real_bmm(given, given.mT))
    right = torch.randn(3, 8, 50, generator=torch.Generator().manual_seed(2))
    results = []
    for bmm in (real_bmm, other_bmm):
        mm = real_mm if bmm is real_bmm else other_mm
        with mock.patch.multiple(torch, bmm=bmm, mm=mm):
            (rows,) = orthonormal_rows([given])
            results.append((rows, product_of_factors(rows, right)))
    assert all(same_bits(*pair) for pair in zip(*results, strict=True))
    plain = real_bmm(results[0][0].double().mT, right.double())
    assert bool(((results[0][1] - plain).abs() <= 2.0**-22 * right.abs().max()).all())


def checked_bmm(left, right):
    """Multiply whole numbers whose sums of products float64 holds, in any order."""
    for factor in (left, right):
        assert factor.dtype == torch.float64
        assert torch.equal(factor, factor.round())
    assert float(real_bmm(left.abs(), right.abs()).max()) <= 2.0**53
    return real_bmm(left, right)


def checked_mm(left, right, *, out):
    return out.copy_(checked_bmm(left[None], right[None])[0])


@pytest.mark.parametrize(("rank", "num_columns"), [(1, 2), (4, 100), (64, 300), (3, 30_000)])
def test_every_product_is_of_whole_numbers_with_exact_sums(rank, num_columns):
    generator = torch.Generator().manual_seed(1)
    given = torch.randn(2, rank, num_columns, generator=generator)
    given[0] = given[0].sign()  # the largest sums
    right = torch.ones(2, rank, 5)
    with mock.patch.multiple(torch, bmm=checked_bmm, mm=checked_mm):
        (rows,) = orthonormal_rows([given])
        product_of_factors(rows, right)
        product_of_factors(torch.ones(2, rank, num_columns), right)


def test_roots_do_not_depend_on_the_library_of_the_machine():
    values = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values = torch.cat([values, values * 1e-300, values * 1e300, torch.tensor([1.0, 2.0, 0.5])])
    forbidden = dict.fromkeys(("sqrt", "rsqrt", "pow"), None)
    with mock.patch.multiple(torch, **forbidden), mock.patch.multiple(torch.Tensor, **forbidden):
        roots = reciprocal_roots(values)
        orthonormal_rows([matrices()])
    assert bool(((roots * roots * values - 1).abs() <= 2.0**-50).all())
    for part in (slice(7, 8), slice(3, 50)):  # as alone, with other paths of vector code
        assert torch.equal(reciprocal_roots(values[part]), roots[part])
    assert bool(reciprocal_roots(torch.tensor([torch.nan], dtype=torch.float64)).isnan())


@pytest.mark.parametrize("rank", [1, 4, 33])
def test_a_gpu_eliminates_with_the_same_bits(rank):
    generator = torch.Generator().manual_seed(1)
    given = torch.randn(3, rank, 100, generator=generator)
    given[0, rank // 2] = 0
    given[1, 0, 7] = torch.nan
    (expected,) = orthonormal_rows([given])
    with mock.patch.object(frame, "is_on_gpu", return_value=True):
        (rows,) = orthonormal_rows([given])
    assert same_bits(rows, expected)
    assert bool(rows[1].isnan().all())
    assert bool(rows[2].isfinite().all())


@pytest.mark.parametrize("scale", [1.0, 1e-38, 1e30])
def test_rows_are_orthonormal_and_span_the_same(scale):
    given = matrices(scale)
    (rows,) = orthonormal_rows([given])
    gram = torch.bmm(rows, rows.mT)
    assert bool(((gram - torch.eye(8)).abs() <= 2.0**-18).all())
    beside = given / scale - torch.bmm(torch.bmm(given / scale, rows.mT), rows)
    assert bool((beside.abs() <= 2.0**-14 * (given / scale).abs().max()).all())


def test_rows_that_are_sums_of_others_are_zero_and_nan_is_everywhere():
    given = matrices()
    given[0, 3] = given[0, 1] - 2 * given[0, 2]
    given[1, 0] = 0
    given[2, 5, 7] = torch.inf
    rows, alone = orthonormal_rows([given, given[:1, :, :50]])
    assert (rows == 0).all(dim=2).nonzero().tolist() == [[0, 3], [1, 0]]
    assert bool(rows[2].isnan().all())
    assert alone.shape == (1, 8, 50)
    assert not bool(orthonormal_rows([torch.zeros(1, 4, 9)])[0].any())
