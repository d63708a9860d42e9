"""Choosing, packing and adding rows: the backends agree, and adding is the adjoint of packing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.backends import BACKENDS, assert_equal, device_of, on
from trec_qcomm.ops.batch.rows import Rows, add, choose, single_rows, take


def groups_of(sizes, dims, generator):
    """Return groups that lie behind one another with gaps, in random order, and the buffer's
    size."""
    num_rows, dim = torch.tensor(sizes), torch.tensor(dims)
    stride = dim + torch.randint(0, 3, dim.shape, generator=generator)
    extent = num_rows * stride + 1
    start, first = extent.cumsum(0) - extent, num_rows.cumsum(0) - num_rows
    order = torch.randperm(len(sizes), generator=generator)
    tensors = (first, num_rows, start, stride, dim)
    return [t[order] for t in tensors], int(extent.sum()) + 8


def check_all(chosen, groups, size, generator, dtype=torch.float32):
    """Check `choose`, `take` and `add` on integers, whose sums are exact; return the reference's
    rows."""
    rows, packed, sums = [], [], []
    values = torch.randint(-9, 9, (size,), generator=generator).to(dtype)
    for backend in BACKENDS:
        rows.append(on(backend, choose, chosen.to(device_of(backend)), *groups))
        out = values.new_full((rows[-1].num_values,), 7.0, device=device_of(backend))
        on(backend, take, values.to(out.device), rows[-1], out)
        packed.append(out)
    assert_equal(chosen_rows.counts for chosen_rows in rows)
    assert_equal(chosen_rows.position for chosen_rows in rows)
    assert_equal(packed)
    other = torch.randint(-9, 9, packed[0].shape, generator=generator).to(dtype)
    for chosen_rows, backend in zip(rows, BACKENDS, strict=True):
        out = values.new_ones(size, device=device_of(backend))
        on(backend, add, other.to(out.device), chosen_rows, out)
        sums.append(out)
    assert_equal(sums)
    terms = (packed[0] * other).sum(dtype=torch.float64), values * (sums[0] - 1)
    assert terms[0] == terms[1].sum(dtype=torch.float64)
    return rows[0]


@pytest.mark.triton
@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20)), min_size=1, max_size=5),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 1000),
)
def test_backends_agree_and_add_is_the_adjoint_of_take(shapes, share, seed):
    generator = torch.Generator().manual_seed(seed)
    sizes, dims = zip(*shapes, strict=True)
    groups, size = groups_of(sizes, dims, generator)
    chosen = torch.rand(sum(sizes), generator=generator) < share
    rows = check_all(chosen, groups, size, generator)
    assert int(rows.counts.sum()) == int(chosen.sum())


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dims", [(8, 4, 64), (7, 1, 33)], ids=["quads", "values"])
def test_rows_of_several_ranks_side_by_side(dims, dtype):
    """Three ranks have rows for the same columns of a matrix, one of them fewer rows.

    There are more rows and values than one program takes, and groups without rows.
    """
    generator = torch.Generator().manual_seed(0)
    num_samples, dim = 220, torch.tensor(dims)
    width = int(dim.sum()) + 3 * (dims[0] % 2)
    num_rows = torch.tensor([[num_samples] * 3, [0] * 3, [num_samples // 2, 0, num_samples]])
    num_rows = num_rows.view(-1)
    groups = (
        num_rows.cumsum(0) - num_rows,
        num_rows,
        (dim.cumsum(0) - dim).repeat(3),
        torch.full((9,), width),
        dim.repeat(3),
    )
    chosen = torch.rand(int(num_rows.sum()), generator=generator) < 0.6
    check_all(chosen, groups, num_samples * width, generator, dtype)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_rows_that_overlap_are_added_in_order(backend):
    rows = Rows(torch.tensor([2, 1]), torch.tensor([2, 2]), torch.tensor([0, 1, 0]))
    out = torch.zeros(3)
    packed = torch.tensor([2.0**24, 1, 1, 1, 1, -(2.0**24)])
    on(backend, add, packed, rows, out)
    assert out.tolist() == [2.0**24, 2 - 2.0**24, 1]


@pytest.mark.triton
@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_positions_are_added_in_order(backend):
    device = device_of(backend)
    chosen = torch.tensor([True, True, False, True, True], device=device)
    first, num_rows = torch.tensor([0, 1, 3, 4]), torch.tensor([1, 1, 1, 1])
    start, dim = torch.tensor([2, 0, 2, 2]), torch.tensor([2, 2, 2, 2])
    rows = on(backend, choose, chosen, first, num_rows, start, dim, dim)
    packed = [2.0**24, torch.nan, -3, 5, 1, -torch.inf, -(2.0**24), torch.inf]
    out = torch.tensor([0.0, -0.0, -0.0, 0, 9], device=device)
    on(backend, add, torch.tensor(packed, device=device), rows, out)
    assert out[:3].tolist() == [-3, 5, 0]
    assert out.view(torch.int32)[3] == 0x7FC00000
    assert out[4] == 9


@pytest.mark.triton
def test_what_add_cannot_do_on_a_gpu():
    device = device_of("gpu")
    rows = Rows(torch.tensor([1]), torch.tensor([2]), torch.tensor([1], device=device))
    packed, out = torch.tensor([3.0, 4], device=device), torch.zeros(4, device=device)
    taken = torch.zeros(2, device=device)
    on("gpu", take, torch.arange(4.0, device=device), rows, taken)
    assert taken.tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"rows\.add: rows\.groups: expected"):
        on("gpu", add, packed, rows, out)
    chosen, first = torch.ones(4, dtype=torch.bool, device=device), torch.tensor([0, 2])
    two, start = torch.tensor([2, 2]), torch.tensor([0, 0])
    for stride, dim in [([2, 3], [2, 2]), ([2, 2], [2, 1])]:
        rows = on("gpu", choose, chosen, first, two, start, torch.tensor(stride), torch.tensor(dim))
        packed = torch.zeros(rows.num_values, device=device)
        with pytest.raises(ValueError, match="groups that begin at value 0 must have equal dim"):
            on("gpu", add, packed, rows, torch.zeros(9, device=device))


@pytest.mark.triton
@pytest.mark.triton
def test_single_rows_are_moved_in_vectors_where_they_may_be_and_added():
    for begin, dim, vector in (([8, 0], [4, 8], 4), ([8, 1], [4, 4], 1), ([8, 0], [3, 8], 1)):
        outs = []
        for backend in BACKENDS:
            device = torch.device(device_of(backend))
            rows = single_rows(torch.tensor(begin), torch.tensor(dim), device)
            assert rows.vector == vector
            outs.append(torch.arange(12.0, device=device))
            on(backend, add, torch.ones(rows.num_values, device=device), rows, outs[-1])
        assert_equal(outs)
        assert outs[0].sum() == 66 + sum(dim)


def test_groups_of_one_row_have_no_stride():
    device = device_of("gpu")
    chosen = torch.ones(3, dtype=torch.bool, device=device)
    first, num_rows, one = torch.tensor([0, 2]), torch.tensor([2, 1]), torch.tensor([1, 1])
    stride = torch.tensor([3, 50])
    rows = on("gpu", choose, chosen, first, num_rows, 0 * one, stride, one)
    out = torch.zeros(60, device=device)
    on("gpu", add, torch.tensor([1.0, 2, 4], device=device), rows, out)
    assert out.nonzero().view(-1).tolist() == [0, 3]
    assert out[[0, 3]].tolist() == [5, 2]


@pytest.mark.triton
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_does_not_fit_is_refused(backend):
    device = device_of(backend)
    zeros, ones = torch.zeros(9, device=device), torch.ones(3, device=device)
    rows = Rows(torch.tensor([1]), torch.tensor([4]), torch.tensor([3], device=device))
    with pytest.raises(ValueError, match="beyond the 6 values"):
        on(backend, take, zeros[:6], rows, zeros[:4])
    with pytest.raises(ValueError, match="5 values where 4 are due"):
        on(backend, add, zeros[:5], rows, zeros)
    one = torch.tensor([1])
    with pytest.raises(ValueError, match="beyond chosen"):
        on(backend, choose, ones[:1] == 1, one, one, one, one, one)
    with pytest.raises(ValueError, match="chosen: expected"):
        on(backend, choose, ones, one, one, one, one, one)
    long_row = on(backend, choose, ones == 1, one, one, one, one, 5 * one)
    with pytest.raises(ValueError, match="beyond the 5 values"):
        on(backend, take, zeros[:5], long_row, zeros[:5])
