"""Under torch.compile our collectives run outside of the graphs and embeddings go on training."""

import pytest
import torch
import torch.distributed as dist

from tests.integration.sharded_models.batches import batch
from tests.integration.sharded_models.cases import RW, TW, Case, Table
from tests.integration.sharded_models.training import (
    dense_optimizer,
    loss_of,
    qcomm_of,
    shard,
    weights,
)
from trec_qcomm import Rowwise
from trec_qcomm.testing import run_ranks

TABLES = (Table("a", 16, ("f1",)), Table("b", 16, ("f2", "f3")))
CASES = {
    f"{module} {sharding}": Case(tables=TABLES, sharding=sharding, module=module)
    for module, sharding in (("ebc", RW), ("ec", TW))
}


def trained(case: Case, wrap):
    """Return weights before and after three steps of a model called through `wrap`."""
    dmp = shard(case, qcomm_of(Rowwise(4), Rowwise(4, "stochastic")))
    before, model, optimizer = weights(dmp, case), wrap(dmp), dense_optimizer(dmp)
    for step in range(3):
        outputs = model(batch(case, step, dist.get_rank()))
        optimizer.zero_grad()
        loss_of(case, step, outputs, linear=False).backward()
        optimizer.step()
    return before, weights(dmp, case)


def all_runs():
    return {
        name: {
            "eager": trained(case, lambda dmp: dmp),
            "compiled": trained(case, lambda dmp: torch.compile(dmp, backend="eager")),
        }
        for name, case in CASES.items()
    }


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(all_runs, 2, timeout_s=280)


@pytest.mark.dist
@pytest.mark.parametrize("name", CASES)
def test_compiled_trains_as_eager(ranks, name):
    for runs in (results[name] for results in ranks):
        (before, eager), (_, compiled) = runs["eager"], runs["compiled"]
        for table, parts in eager.items():
            for (*_, first), (*_, a), (*_, b) in zip(
                before[table], parts, compiled[table], strict=True
            ):
                assert torch.equal(a, b), table
                assert not a.numel() or not torch.equal(first, b), f"{table} is frozen"
