"""Choosing, packing and adding rows: cpu and reference agree, and are each other's adjoint."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trec_qcomm.ops.rows import Rows, add, choose, take

BACKENDS = ("reference", "cpu")


def groups_of(sizes, dims, generator):
    """Groups that lie behind one another with gaps, in an order of their own."""
    num_rows, dim = torch.tensor(sizes), torch.tensor(dims)
    stride = dim + torch.randint(0, 3, dim.shape, generator=generator)
    extent = num_rows * stride + 1
    start, first = extent.cumsum(0) - extent, num_rows.cumsum(0) - num_rows
    order = torch.randperm(len(sizes), generator=generator)
    tensors = (first, num_rows, start, stride, dim)
    return [t[order] for t in tensors], int(extent.sum()) + 8


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
    ours, theirs = (choose(chosen, *groups, backend=b) for b in BACKENDS)
    assert torch.equal(ours.counts, theirs.counts)
    assert torch.equal(ours.position, theirs.position)
    assert int(ours.counts.sum()) == int(chosen.sum())
    values = torch.randint(-9, 9, (size,), generator=generator).float()
    packed = [torch.full((ours.num_values,), 7.0) for _ in BACKENDS]
    for out, backend in zip(packed, BACKENDS, strict=True):
        take(values, ours, out, backend=backend)
    assert torch.equal(*packed)
    other = torch.randint(-9, 9, packed[0].shape, generator=generator).float()
    sums = [torch.ones(size) for _ in BACKENDS]
    for out, backend in zip(sums, BACKENDS, strict=True):
        add(other, ours, out, backend=backend)
    assert torch.equal(*sums)
    assert (packed[0] * other).sum() == (values * (sums[0] - 1)).sum()  # integers: exact


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_positions_are_added_in_order(backend):
    rows = Rows(torch.tensor([2, 1]), torch.tensor([2, 2]), torch.tensor([0, 1, 0]))
    out = torch.zeros(3)
    packed = torch.tensor([2.0**24, 1, 1, 1, 1, -(2.0**24)])
    add(packed, rows, out, backend=backend)
    assert out.tolist() == [2.0**24, 2 - 2.0**24, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_does_not_fit_is_refused(backend):
    rows = Rows(torch.tensor([1]), torch.tensor([4]), torch.tensor([3]))
    with pytest.raises(ValueError, match="beyond the 6 values"):
        take(torch.zeros(6), rows, torch.zeros(4), backend=backend)
    with pytest.raises(ValueError, match="5 values where 4 are due"):
        add(torch.zeros(5), rows, torch.zeros(9), backend=backend)
    one = torch.tensor([1])
    with pytest.raises(ValueError, match="beyond chosen"):
        choose(torch.ones(1, dtype=torch.bool), one, one, one, one, one, backend=backend)
    with pytest.raises(ValueError, match="chosen: expected"):
        choose(torch.ones(3), one, one, one, one, one, backend=backend)
