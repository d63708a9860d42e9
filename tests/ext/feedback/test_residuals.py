"""Error feedback by id: what is sent and what is kept add up to what was to be sent."""

import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from trec_qcomm.codecs import Identity, Rowwise
from trec_qcomm.comm.rows.all_to_all import PooledAllToAll
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.layout import FeatureShard, Layout
from trec_qcomm.core.counters import kind_stats
from trec_qcomm.ext.feedback.residuals import NO_ID, RowFeedbackTransform

DIMS = {"fed": 16, "plain": 16, "narrow": 8}
EQUAL_DIMS = dict.fromkeys(DIMS, 16)
SLOTS = {"fed": 10, "narrow": 10}
IDS = torch.tensor([[3, 5, 9], [3, 5, 9], [0, 1, 2]])  # of each table in each step
WIDTH = 3 * sum(DIMS.values())


@pytest.fixture
def make():
    """A maker of exchanges of one rank with itself; what it sends itself is coded like the rest."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    exact = dict.fromkeys(DIMS, Identity())

    def collective(slots=SLOTS, dims=DIMS):
        codec, shards = Rowwise(2), (FeatureShard(t, f"f_{t}", 0, dim) for t, dim in dims.items())
        layout = Layout((tuple(shards),))
        made = PooledAllToAll(
            dist.group.WORLD,
            layout,
            codecs=DirectionCodecs(dict.fromkeys(DIMS, codec), dict.fromkeys(DIMS, codec)),
            exact=DirectionCodecs(exact, exact),
            name="test",
        )
        if slots:
            both = {"forward": slots, "backward": slots}
            made.transform = RowFeedbackTransform(made.plan, both)
        return made

    yield collective
    dist.destroy_process_group()


def exchange(collective, rows, gradients, ids=IDS):
    """Return the rows and the gradients that arrive."""
    if collective.transform is not None:
        collective.transform.ids = dict.fromkeys(("forward", "backward"), ids.view(-1))
    rows = rows.clone().requires_grad_()
    out = collective.start_variable(rows, [[3] * 3], [3] * 3).wait()
    out.backward(gradients)
    return out.detach(), rows.grad


def evicted(collective):
    """Return {table: residuals of gradients that were dropped}."""
    tables = kind_stats([collective.backward_traffic]).tables
    return {table: stats.num_evicted for table, stats in tables.items()}


def by_table(values, dims=DIMS):
    sizes = [3 * dim for dim in dims.values()]
    parts = zip(dims.items(), values.split(sizes), strict=True)
    return {table: part.view(3, dim) for (table, dim), part in parts}


@pytest.mark.parametrize("dims", [DIMS, EQUAL_DIMS], ids=["two dims", "one dim"])
def test_sent_and_residual_add_up(make, dims):
    fed, plain = make(dims=dims), make(None, dims)
    generator = torch.Generator().manual_seed(0)
    width = 3 * sum(dims.values())
    given, sent, without = torch.zeros(3, 2, width, dtype=torch.float64)
    num_steps = 30
    for _ in range(num_steps):
        rows = torch.randn(2, width, generator=generator)
        given += rows
        sent += torch.stack(exchange(fed, *rows))
        without += torch.stack(exchange(plain, *rows))
    for d, direction in enumerate(("forward", "backward")):
        state = fed.transform.residuals[direction].state_dict()
        assert set(state) == set(SLOTS)
        ours, other, target = (by_table(sums[d], dims) for sums in (sent, without, given))
        assert torch.equal(ours["plain"], other["plain"])
        for table in SLOTS:
            ids = IDS[list(DIMS).index(table)]
            assert torch.equal(state[table]["ids 0"][ids], ids)
            residual = state[table]["residuals 0"][ids].double()
            # A step rounds twice: row + residual, and what is lost of it. All are below 16.
            difference = (ours[table] + residual - target[table]).abs().max()
            assert float(difference) <= 2 * num_steps * 16 * 2**-24
            assert residual.abs().max() < (other[table] - target[table]).abs().max() / 2
    assert evicted(fed)["fed"] == 0


def test_another_id_takes_the_slot_and_is_counted(make):
    collective, plain = make({"fed": 4}), make(None)
    rows = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(0))
    exchange(collective, *rows, IDS - 1)  # 2, 4, 8: the last two want one slot
    residuals = collective.transform.residuals["backward"]
    assert evicted(collective) == {"fed": 1, "plain": 0, "narrow": 0}
    assert residuals.state_dict()["fed"]["ids 0"].tolist() == [8, NO_ID, 2, NO_ID]
    out = exchange(collective, *rows, IDS + 3)  # 6, 8, 12: 6 takes the slot of 2, 12 that of 8
    assert evicted(collective) == {"fed": 4, "plain": 0, "narrow": 0}
    assert residuals.state_dict()["fed"]["ids 0"].tolist() == [12, NO_ID, 6, NO_ID]
    assert all(map(torch.equal, out, exchange(plain, *rows)))  # no residual was added
    collective.backward_traffic.reset()
    assert evicted(collective)["fed"] == 0


def test_rows_of_16_bits_are_refused_at_construction(make):
    plan = make(None).plan
    halves = replace(plan, forward_sent=replace(plan.forward_sent, value_nbytes=2))
    with pytest.raises(ValueError, match="error_feedback: rows of 16 bits; allowed"):
        RowFeedbackTransform(halves, {"forward": SLOTS})


def test_rows_without_an_id_and_rows_with_nan(make):
    collective, plain = make(), make(None)
    rows = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[NO_ID, 5, 9]] * 3)
    exchange(collective, *rows, ids)
    before = collective.transform.residuals["backward"].state_dict()["fed"]["residuals 0"]
    assert before[5].any()
    bad = rows.clone()
    bad[1, 16] = math.nan  # id 5 of the first table
    received = by_table(exchange(collective, *bad, ids)[1])["fed"]
    assert received[1, 0].isnan()
    assert torch.equal(received[0], by_table(exchange(plain, *rows)[1])["fed"][0])
    after = collective.transform.residuals["backward"].state_dict()["fed"]["residuals 0"]
    assert torch.equal(after[5], before[5])
    assert not torch.equal(after[9], before[9])


def test_what_is_exact_or_without_gradients_is_left_alone(make):
    collective = make()
    rows = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(0))
    exchange(collective, *rows)
    state = collective.transform.residuals["forward"].state_dict()["fed"]["residuals 0"]
    with torch.no_grad():
        collective.start_variable(rows[0], [[3] * 3], [3] * 3).wait()
    exact = collective.start_variable(rows[0], [[3] * 3], [3] * 3, exact=True).wait()
    assert torch.equal(exact, rows[0])
    after = collective.transform.residuals["forward"].state_dict()["fed"]["residuals 0"]
    assert torch.equal(state, after)
    with pytest.raises(ValueError, match="test: error_feedback needs the ids of the batch"):
        collective.start_variable(rows[0], [[3] * 3], [3] * 3)
