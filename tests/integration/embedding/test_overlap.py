"""Backward compute and injected work run while the reverse all-to-all is in flight.

The order is read from a profiler's trace.
"""

from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import ShardingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from tests.integration.sharded_models.batches import batch
from tests.integration.sharded_models.cases import CW, GRID, RW, TW, Case, Table, bag_configs
from tests.integration.sharded_models.training import shard
from trec_qcomm import Config, QComm, Rowwise, TableRule
from trec_qcomm.testing import run_ranks

WIDTH = 512  # of the dense part: nothing else in the model multiplies matrices of this size
TABLES = (Table("a", 16, ("f1",)), Table("b", 16, ("f2",)))
EXCHANGES = [  # sharding, unique_bags
    *product((TW, RW, GRID), (False, True)),
    (CW, False),
]

# Older versions of TorchRec have no injection into backward.
injection = pytest.importorskip("torchrec.distributed.train_pipeline.backward_injection")
if not hasattr(injection, "OutputDistTensorFinder"):
    pytest.skip("TorchRec 1.6 finds no rows of a sharding", allow_module_level=True)


class SparseFirst(nn.Module):
    """Model that asks for rows before its dense part and uses them after it."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.sparse = EmbeddingBagCollection(bag_configs(case))
        self.dense = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 32))
        self.over = nn.Linear(32, 1)

    def forward(self, features):
        rows = self.sparse(features)
        dense = self.dense(torch.ones(4, WIDTH))
        loss = self.over(rows.values() + dense).square().mean()
        return loss, loss.detach()


def traced(sharding: str, unique_bags: bool):
    """Return (name, begin, end) of what ran on this rank in one training step, in microseconds."""
    case = Case(tables=TABLES, sharding=sharding)
    codecs = {"forward": Rowwise(4), "backward": Rowwise(4)}
    rule = TableRule(tables=("*",), **codecs, unique_bags=unique_bags)
    qcomm = QComm(Config(embedding=(rule,)))
    dmp = shard(case, qcomm, SparseFirst(case))
    optimizer = torch.optim.SGD(dmp.module.dense.parameters(), lr=0.1)
    pipeline = TrainPipelineSparseDist(dmp, optimizer, torch.device("cpu"))
    pipeline.register_backward_hook(site(sharding), injected)
    batches = iter([batch(case, step, dist.get_rank()) for step in range(4)])
    pipeline.progress(batches)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace:
        pipeline.progress(batches)
    return [
        (event.name, event.time_range.start, event.time_range.end, event.input_shapes)
        for event in trace.events()
    ]


def site(sharding: str):
    """Return the place in backward at which the rows' gradients of a sharding were sent."""
    finder = injection.OutputDistTensorFinder(ShardingType(sharding))
    return injection.InjectionSite("sparse", finder)


def injected(_pipeline) -> None:
    with record_function("injected"):
        pass


def everything():
    return {exchange: traced(*exchange) for exchange in EXCHANGES}


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(everything, 2)


@pytest.mark.dist
@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
def test_dense_backward_runs_while_gradients_travel(ranks, exchange):
    hop = exchange[0] + "/cross" * (exchange[0] == GRID)  # the first of two in backward
    for events in (rank[exchange] for rank in ranks):
        (launched,) = (e for e in events if e[0] == f"## sparse/{hop} backward start ##")
        (waited,) = (e for e in events if e[0] == f"## sparse/{hop} backward wait ##")
        assert launched[2] <= waited[1]
        weight_gradients = [
            e for e in events if e[0] == "aten::mm" and e[3][0][0] == WIDTH and e[1] > launched[2]
        ]
        between = [e for e in weight_gradients if e[2] <= waited[1]]
        assert between, "the dense part's backward waited for the network"
        (work,) = (e for e in events if e[0] == "injected")
        assert launched[2] <= work[1] <= work[2] <= waited[1]
