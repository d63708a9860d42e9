"""Distinct bags: the backends agree, and taking and expanding gives every bag back."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.backends import BACKENDS, assert_equal, device_of, on
from trec_qcomm.ops.batch.unique import (
    BagBlocks,
    UniqueBags,
    expand,
    sort_by_id,
    sum_by_bag,
    take_bags,
    unique_bags,
)


def bags_of(generator, num_bags, *, longest, vocabulary, weighted=False, dtype=torch.int64):
    lengths = torch.randint(0, longest + 1, (sum(num_bags),), generator=generator)
    if longest == 1:
        lengths.fill_(1)
    num_ids = int(lengths.sum())
    values = torch.randint(0, vocabulary, (num_ids,), generator=generator).to(dtype)
    weights = torch.randint(0, 2, (num_ids,), generator=generator).float() if weighted else None
    return values, lengths.to(torch.int32), weights


def unique_bags_by_all(values, lengths, counts, shares, weights=None):
    """Return the reference's distinct bags, after checking that all backends find the same."""
    results = []
    for backend in BACKENDS:
        bags = (None if t is None else t.to(device_of(backend)) for t in (values, lengths, weights))
        ids, sizes, factors = bags
        results.append(on(backend, unique_bags, ids, sizes, counts, shares, weights=factors))
    for name in ("first", "counts", "inverse"):
        assert_equal((getattr(result, name) for result in results), name)
    first_by_group = results[0].first.split(results[0].counts.tolist())
    assert results[-1].num_ids.tolist() == [lengths[first].sum() for first in first_by_group]
    return results[0]


def as_lists(values, lengths, weights):
    parts = values.split(lengths.tolist())
    bits = weights.split(lengths.tolist()) if weights is not None else parts
    return [(v.tolist(), w.tolist()) for v, w in zip(parts, bits, strict=True)]


@pytest.mark.triton
@settings(max_examples=50, deadline=None)
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
    kinds = {"weighted": weighted, "dtype": torch.int64 if wide else torch.int32}
    sizes = {"longest": longest, "vocabulary": vocabulary}
    values, lengths, weights = bags_of(generator, num_bags, **sizes, **kinds)
    counts = torch.tensor(num_bags)
    shares = torch.full((len(num_bags),), share, dtype=torch.float64)
    unique = unique_bags_by_all(values, lengths, counts, shares, weights)
    taken = []
    for backend in (*BACKENDS, "gpu"):  # the first time, "gpu" waits for the number of ids
        ids, sizes, first = (t.to(device_of(backend)) for t in (values, lengths, unique.first))
        also = {"weights": None if weights is None else weights.to(ids.device)}
        num_ids = int(lengths[unique.first].sum()) if len(taken) == len(BACKENDS) else None
        taken.append(on(backend, take_bags, ids, sizes, first, **also, num_ids=num_ids))
    for one, *others in zip(*taken, strict=True):
        for other in others:
            assert (one is None) == (other is None)
            assert one is None or one.dtype == other.dtype
        assert one is None or assert_equal([one, *others]) is None
    every, distinct = as_lists(values, lengths, weights), as_lists(*taken[0])
    begin, begin_distinct = 0, 0
    for n, n_distinct in zip(num_bags, unique.counts.tolist(), strict=True):
        group = distinct[begin_distinct : begin_distinct + n_distinct]
        inverse = unique.inverse[begin : begin + n].tolist()
        assert [group[i] for i in inverse] == every[begin : begin + n]
        different = len({str(bag) for bag in every[begin : begin + n]})
        assert n_distinct == (different if different <= share * n else n)
        begin, begin_distinct = begin + n, begin_distinct + n_distinct


def test_equal_hashes_are_told_apart():
    """The ids differ in their upper bits only, and there are more bags than 16 bits can number."""
    values = torch.arange(70_000) << 40
    lengths = torch.ones(70_000, dtype=torch.int64)
    one = torch.ones(1, dtype=torch.float64)
    assert int(unique_bags(values, lengths, torch.tensor([70_000]), one).counts) == 70_000
    twice, lengths = values.repeat(2), lengths.repeat(2)
    unique = unique_bags(twice, lengths, torch.tensor([140_000]), one)
    assert int(unique.counts) == 70_000
    assert torch.equal(unique.inverse, torch.arange(70_000).repeat(2))


