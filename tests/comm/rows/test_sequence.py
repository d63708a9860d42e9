"""Sequence all-to-all on 1 to 4 ranks: each id's row to its asker, each gradient back."""

import pytest
import torch
import torch.distributed as dist

from tests.comm.deflate_codec import Deflate
from trec_qcomm.codecs import Identity, Rowwise
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.layout import FeatureShard, Layout
from trec_qcomm.comm.rows.sequence import SequenceAllToAll
from trec_qcomm.testing import run_ranks

DIM = 5
CASES = {
    "identity": (Identity(), Identity()),
    "variable": (Deflate(), Deflate()),
    "int8": (Rowwise(8), Rowwise(8)),
}


def blocks_of(owner, world_size):
    """Two tables on rank 0, one on others, none on the last of several."""
    count = 2 if owner == 0 else int(owner < world_size - 1)
    return tuple(FeatureShard(f"t{owner}{b}", f"f{owner}{b}", 0, DIM) for b in range(count))


def num_ids(owner, block, asker):
    return (5 * owner + 3 * block + 2 * asker) % 4


def rows_for(owner, block, asker, salt):
    generator = torch.Generator().manual_seed(1000 * salt + 100 * owner + 10 * block + asker)
    return torch.randn(num_ids(owner, block, asker), DIM, generator=generator)


def owned(owner, world_size, salt):
    """Return rows in the order of the lookup: block by block, then by asker."""
    rows = [
        rows_for(owner, b, asker, salt)
        for b in range(len(blocks_of(owner, world_size)))
        for asker in range(world_size)
    ]
    return torch.cat([torch.empty(0, DIM), *rows])


def asked(asker, world_size, salt):
    """Return rows in the order of the result: by owner, then block by block."""
    rows = [
        rows_for(owner, b, asker, salt)
        for owner in range(world_size)
        for b in range(len(blocks_of(owner, world_size)))
    ]
    return torch.cat([torch.empty(0, DIM), *rows])


def all_cases():
    rank, size = dist.get_rank(), dist.get_world_size()
    layout = Layout(tuple(blocks_of(owner, size) for owner in range(size)))
    results = {}
    for name, codecs in CASES.items():
        pairs = (dict.fromkeys(layout.tables(), codec) for codec in codecs)
        exact = dict.fromkeys(layout.tables(), Identity())
        op = SequenceAllToAll(
            dist.group.WORLD,
            layout,
            codecs=DirectionCodecs(*pairs),
            exact=DirectionCodecs(exact, exact),
            name="test",
        )
        own_blocks = range(len(layout.shards_by_rank[rank]))
        sent = torch.tensor([[num_ids(rank, b, a) for a in range(size)] for b in own_blocks])
        received = [
            num_ids(o, b, rank) for o in range(size) for b in range(len(layout.shards_by_rank[o]))
        ]
        rows = owned(rank, size, 1).requires_grad_()
        sent = sent.view(len(own_blocks), size).to(torch.int64)
        out = op.start(rows, sent, torch.tensor(received, dtype=torch.int64)).wait()
        out.backward(asked(rank, size, 2))
        results[name] = out.detach(), rows.grad
        if name == "int8":
            results["replaced"] = replaced(op, rows.detach(), sent, torch.tensor(received))
    return results


def replaced(op, rows, sent, received):
    """Return a batch's rows with other codecs for a while, and as before."""
    received = received.to(torch.int64)
    with op.replacing(dict.fromkeys(op.layout.tables(), Identity())):
        exact = op.start(rows, sent, received).wait()
    return exact, op.start(rows, sent, received).wait()


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(request):
    return run_ranks(all_cases, request.param)


@pytest.mark.dist
@pytest.mark.parametrize("name", CASES)
def test_rows_and_gradients_arrive(ranks, name):
    for rank, results in enumerate(ranks):
        for got, expected in zip(
            results[name],
            (asked(rank, len(ranks), 1), owned(rank, len(ranks), 2)),
            strict=True,
        ):
            if name == "int8" and expected.numel():
                half_step = (expected.amax(1) - expected.amin(1)) / 255 / 2
                assert not torch.equal(got, expected)
                assert bool(((got - expected).abs().amax(1) <= 1.01 * half_step).all())
            else:
                assert torch.equal(got, expected)


@pytest.mark.dist
def test_batches_of_sizes_that_were_seen_take_other_codecs(ranks):
    for rank, results in enumerate(ranks):
        exact, as_before = results["replaced"]
        assert torch.equal(exact, asked(rank, len(ranks), 1))
        assert torch.equal(as_before, results["int8"][0])


def test_rows_must_have_one_width():
    layout = Layout(((FeatureShard("a", "f", 0, 4), FeatureShard("b", "g", 0, 8)),))
    with pytest.raises(ValueError, match=r"x: rows of \[4, 8\] values"):
        SequenceAllToAll(None, layout, name="x")
