"""EmbeddingCollection and its managed collision kin with use_index_dedup: equal to stock."""

import pytest
import torch

from tests.integration.sharded_models import unique_indices
from tests.integration.sharded_models.cases import CW, RW, TW, Case, Table
from tests.integration.sharded_models.run import assert_same, qcomm_of, run
from trec_qcomm import Identity, Rowwise
from trec_qcomm.testing import run_ranks

TABLES = (
    Table("a", 16, ("f1",), 8),
    Table("b", 16, ("f2", "f3"), 11),  # one table, two features: their ids are made distinct as one
    Table("c", 16, ("f4",), 13),
)
CASES = {
    f"{module} {sharding}": Case(
        tables=TABLES, sharding=sharding, module=module, dedup=True, batch=(8, 3)
    )
    for module, shardings in (("ec", (TW, CW, RW)), ("mc_ec", (RW,)))
    for sharding in shardings
}


def all_runs():
    unique_indices.register()
    return {
        name: {
            "stock": run(case, None),
            "identity": run(case, qcomm_of(Identity())),
            "int4": run(case, qcomm_of(Rowwise(4))),
        }
        for name, case in CASES.items()
    }


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(all_runs, 2, timeout_s=240)


@pytest.mark.dist
@pytest.mark.parametrize("name", CASES)
def test_identity_equals_stock(ranks, name):
    stock, ours = ([r[name][kind] for r in ranks] for kind in ("stock", "identity"))
    assert_same(CASES[name], stock, ours)


@pytest.mark.dist
@pytest.mark.parametrize("name", CASES)
def test_int4_is_coded(ranks, name):
    for results in ranks:
        first, other = (results[name][kind].outputs[0] for kind in ("identity", "int4"))
        assert any(not torch.equal(first[key], other[key]) for key in first)