@pytest.mark.triton
@pytest.mark.parametrize("vocabulary", [1, 40, 2**40], ids=["one", "few", "all"])
def test_one_hot_columns_of_more_than_a_program(vocabulary):
    generator = torch.Generator().manual_seed(0)
    num_bags, shares = [300, 1, 0, 129, 128], torch.tensor([1.0, 0.9, 1, 0.5, 0])
    values = torch.randint(0, vocabulary, (sum(num_bags),), generator=generator)
    lengths = torch.ones(sum(num_bags), dtype=torch.int32)
    unique = unique_bags_by_all(values, lengths, torch.tensor(num_bags), shares.double())
    expected = {1: [1, 1, 0, 1, 128], 40: [40, 1, 0, 38, 128], 2**40: num_bags}
    assert unique.counts.tolist() == expected[vocabulary]


@pytest.mark.triton
def test_which_bag_is_first_does_not_depend_on_which_came_first(monkeypatch):
    """Programs run in any order on a GPU. Here the table already holds the last of equal bags."""
    from trec_qcomm.ops.batch.unique.gpu import distinct_bags as gpu

    def late(kernel, programs, *args, **options):
        launch(kernel, programs, *args, **options)
        if kernel is gpu._insert:
            table, slots = args[0], args[1].tolist()
            for bag, slot in enumerate(slots):
                table[slot] = bag
            launch(kernel, programs, *args, **options)

    launch = gpu.launch
    monkeypatch.setattr(gpu, "launch", late)
    values = torch.randint(0, 40, (200,), generator=torch.Generator().manual_seed(0))
    one = torch.ones(1, dtype=torch.float64)
    unique_bags_by_all(values, torch.ones_like(values), torch.tensor([200]), one)


@pytest.mark.triton
def test_ids_that_differ_in_their_upper_bits_only():
    values, lengths = (torch.arange(512) << 40).repeat(2), torch.ones(1024, dtype=torch.int64)
    one = torch.ones(1, dtype=torch.float64)
    unique = unique_bags_by_all(values, lengths, torch.tensor([1024]), one)
    assert torch.equal(unique.inverse, torch.arange(512).repeat(2))


@pytest.mark.triton
@pytest.mark.parametrize("backend", BACKENDS)
def test_order_and_weights_are_part_of_a_bag(backend):
    def inverse(lengths, weights=None):
        values, *tensors = (
            None if t is None else torch.tensor(t, device=device_of(backend))
            for t in ([1, 2, 2, 1, 1, 2], lengths, weights)
        )
        one, num_bags = torch.ones(1, dtype=torch.float64), torch.tensor([3])
        bags = on(backend, unique_bags, values, tensors[0], num_bags, one, weights=tensors[1])
        return bags.inverse.tolist()

    assert inverse([2, 2, 2]) == [0, 1, 0]
    assert inverse([2, 2, 2], [1.0, 1, 1, 1, 1, 2]) == [0, 1, 2]
    assert inverse([2, 2, 2], [1.0, 0.0, 1, 1, 1, -0.0]) == [0, 1, 2]
    assert inverse([1, 2, 3]) == [0, 1, 2]


def blocks_of(num_rows, dims, groups):
    """Return blocks packed in this order, whose columns lie in the opposite order with gaps
    between."""
    num_rows, dims = torch.tensor(num_rows), torch.tensor(dims)
    sizes = num_rows * dims
    columns = (dims + 1).flip(0).cumsum(0).flip(0) - (dims + 1)
    return BagBlocks(sizes.cumsum(0) - sizes, num_rows, dims, columns, torch.tensor(groups))


