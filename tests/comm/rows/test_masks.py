"""topk forward and forward_mask backward: gradients arrive at the columns kept, and only these."""

from itertools import accumulate

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.codecs import Identity
from trec_qcomm.comm.rows import autograd
from trec_qcomm.comm.rows.all_to_all import PooledAllToAll
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.layout import FeatureShard, Layout
from trec_qcomm.ext.dct import ForwardMask, TopK
from trec_qcomm.ext.dct.values import keep_top_k
from trec_qcomm.testing import run_ranks
from trec_qcomm.wire.frame import overhead_nbytes

DIMS = {"a": 20, "b": 7, "plain": 5, "c": 20}
OWNED = (("a", "plain"), ("b", "c"))
TOP = TopK(density=0.2, values="fp32")  # 4 of 20, 2 of 7
ABOVE = TopK(threshold=0.9, values="fp32")
LAYOUT = Layout(
    tuple(tuple(FeatureShard(t, f"f_{t}", 0, DIMS[t]) for t in names) for names in OWNED)
)
SAMPLES = (6, 3)


def codecs_for(forward: TopK, values: str) -> DirectionCodecs:
    """`plain` is of another kind in both directions."""
    return DirectionCodecs(
        {t: Identity() if t == "plain" else forward for t in DIMS},
        {t: Identity() if t == "plain" else ForwardMask(values) for t in DIMS},
    )


def make(codecs):
    exact = DirectionCodecs(*[dict.fromkeys(DIMS, Identity())] * 2)
    return PooledAllToAll(dist.group.WORLD, LAYOUT, codecs=codecs, exact=exact, name="test")


def rows_of(table: str, rank: int, num_rows: int, salt: int) -> Tensor:
    """Return [n, dim], rows of that table for that rank's samples, the same on every rank."""
    seed = 1000 * salt + 10 * sorted(DIMS).index(table) + rank
    return torch.randn(num_rows, DIMS[table], generator=torch.Generator().manual_seed(seed))


def kept(table: str, rows: Tensor, forward: TopK) -> Tensor:
    """Return [n, dim] bool, whether a column is kept, in plain torch."""
    if table == "plain":
        return torch.ones_like(rows, dtype=torch.bool)
    if forward.threshold is not None:
        return rows.abs() >= forward.threshold
    return keep_top_k(rows, forward.top_k(DIMS[table]))


def measured(op, exact=False):
    """Return the rows, the gradients of two backward runs of a graph, and bytes sent backward."""
    rank, traffic, grads = dist.get_rank(), op.backward_traffic, []
    rows = torch.cat(
        [torch.cat([rows_of(t, r, n, 1) for t in OWNED[rank]], 1) for r, n in enumerate(SAMPLES)]
    ).requires_grad_()
    gradient = torch.cat([rows_of(t, rank, SAMPLES[rank], 2) for names in OWNED for t in names], 1)
    out = op.start(rows, SAMPLES, exact=exact).wait()
    for _ in range(2):
        grads += torch.autograd.grad(out, rows, gradient, retain_graph=True)
    names = op.layout.tables()
    sent = dict(zip(names, (traffic.wire_nbytes // 2).tolist(), strict=True))
    return {"out": out.detach(), "grads": grads, "sent": sent, "header": traffic.header_nbytes // 2}


def pooled(forward, values="fp32", exact=False):
    return measured(make(codecs_for(forward, values)), exact)


def another_codec_on_the_way():
    """A sender that codes its rows otherwise keeps all columns, and gets them all back."""
    codecs = codecs_for(TOP, "fp32")
    op = make(codecs)
    if dist.get_rank() == 1:  # forward only: it still expects the config's codecs
        forward = {t: Identity() if t in OWNED[1] else TOP for t in DIMS}
        op._coding = make(DirectionCodecs(forward, codecs.backward))._coding
    real = autograd.start_exchange
    autograd.start_exchange = lambda *a, **o: real(*a, **(o | {"fixed_size": False}))
    try:
        return measured(op)
    finally:
        autograd.start_exchange = real


def everything():
    return {
        "pooled": pooled(TOP),
        "pooled above": pooled(ABOVE),
        "fp16": pooled(TOP, "fp16"),
        "exact": pooled(TOP, exact=True),
        "another": another_codec_on_the_way(),
    }


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(everything, 2, timeout_s=240)  # of which numba may take a minute


@pytest.mark.dist
@pytest.mark.parametrize(("case", "forward"), [("pooled", TOP), ("pooled above", ABOVE)])
def test_pooled(ranks, case, forward):
    """Both backward passes bring the gradient of the kept columns, and zeros."""
    for rank, results in enumerate(ranks):
        result = results[case]
        edges = [0, *accumulate(DIMS[t] for t in OWNED[rank])]
        for table, first, end in zip(OWNED[rank], edges, edges[1:], strict=False):
            x = torch.cat([rows_of(table, r, n, 1) for r, n in enumerate(SAMPLES)])
            expected = torch.cat([rows_of(table, r, n, 2) for r, n in enumerate(SAMPLES)])
            for grad in result["grads"]:
                masked = torch.where(kept(table, x, forward), expected, 0)
                assert torch.equal(grad[:, first:end], masked)
        out = [rows_of(t, rank, SAMPLES[rank], 1) for names in OWNED for t in names]
        names = [t for names in OWNED for t in names]
        arrived = [torch.where(kept(t, x, forward), x, 0) for t, x in zip(names, out, strict=True)]
        assert torch.equal(result["out"], torch.cat(arrived, 1))


@pytest.mark.dist
@pytest.mark.parametrize(("case", "nbytes"), [("pooled", 4), ("pooled above", 4), ("fp16", 2)])
def test_bytes_sent_backward(ranks, case, nbytes):
    """8 bytes a segment and nbytes for each value kept, to the other rank; no sizes travel, though
    those of a threshold depend on the data."""
    forward = ABOVE if "above" in case else TOP
    for rank, results in enumerate(ranks):
        other = 1 - rank
        for table in DIMS:
            expected = 0
            if table in OWNED[other] and table != "plain":
                num_kept = int(kept(table, rows_of(table, rank, SAMPLES[rank], 1), forward).sum())
                expected = -(-(8 + nbytes * num_kept) // 8) * 8
            if table != "plain":
                assert results[case]["sent"][table] == expected, (rank, table)
        assert results[case]["header"] == overhead_nbytes(len(OWNED[other]))


@pytest.mark.dist
def test_exact_communication_ignores_masks(ranks):
    for rank, results in enumerate(ranks):
        order = [[rows_of(t, r, n, 2) for r, n in enumerate(SAMPLES)] for t in OWNED[rank]]
        expected = torch.cat([torch.cat(parts) for parts in order], 1)
        assert all(torch.equal(grad, expected) for grad in results["exact"]["grads"])


@pytest.mark.dist
def test_a_sender_of_another_codec_keeps_all_columns(ranks):
    expected = [torch.cat([rows_of(t, r, n, 2) for r, n in enumerate(SAMPLES)]) for t in OWNED[1]]
    for grad in ranks[1]["another"]["grads"]:
        assert torch.equal(grad, torch.cat(expected, 1))
