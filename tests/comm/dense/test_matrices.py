"""What a rank keeps of a matrix: an orthonormal basis, and products that nothing rounds."""

from unittest import mock

import pytest
import torch

from tests.comm.dense.test_low_rank import FORMS, gradients, ranks, reduced, residual_sum, shapes
from tests.ops.fake_gpu import fake_gpu
from trec_qcomm import Identity
from trec_qcomm.comm.dense.low_rank.matrices import Matrix, MatrixShape, orthonormal_rows
from trec_qcomm.core.checks import DeferredChecks, deferring

_mm = torch.mm


def rows(scale=1.0):
    return scale * torch.randn(8, 100, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("scale", [1.0, 1e-38, 1e30])
def test_rows_are_orthonormal_and_span_the_same(scale):
    basis = orthonormal_rows(rows(scale))
    assert bool((basis @ basis.T - torch.eye(8)).abs().max() <= 2.0**-20)
    given = rows()
    beside = given - (given @ basis.T) @ basis
    assert bool((beside.abs() <= 2.0**-14 * given.abs().max()).all())


def test_rows_that_are_sums_of_others_leave_a_basis_and_nan_is_everywhere():
    given = rows()
    given[3] = given[1] - 2 * given[2]
    for dependent in (given, torch.zeros(8, 100)):
        basis = orthonormal_rows(dependent)
        assert bool((basis @ basis.T - torch.eye(8)).abs().max() <= 2.0**-20)
    for value in (torch.nan, torch.inf):
        given[5, 7] = value
        assert bool(orthonormal_rows(given).isnan().all())


def test_a_residual_waits_for_a_gradient_that_is_not_all_zeros():
    matrix = Matrix(MatrixShape("a", 24, 40, rank=4, block=64, coding=0), seed=0)
    matrix.load(torch.ones(24 * 40), None)
    unused = torch.zeros(24, 40)
    assert not matrix.begin(unused).any()
    for row, column in ((0, 0), (0, 1), (23, 39)):  # among them values that are no samples
        one = torch.zeros(24, 40)
        one[row, column] = 1.0
        assert matrix.begin(one).any()
        assert float(one.sum()) == 24 * 40 + 1


def of_tensor_cores(left, right, **options):
    """Multiply as TF32 does: float32 factors are rounded to 11 bits, float64 ones are not."""
    if left.dtype == torch.float32:
        left, right = (_to_tf32(factor) for factor in (left, right))
    return _mm(left, right, **options)


def addmm_of_tensor_cores(base, left, right, *, alpha, out):
    return out.copy_(base + alpha * of_tensor_cores(left, right))


def _to_tf32(values):
    return ((values.contiguous().view(torch.int32) + 4096) & ~8191).view(torch.float32)


def lost_in_steps(steps):
    """Return the largest difference between gradients, and results with residuals."""
    reductions = ranks(2, Identity())
    numels, given, came = [shape.numel for shape in shapes()], 0.0, 0.0
    for step in range(steps):
        buckets = [gradients(step, rank) for rank in range(2)]
        came = came + reduced(reductions, buckets)[0].double()
        given = given + torch.stack(buckets).double().mean(0)
    kept = residual_sum(reductions)
    parts = zip(shapes(), came.split(numels), given.split(numels), strict=True)
    return max(float((a + kept[s.name] - b).abs().max()) for s, a, b in parts if s.name in FORMS)


@pytest.mark.triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs what stands in for a GPU")
def test_nothing_is_lost_where_float32_is_rounded_to_tf32():
    rounded = {"mm": of_tensor_cores, "addmm": addmm_of_tensor_cores}
    with fake_gpu(), mock.patch.multiple(torch, **rounded), deferring(DeferredChecks()):
        assert lost_in_steps(8) < 1e-5
    with mock.patch.multiple(torch, **rounded):
        assert lost_in_steps(8) > 1e-4  # with float32 products
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        try:
            assert lost_in_steps(8) < 1e-5
        finally:
            torch.backends.mkldnn.matmul.fp32_precision = "none"
