"""What a QComm keeps: names, counters and steps, whatever the plan and the modules are."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv, ShardingPlan

from tests.integration.zoo.cases import CPU, MODULES, RW, TW, Case, Table, batch, plan
from tests.integration.zoo.run import fused_params, qcomm_of, shard, train
from trec_qcomm import Identity, Rowwise
from trec_qcomm.testing import run_ranks

TABLES = (Table("a", 16, ("f1",)), Table("b", 16, ("f2",)))


class Twins(nn.Module):
    """Two managed collision modules whose tables have the same names."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.one, self.two = MODULES["mc_ebc"](case), MODULES["mc_ebc"](case)

    def forward(self, features):
        return sum(module(features)[0].values().sum() for module in (self.one, self.two))


def steps_of_twins():
    case = Case(tables=TABLES, sharding=RW, module="mc_ebc")
    qcomm = qcomm_of(Identity())
    where = plan(case, dist.get_world_size())
    dmp = DistributedModelParallel(
        Twins(case),
        device=CPU,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        plan=ShardingPlan({"one": where, "two": where}),
        sharders=qcomm.sharders(fused_params=fused_params(case)),
        data_parallel_wrapper=qcomm.data_parallel_wrapper(),
    )
    dmp(batch(case, 0, dist.get_rank())).backward()
    return {name: int(step) for name, step in qcomm.state_dict()["steps"].items()}


def steps_under_another_plan():
    """State of a table-wise run, loaded into a row-wise one."""
    first = qcomm_of(Rowwise(4))
    case = Case(tables=TABLES, sharding=TW)
    train(shard(case, first), case, 3, linear=True)
    second = qcomm_of(Rowwise(4))
    shard(Case(tables=TABLES, sharding=RW), second)
    second.load_state_dict(first.state_dict())
    return {name: int(step) for name, step in second.state_dict()["steps"].items()}


def calls_after_reset_in_inference_mode():
    qcomm = qcomm_of(Identity())
    case = Case(tables=TABLES, sharding=TW)
    dmp = shard(case, qcomm)
    train(dmp, case, 1, linear=True)
    with torch.inference_mode():
        qcomm.reset_stats()
    assert qcomm.stats()["embedding_forward"]["num_calls"] == 0
    train(dmp, case, 2, linear=True)
    return qcomm.stats()["embedding_forward"]["num_calls"]


def everything():
    return {
        "twins": steps_of_twins(),
        "replanned": steps_under_another_plan(),
        "reset": calls_after_reset_in_inference_mode(),
    }


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(everything, 2)


@pytest.mark.dist
def test_modules_with_equal_tables_are_told_apart(ranks):
    assert all(results["twins"] == {"one": 1, "two": 1} for results in ranks)


@pytest.mark.dist
def test_a_run_is_resumed_under_another_plan(ranks):
    assert all(results["replanned"] == {"sparse": 3} for results in ranks)


@pytest.mark.dist
def test_counters_survive_a_reset_in_inference_mode(ranks):
    assert all(results["reset"] == 2 for results in ranks)
