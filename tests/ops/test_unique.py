"""Distinct bags: cpu and reference agree, taking and expanding gives every bag back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trec_qcomm.ops.unique import Blocks, expand, sum_by_bag, take_bags, unique_bags

BACKENDS = ("reference", "cpu")


def bags_of(generator, num_bags, *, longest, vocabulary, weighted=False, dtype=torch.int64):
    lengths = torch.randint(0, longest + 1, (sum(num_bags),), generator=generator)
    if longest == 1:
        lengths.fill_(1)
    num_ids = int(lengths.sum())
    values = torch.randint(0, vocabulary, (num_ids,), generator=generator).to(dtype)
    weights = torch.randint(0, 2, (num_ids,), generator=generator).float() if weighted else None
    return values, lengths.to(torch.int32), weights


def as_lists(values, lengths, weights):
    parts = values.split(lengths.tolist())
    bits = weights.split(lengths.tolist()) if weights is not None else parts
    return [(v.tolist(), w.tolist()) for v, w in zip(parts, bits, strict=True)]


@settings(max_examples=60, deadline=None)
@given(
    num_bags=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    longest=st.integers(0, 4),
    vocabulary=st.sampled_from([1, 3, 50, 2**31 - 1]),
    weighted=st.booleans(),
    wide=st.booleans(),
    share=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 1000),
)
def test_backends_agree_and_nothing_is_lost(
    num_bags, longest, vocabulary, weighted, wide, share, seed
):
    generator = torch.Generator().manual_seed(seed)
    values, lengths, weights = bags_of(
        generator,
        num_bags,
        longest=longest,
        vocabulary=vocabulary,
        weighted=weighted,
        dtype=torch.int64 if wide else torch.int32,
    )
    counts = torch.tensor(num_bags)
    shares = torch.full((len(num_bags),), share, dtype=torch.float64)
    found = [
        unique_bags(values, lengths, counts, shares, weights=weights, backend=b) for b in BACKENDS
    ]
    for name in ("first", "counts", "inverse"):
        assert torch.equal(getattr(found[0], name), getattr(found[1], name)), name
    taken = [
        take_bags(values, lengths, found[1].first, weights=weights, backend=b) for b in BACKENDS
    ]
    for one, other in zip(*taken, strict=True):
        assert (one is None) == (other is None)
        assert one is None or (torch.equal(one, other) and one.dtype == other.dtype)
    every, distinct = as_lists(values, lengths, weights), as_lists(*taken[1])
    begin, begin_distinct = 0, 0
    for n, n_distinct in zip(num_bags, found[1].counts.tolist(), strict=True):
        own = distinct[begin_distinct : begin_distinct + n_distinct]
        inverse = found[1].inverse[begin : begin + n].tolist()
        assert [own[i] for i in inverse] == every[begin : begin + n]
        different = len({str(bag) for bag in every[begin : begin + n]})
        assert n_distinct == (different if different <= share * n else n)
        begin, begin_distinct = begin + n, begin_distinct + n_distinct


def test_equal_hashes_are_told_apart():
    """Ids that differ in their upper bits only, and more bags than 16-bit numbers hold."""
    values = torch.arange(70_000) << 40
    lengths = torch.ones(70_000, dtype=torch.int64)
    one = torch.ones(1, dtype=torch.float64)
    assert int(unique_bags(values, lengths, torch.tensor([70_000]), one).counts) == 70_000
    twice, lengths = values.repeat(2), lengths.repeat(2)
    found = unique_bags(twice, lengths, torch.tensor([140_000]), one)
    assert int(found.counts) == 70_000
    assert torch.equal(found.inverse, torch.arange(70_000).repeat(2))


def test_order_and_weights_are_part_of_a_bag():
    one = torch.ones(1, dtype=torch.float64)
    values, lengths = torch.tensor([1, 2, 2, 1, 1, 2]), torch.tensor([2, 2, 2])
    assert unique_bags(values, lengths, torch.tensor([3]), one).inverse.tolist() == [0, 1, 0]
    weights = torch.tensor([1.0, 1, 1, 1, 1, 2])
    found = unique_bags(values, lengths, torch.tensor([3]), one, weights=weights)
    assert found.inverse.tolist() == [0, 1, 2]
    split = unique_bags(values, torch.tensor([1, 2, 3]), torch.tensor([3]), one)
    assert split.counts.tolist() == [3]


def blocks_of(num_rows, dims, groups):
    """Packed blocks in this order; their columns in the opposite order, with a gap between."""
    num_rows, dims = torch.tensor(num_rows), torch.tensor(dims)
    sizes = num_rows * dims
    columns = (dims + 1).flip(0).cumsum(0).flip(0) - (dims + 1)
    return Blocks(sizes.cumsum(0) - sizes, num_rows, dims, columns, torch.tensor(groups))


@pytest.mark.parametrize("num_samples", [0, 1, 33])
def test_rows_are_expanded_and_gradients_summed(num_samples):
    generator = torch.Generator().manual_seed(0)
    num_rows, dims, groups = [5, 1, 7, 5], [4, 1, 7, 16], [0, 1, 2, 0]
    blocks = blocks_of(num_rows, dims, groups)
    inverse = torch.stack(
        [torch.randint(0, n, (num_samples,), generator=generator) for n in (5, 1, 7)]
    )
    rows = torch.randn(sum(n * d for n, d in zip(num_rows, dims, strict=True)), generator=generator)
    width = sum(dims) + len(dims)
    out = [torch.full((num_samples, width), 9.0) for _ in BACKENDS]
    sums = [torch.full_like(rows, 9.0) for _ in BACKENDS]
    gradient = torch.randn(num_samples, width, generator=generator)
    for b, backend in enumerate(BACKENDS):
        expand(rows, blocks, inverse, out[b], backend=backend)
        sum_by_bag(gradient, blocks, inverse, sums[b], backend=backend)
    assert torch.equal(*out)
    assert torch.equal(*sums)
    packed = rows.split([n * d for n, d in zip(num_rows, dims, strict=True)])
    exact = sums[0].double().split([n * d for n, d in zip(num_rows, dims, strict=True)])
    for s, (n, dim, group) in enumerate(zip(num_rows, dims, groups, strict=True)):
        column = int(blocks.column[s])
        index = inverse[group]
        assert torch.equal(out[0][:, column : column + dim], packed[s].view(n, dim)[index])
        mine = gradient[:, column : column + dim].double()
        expected = torch.zeros(n, dim, dtype=torch.float64).index_add(0, index, mine)
        magnitude = torch.zeros(n, dim, dtype=torch.float64).index_add(0, index, mine.abs())
        error = (exact[s].view(n, dim) - expected).abs()
        assert bool((error <= num_samples * 2.0**-24 * magnitude).all())
    outside = torch.ones(width, dtype=torch.bool)
    for s in range(4):
        outside[int(blocks.column[s]) : int(blocks.column[s]) + dims[s]] = False
    assert bool((out[0][:, outside] == 9).all())


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_does_not_fit_is_refused(backend):
    one, ids = torch.ones(1, dtype=torch.float64), torch.tensor([1, 2, 3])
    ones = torch.ones(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="lengths: sum up to 4"):
        unique_bags(ids, ones + torch.tensor([0, 0, 1]), torch.tensor([3]), one, backend=backend)
    with pytest.raises(ValueError, match="num_bags"):
        unique_bags(ids, ones, torch.tensor([2]), one, backend=backend)
    with pytest.raises(ValueError, match="values: expected"):
        unique_bags(ids.float(), ones, torch.tensor([3]), one, backend=backend)
    with pytest.raises(ValueError, match="weights"):
        unique_bags(ids, ones, torch.tensor([3]), one, weights=ids.double(), backend=backend)
    blocks = blocks_of([2], [4], [0])
    inverse = torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="blocks"):
        expand(torch.zeros(7), blocks, inverse, torch.zeros(3, 5), backend=backend)
    with pytest.raises(ValueError, match="samples"):
        expand(torch.zeros(8), blocks, inverse, torch.zeros(4, 5), backend=backend)


def test_negative_lengths_are_refused():
    lengths = torch.tensor([4, -1])
    with pytest.raises(ValueError, match="negative"):
        unique_bags(torch.tensor([1, 2, 3]), lengths, torch.tensor([2]), torch.ones(1).double())
