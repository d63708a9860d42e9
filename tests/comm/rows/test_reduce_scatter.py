"""Pooled reduce-scatter on 1 to 4 ranks: sums in rank order, one gradient to all, bytes."""

import pytest
import torch
import torch.distributed as dist

from tests.comm.deflate_codec import Deflate
from tests.comm.grid_codec import Grid
from trec_qcomm.codecs import Identity, Rowwise
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.layout import FeatureShard, Layout
from trec_qcomm.comm.rows.reduce_scatter import PooledReduceScatter
from trec_qcomm.ops.batch.rank_sum import rank_sum
from trec_qcomm.testing import run_ranks

DIMS = (4, 7, 16)
WIDTH = sum(DIMS)
BOUND = 0.01
CASES = {
    "identity": (Identity(), Identity()),
    "variable": (Deflate(), Deflate()),
    "int8": (Rowwise(8), Rowwise(8)),
    "bounded": (Grid(BOUND), Identity()),
}


def collective(codecs):
    world_size = dist.get_world_size()
    blocks = tuple(FeatureShard(f"t{t}", f"f{t}", 0, dim) for t, dim in enumerate(DIMS))
    names = [block.table for block in blocks]
    return PooledReduceScatter(
        dist.group.WORLD,
        Layout((blocks,) * world_size),
        codecs=DirectionCodecs(*(dict.fromkeys(names, codec) for codec in codecs)),
        exact=DirectionCodecs(*[dict.fromkeys(names, Identity())] * 2),
        name="test",
    )


def values(salt, rank, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 * salt + rank))


def fixed(codecs, batch_sizes):
    rank, op = dist.get_rank(), collective(codecs)
    rows = values(1, rank, sum(batch_sizes), WIDTH).requires_grad_()
    out = op.start(rows, batch_sizes, gradient_divisor=2).wait()
    out.backward(values(2, rank, batch_sizes[rank], WIDTH))
    sent = [int(t.wire_nbytes.sum()) for t in (op.forward_traffic, op.backward_traffic)]
    return {"out": out.detach(), "grad": rows.grad, "sent": sent}


def variable(codecs, sizes, repeats):
    """sizes: [P][blocks * repeats]."""
    rank, op = dist.get_rank(), collective(codecs)
    dims = torch.tensor(DIMS * repeats)
    counts = [int((torch.tensor(row) * dims).sum()) for row in sizes]
    rows = values(3, rank, sum(counts)).requires_grad_()
    out = op.start_variable(rows, sizes).wait()
    out.backward(values(4, rank, counts[rank]))
    return {"out": out.detach(), "grad": rows.grad, "counts": counts}


def sizes_for(world_size, repeats):
    return [[(3 * r + 2 * b) % 4 for b in range(3 * repeats)] for r in range(world_size)]


def all_cases():
    world_size = dist.get_world_size()
    results = {}
    for name, codecs in CASES.items():
        for batch_sizes in ([5] * world_size, [3, 0, 9, 1][:world_size]):
            results[name, tuple(batch_sizes)] = fixed(codecs, batch_sizes)
        for repeats in (1, 2):
            results[name, repeats] = variable(codecs, sizes_for(world_size, repeats), repeats)
    return results


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(request):
    return run_ranks(all_cases, request.param)


def summed(parts):
    parts = torch.stack([part.reshape(-1) for part in parts])
    out = torch.empty(parts.shape[1])
    rank_sum(parts, out, backend="reference")
    return out


@pytest.mark.dist
def test_exact_codecs_give_the_sum_in_rank_order(ranks):
    size = len(ranks)
    for rank, results in enumerate(ranks):
        for name in ("identity", "variable"):
            for batch_sizes in ([5] * size, [3, 0, 9, 1][:size]):
                result, first = results[name, tuple(batch_sizes)], sum(batch_sizes[:rank])
                mine = slice(first, first + batch_sizes[rank])
                parts = [values(1, r, sum(batch_sizes), WIDTH)[mine] for r in range(size)]
                assert torch.equal(result["out"].view(-1), summed(parts))
                grads = [values(2, r, n, WIDTH) for r, n in enumerate(batch_sizes)]
                assert torch.equal(result["grad"], torch.cat(grads) / 2)
            for repeats in (1, 2):
                result = results[name, repeats]
                counts = result["counts"]
                first = sum(counts[:rank])
                mine = slice(first, first + counts[rank])
                parts = [values(3, r, sum(counts))[mine] for r in range(size)]
                assert torch.equal(result["out"], summed(parts))
                grads = [values(4, r, n) for r, n in enumerate(counts)]
                assert torch.equal(result["grad"], torch.cat(grads))


@pytest.mark.dist
def test_a_bound_holds_for_the_sum(ranks):
    size = len(ranks)
    for rank, results in enumerate(ranks):
        parts = [values(1, r, 5 * size, WIDTH)[5 * rank : 5 * rank + 5] for r in range(size)]
        total = torch.stack(parts).double().sum(0)
        # Each decoded summand and each addition is rounded once, to within 2^-24 of its size.
        slack = (2 * size - 1) * 2**-24 * (torch.stack(parts).abs().double().sum(0) + BOUND)
        error = (results["bounded", (5,) * size]["out"] - total).abs()
        assert bool((error <= BOUND + slack).all())
        assert float(error.max()) > BOUND / size**0.5 / 2  # it was used up, not ignored


@pytest.mark.dist
def test_every_peer_gets_rows_once_and_the_gradient_once(ranks):
    size = len(ranks)
    for rank, results in enumerate(ranks):
        batch_sizes = [3, 0, 9, 1][:size]
        forward, backward = results["identity", tuple(batch_sizes)]["sent"]
        padded = [(n * dim * 4 + 7) // 8 * 8 for n in batch_sizes for dim in DIMS]
        by_rank = [sum(padded[3 * r : 3 * r + 3]) for r in range(size)]
        assert forward == sum(by_rank) - by_rank[rank]
        assert backward == (size - 1) * by_rank[rank]


@pytest.mark.dist
def test_ranks_must_have_equal_columns():
    layout = Layout(((FeatureShard("a", "f", 0, 4),), (FeatureShard("a", "f", 0, 8),)))
    with pytest.raises(ValueError, match="x: ranks whose columns differ"):
        PooledReduceScatter(None, layout, name="x")