@pytest.mark.triton
@pytest.mark.parametrize("num_samples", [0, 1, 33])
@pytest.mark.parametrize("dims", [[4, 1, 7, 16], [4, 8, 64, 16]], ids=["values", "quads"])
def test_rows_are_expanded_and_gradients_summed(dims, num_samples):
    generator = torch.Generator().manual_seed(0)
    num_rows, groups = [5, 1, 7, 5], [0, 1, 2, 0]
    blocks = blocks_of(num_rows, dims, groups)
    if dims[1] % 4 == 0:
        blocks = replace(blocks, column=blocks.column // 4 * 4)
    inverse = torch.stack(
        [torch.randint(0, n, (num_samples,), generator=generator) for n in (5, 1, 7)]
    )
    rows = torch.randn(sum(n * d for n, d in zip(num_rows, dims, strict=True)), generator=generator)
    width = sum(dims) + len(dims)
    gradient = torch.randn(num_samples, width, generator=generator)
    out, sums = [], []
    for backend in BACKENDS:
        device = device_of(backend)
        out.append(torch.full((num_samples, width), 9.0, device=device))
        sums.append(torch.full_like(rows, 9.0, device=device))
        where = (blocks, inverse.to(device))
        on(backend, expand, rows.to(device), *where, out[-1])
        on(backend, sum_by_bag, gradient.to(device), *where, sums[-1])
    assert_equal(out)
    assert_equal(sums)
    packed = rows.split([n * d for n, d in zip(num_rows, dims, strict=True)])
    exact = sums[0].double().split([n * d for n, d in zip(num_rows, dims, strict=True)])
    for s, (n, dim, group) in enumerate(zip(num_rows, dims, groups, strict=True)):
        column = int(blocks.column[s])
        index = inverse[group]
        assert torch.equal(out[0][:, column : column + dim], packed[s].view(n, dim)[index])
        block = gradient[:, column : column + dim].double()
        expected = torch.zeros(n, dim, dtype=torch.float64).index_add(0, index, block)
        magnitude = torch.zeros(n, dim, dtype=torch.float64).index_add(0, index, block.abs())
        error = (exact[s].view(n, dim) - expected).abs()
        assert bool((error <= num_samples * 2.0**-24 * magnitude).all())
    outside = torch.ones(width, dtype=torch.bool)
    for s in range(4):
        outside[int(blocks.column[s]) : int(blocks.column[s]) + dims[s]] = False
    assert bool((out[0][:, outside] == 9).all())


@pytest.mark.triton
def test_sums_of_many_samples_are_in_their_order():
    """The values are large ones that cancel, small ones, NaN and negative zeros; one bag has no
    sample."""
    generator = torch.Generator().manual_seed(0)
    num_samples = 100
    inverse = torch.randint(0, 3, (2, num_samples), generator=generator)
    inverse[0][:20] = 0
    blocks = blocks_of([4, 3], [5, 2], [0, 1])
    matrix = torch.randn(num_samples, 9, generator=generator)
    matrix *= 10.0 ** torch.randint(-6, 6, matrix.shape, generator=generator)
    matrix[3], matrix[4] = torch.inf, -torch.inf
    matrix[:, 7] = -0.0
    sums = []
    for backend in BACKENDS:
        sums.append(torch.full((26,), 9.0, device=device_of(backend)))
        where = (blocks, inverse.to(sums[-1].device))
        on(backend, sum_by_bag, matrix.to(sums[-1].device), *where, sums[-1])
    assert_equal(out.view(torch.int32) for out in sums)
    assert sums[0][15:20].tolist() == [0] * 5
    assert bool((sums[0].isnan() == (sums[0].view(torch.int32) == 0x7FC00000)).all())
    assert bool(sums[0].isnan().any())


@pytest.mark.triton
def test_bags_that_are_not_there_are_left_out():
    """A number beyond a block's rows is no bag of it: nothing is read or written for it."""
    device = device_of("gpu")
    blocks = blocks_of([2], [4], [0])
    inverse = torch.tensor([[1, -1, 2, 2**40, 0]], device=device)
    rows, out = torch.arange(8.0, device=device), torch.full((5, 4), 9.0, device=device)
    on("gpu", expand, rows, blocks, inverse, out)
    nine = [9.0] * 4
    assert out.tolist() == [[4, 5, 6, 7], nine, nine, nine, [0, 1, 2, 3]]
    on("gpu", sum_by_bag, out, blocks, inverse, rows)
    assert rows.tolist() == list(range(8))


@pytest.mark.triton
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_does_not_fit_is_refused(backend):
    device = device_of(backend)
    one, ids = torch.ones(1, dtype=torch.float64), torch.tensor([1, 2, 3], device=device)
    ones, last = torch.ones_like(ids), torch.tensor([0, 0, 1], device=device)
    with pytest.raises(ValueError, match="lengths: sum up to 4"):
        on(backend, unique_bags, ids, ones + last, torch.tensor([3]), one)
    for wrong in ([2], [-1, 4]):
        with pytest.raises(ValueError, match="num_bags"):
            on(backend, unique_bags, ids, ones, torch.tensor(wrong), one)
    with pytest.raises(ValueError, match="max_share: some are NaN"):
        on(backend, unique_bags, ids, ones, torch.tensor([3]), one * torch.nan)
    with pytest.raises(ValueError, match="values: expected"):
        on(backend, unique_bags, ids.float(), ones, torch.tensor([3]), one)
    with pytest.raises(ValueError, match="weights"):
        on(backend, unique_bags, ids, ones, torch.tensor([3]), one, weights=ids.double())
    blocks, zeros = blocks_of([2], [4], [0]), torch.zeros(20, device=device)
    inverse = torch.zeros(1, 3, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match="blocks"):
        on(backend, expand, zeros[:7], blocks, inverse, zeros[:15].view(3, 5))
    with pytest.raises(ValueError, match="samples"):
        on(backend, expand, zeros[:8], blocks, inverse, zeros.view(4, 5))


@pytest.mark.triton
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("lengths", [[4, -1], [-(2**40), 2**40 + 3]])
def test_negative_lengths_are_refused(lengths, backend):
    lengths = torch.tensor(lengths, device=device_of(backend))
    ids, num_bags = torch.tensor([1, 2, 3], device=lengths.device), torch.tensor([2])
    with pytest.raises(ValueError, match="negative"):
        on(backend, unique_bags, ids, lengths, num_bags, torch.ones(1).double())


def test_bags_in_the_order_of_their_ids():
    """Bags of at most one id, the empty ones first; whole groups and merged ones; negative ids."""
    generator = torch.Generator().manual_seed(5)
    sizes = [40, 0, 17, 30, 9]
    kinds = [
        torch.ones(40),
        torch.ones(0),
        torch.arange(17) % 2,
        torch.arange(30) % 3,
        torch.zeros(9),
    ]
    lengths = torch.cat(kinds).to(torch.int64)
    values = torch.randint(-6, 6, (int(lengths.sum()),), generator=generator)
    values[:40] *= 2**59  # all eight bytes of a number
    num_bags, share = torch.tensor(sizes), torch.ones(5, dtype=torch.float64)
    for shares in (share, 0 * share):
        bags = unique_bags(values, lengths, num_bags, shares)
        results = []
        for backend in BACKENDS:
            device = device_of(backend)
            moved = UniqueBags(bags.first.to(device), bags.counts, bags.inverse.to(device))
            batch = values.to(device), lengths.to(device), num_bags
            results.append(on(backend, sort_by_id, moved, *batch))
        assert_equal([result.first for result in results])
        assert_equal([result.inverse for result in results])
        other = results[0]
        starts = lengths.cumsum(0) - lengths
        for g, (first, inverse) in enumerate(
            zip(other.first.split(bags.counts.tolist()), other.inverse.split(sizes), strict=True)
        ):
            ids = [values[starts[b] : starts[b] + lengths[b]].tolist() for b in first]
            assert g == 3 or ids == sorted(ids)
            begin = sum(sizes[:g])
            for b in range(begin, begin + sizes[g]):  # every bag has the id that it had
                mine = values[starts[b] : starts[b] + lengths[b]].tolist()
                assert ids[inverse[b - begin]] == mine
    whole = sort_by_id(bags, values, lengths, num_bags).first
    equal = [whole[i : i + 2] for i in range(39) if values[whole[i]] == values[whole[i + 1]]]
    assert equal
    assert all(a < b for a, b in equal)  # stable
