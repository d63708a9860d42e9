"""A table that loses values beside a far larger one is named once for each direction."""

import logging

import pytest
import torch
import torch.distributed as dist

from tests.comm.rows.test_all_to_all import collective as make_collective
from trec_qcomm.codecs import ErrorBounded, Rowwise
from trec_qcomm.comm.rows.layout import FeatureShard, Layout

TABLES = ("calm", "wild")
DIM, BATCH = 16, 20


@pytest.fixture
def collective():
    """An exchange of one rank with itself; what it sends itself is coded like the rest."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    layout = Layout((tuple(FeatureShard(t, f"f_{t}", 0, DIM) for t in TABLES),))
    yield make_collective(layout, ErrorBounded(0.01), Rowwise(4))
    dist.destroy_process_group()


def step(collective, *, row=1.0, gradient=1.0):
    """Take a step; the first value of table "wild" and of its gradient are multiplied."""
    generator = torch.Generator().manual_seed(collective.step)
    rows, gradients = torch.randn(2, BATCH, DIM * len(TABLES), generator=generator)
    rows[0, DIM] *= row
    gradients[0, DIM] *= gradient
    collective.start(rows.requires_grad_(), [BATCH]).wait().backward(gradients)


def test_a_table_is_named_once_for_each_direction(collective, caplog):
    caplog.set_level(logging.WARNING, logger="trec_qcomm")
    step(collective)
    assert caplog.messages == []
    step(collective, row=1e20)
    step(collective, row=1e20, gradient=1e6)
    step(collective, row=1e20, gradient=1e6)
    rows_lost = BATCH * DIM - 1
    forward, backward = caplog.messages
    assert forward.startswith(f"table 'wild', forward, step 1: rank 0 loses {rows_lost} values")
    assert backward.startswith(f"table 'wild', backward, step 2: rank 0 loses {DIM - 1} values")
    assert collective.forward_traffic.num_flushed.tolist() == [0, 3 * rows_lost]
    assert collective.backward_traffic.num_flushed.tolist() == [0, 2 * (DIM - 1)]
