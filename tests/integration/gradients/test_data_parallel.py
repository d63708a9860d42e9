"""The replicated part of a DLRM and its DATA_PARALLEL tables, all-reduced as the config says."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from tests.integration.embedding.test_every_sharding import SUM_TABLES
from tests.integration.sharded_models.batches import batch
from tests.integration.sharded_models.cases import MIX, Case
from tests.integration.sharded_models.training import assert_same, run, shard, train
from trec_qcomm import Config, GradientRule, Identity, QComm, Rowwise, TableGradientRule, TableRule
from trec_qcomm.testing import run_ranks

RULES = (TableRule(tables=("*",), forward=Identity(), backward=Identity()),)
ALGORITHMS = ("ring", "recursive_doubling", "two_shot")
CASES = {  # without sequences: TorchRec's replicated lookups pool them on CPU
    "pooled": Case(tables=SUM_TABLES, sharding="data_parallel", batch=(9, 4)),
    "mixed": Case(tables=SUM_TABLES, sharding=MIX, batch=(9,), whole_gradients=True),
}


def qcomm_of(codec, algorithm="two_shot", **options):
    dense = GradientRule(codec=codec, algorithm=algorithm, block=8, min_numel=0)
    tables = TableGradientRule(codec=codec, algorithm=algorithm)
    return QComm(Config(embedding=RULES, dense=dense, data_parallel=tables, **options))


def everything():
    runs = {"rows": bytes_of_touched_rows(), "bypass": lossy_with_bypass()}
    for name, case in CASES.items():
        stock = run(case, None)
        for algorithm in ALGORITHMS:
            runs[name, algorithm] = (stock, run(case, qcomm_of(Identity(), algorithm)))
    return runs


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(everything, 2, timeout_s=200)


@pytest.mark.dist
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", CASES)
def test_identity_equals_stock_bit_for_bit(ranks, name, algorithm):
    pairs = [runs[name, algorithm] for runs in ranks]
    assert_same(CASES[name], *zip(*pairs, strict=True))
    for _, ours in pairs:
        dense = ours.stats["dense"]
        assert dense["wire_nbytes"] > dense["raw_nbytes"] > 0  # frames; the same values


def bytes_of_touched_rows():
    """Return the statistics of one step, and the numbers of touched and of all values."""
    case = replace(CASES["pooled"], batch=(3, 2), max_length=1)
    qcomm = qcomm_of(Identity())
    dmp = shard(case, qcomm)
    qcomm.reset_stats()
    train(dmp, case, 1, linear=True)
    batches = [batch(case, 0, rank) for rank in range(dist.get_world_size())]
    values = 0
    for table in case.tables:
        ids = [b[feature].values() for b in batches for feature in table.features]
        values += len(torch.cat(ids).unique()) * table.dim
    rows = sum(table.num_rows * table.dim for table in case.tables)
    return qcomm.stats().to_dict()["data_parallel"], values, rows


@pytest.mark.dist
def test_rows_that_nobody_touched_are_not_sent(ranks):
    for stats, values, all_values in (rank["rows"] for rank in ranks):
        assert stats["raw_nbytes"] == 4 * all_values
        # Two-shot over 2 ranks sends each touched row once; chunks differ by a row of each table.
        assert abs(stats["wire_nbytes"] - stats["header_nbytes"] - 4 * values) <= 4 * 7 * 52
        assert stats["wire_nbytes"] < stats["raw_nbytes"] / 2


def lossy_with_bypass():
    """Return the statistics of a step without and of one with `bypass`."""
    qcomm = qcomm_of(Rowwise(4))
    dmp = shard(CASES["mixed"], qcomm)
    stats = []
    for step in range(2):
        qcomm.reset_stats()
        if step:
            with qcomm.bypass():
                train(dmp, CASES["mixed"], 1, linear=True)
        else:
            train(dmp, CASES["mixed"], 1, linear=True)
        stats.append(qcomm.stats().to_dict())
    return stats


@pytest.mark.dist
def test_codecs_of_gradients_are_used_and_bypassed(ranks):
    for coded, exact in (rank["bypass"] for rank in ranks):
        for kind in ("dense", "data_parallel"):
            assert coded[kind]["wire_nbytes"] < exact[kind]["wire_nbytes"]
            assert "Rowwise" in repr(coded[kind]["encode_s"])
            assert "Rowwise" not in repr(exact[kind]["encode_s"])


def test_two_ways_to_shrink_the_all_reduce_exclude_one_another():
    with pytest.raises(ValueError, match="dense and allreduce_comm_precision 'fp16' exclude"):
        qcomm_of(Rowwise(8)).data_parallel_wrapper(allreduce_comm_precision="fp16")
