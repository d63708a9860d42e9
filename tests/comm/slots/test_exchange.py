"""Exchanges in slots: the rows and gradients of those whose sizes travel first, bit by bit."""

import pytest
import torch
import torch.distributed as dist

from tests.rank_programs import results_of, run_programs
from trec_qcomm.codecs import ErrorBounded, Identity, Rowwise, Threshold
from trec_qcomm.comm.rows.all_to_all import PooledAllToAll
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.layout import FeatureShard, Layout
from trec_qcomm.comm.rows.reduce_scatter import PooledReduceScatter
from trec_qcomm.comm.slots.history import SlotOptions
from trec_qcomm.core.counters import kind_stats

pytestmark = pytest.mark.dist

DIMS = {"a": 8, "b": 7, "c": 4}
OWNED = (("a", "c"), ("b",))
KINDS = {"all-to-all": PooledAllToAll, "reduce-scatter": PooledReduceScatter}
RANS = ErrorBounded(0.02, encoder="rans")
STEPS = 6
WILD = 3  # the step whose rows code badly


def make(kind, slots, pg=None, bounded=RANS):
    forward = {"a": bounded, "b": Rowwise(8), "c": bounded}  # frames of rank 1 have fixed sizes
    backward = {"a": bounded, "b": Threshold(0.5), "c": Rowwise(8)}
    owned = OWNED if kind == "all-to-all" else (tuple(DIMS),) * 2
    layout = Layout(
        tuple(tuple(FeatureShard(t, f"f_{t}", 0, DIMS[t]) for t in names) for names in owned)
    )
    tables, exact = layout.tables(), dict.fromkeys(layout.tables(), Identity())
    return KINDS[kind](
        pg or dist.group.WORLD,
        layout,
        codecs=DirectionCodecs({t: forward[t] for t in tables}, {t: backward[t] for t in tables}),
        exact=DirectionCodecs(exact, exact),
        name="rows",
        slots=SlotOptions() if slots else None,
    )


def rows_of(step, shape):
    """Rows that repeat a few values, but in one step: those are noise, whose code is larger."""
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    rows = torch.randn(shape, generator=generator)
    return rows if step == WILD else (rows > 1.0) * 2.0 + 1e-3 * rows


def training(kind, slots):
    """Return all rows and gradients of a training with an evaluation and a bypass in it."""
    op, results = make(kind, slots), []
    for step in range(STEPS):
        sizes = (40, 50) if step % 2 else (60, 40)
        rows = rows_of(step, (sum(sizes), op.layout.dim_sum(op.rank))).requires_grad_()
        exact = step == 4
        out = op.start(rows, sizes, exact=exact).wait()
        (grad,) = torch.autograd.grad(out, rows, rows_of(step, out.shape))
        with torch.no_grad():
            results += [out, grad, op.start(rows, sizes).wait()]
    counted = kind_stats([op.forward_traffic]), kind_stats([op.backward_traffic])
    return results, counted


def both(kind):
    return {slots: training(kind, slots) for slots in (False, True)}


@pytest.fixture(scope="module")
def trainings():
    return run_programs(both, 2, {kind: kind for kind in KINDS})


@pytest.mark.parametrize("kind", KINDS)
def test_slots_change_no_bit(trainings, kind):
    for rank in results_of(trainings[kind]):
        (ours, _), (theirs, _) = rank[True], rank[False]
        assert len(ours) == len(theirs) == 3 * STEPS
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("kind", KINDS)
def test_slots_are_counted(trainings, kind):
    for rank in results_of(trainings[kind]):
        for with_slots, announced in zip(rank[True][1], rank[False][1], strict=True):
            assert announced.num_overflows == announced.padding_nbytes == 0
            assert with_slots.tables == announced.tables
            assert with_slots.num_overflows < with_slots.num_calls
            # A slot has two words where sizes that travel first have one.
            more = 8 * with_slots.num_calls
            assert with_slots.header_nbytes == announced.header_nbytes + more


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_overflows(trainings, kind):
    """The first of each kind of exchange has no history; noise does not fit what was seen."""
    for direction in range(2):
        ranks = [rank[True][1][direction] for rank in results_of(trainings[kind])]
        assert sum(counted.num_overflows for counted in ranks) >= 2
        assert sum(counted.padding_nbytes for counted in ranks) > 0
