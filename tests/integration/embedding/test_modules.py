"""Every module and kind of batch that TorchRec has, with the identity codec: equal to stock bit for
bit. What stock cannot run on gloo is held against float64. With 4 ranks all ids are packed.
"""

from dataclasses import replace

import pytest

from tests.integration.embedding.test_every_sharding import BY_NODE, assert_near
from tests.integration.sharded_models import index_dedup
from tests.integration.sharded_models.cases import (
    CW,
    DP,
    GRID,
    RW,
    SEQUENCE,
    TW,
    TWCW,
    TWRW,
    Case,
    Table,
)
from tests.integration.sharded_models.training import assert_same, exact_qcomm, run
from tests.rank_programs import results_of, run_programs

pytestmark = pytest.mark.timeout(900)  # the ranks' own limit comes first

WHOLE = (TW, CW, TWCW)
SPLIT = (RW, TWRW, GRID)
TABLES = (
    Table("first", 16, ("a",)),
    Table("pair", 32, ("b", "c")),
    Table("shared", 12, ("a",), 17),
    Table("last", 20, ("d",), 10),
)
UNSHARED = tuple(replace(t, features=("e",)) if t.name == "shared" else t for t in TABLES)
NARROW = tuple(Table(t.name, 16, t.features, t.num_rows) for t in TABLES)
NARROW_UNSHARED = tuple(replace(table, dim=16) for table in UNSHARED)


def parity_cases(world_size=4):
    """Return by name what stock can run."""
    cases = {}
    for sharding in (*WHOLE, *SPLIT):
        two = {"tables": TABLES, "sharding": sharding, "node_size": 2}
        cases[f"fused_ebc/{sharding}"] = Case(**two, module="fused_ebc")
        cases[f"empty/{sharding}"] = Case(**two, empty=("a", "d"))
        cases[f"no_ids_at_all/{sharding}"] = Case(**two, empty=("a", "b", "c"))
    for sharding in (*WHOLE, *SPLIT, DP):
        two = {"tables": TABLES, "sharding": sharding, "node_size": 2}
        cases[f"weighted/{sharding}"] = Case(**two, weighted=True)
        cases[f"fp_ebc/{sharding}"] = Case(**two, module="fp_ebc")
    for sharding in (*WHOLE, RW, TWRW):
        for weighted in (False, True):
            cases[f"vbe/{sharding}" + "/weighted" * weighted] = Case(
                tables=TABLES, sharding=sharding, node_size=2, vbe=True, weighted=weighted
            )
    for sharding in WHOLE:
        cases[f"uneven_vbe/{sharding}"] = Case(
            tables=TABLES, sharding=sharding, node_size=2, vbe=True, uneven_vbe=True, batch=(4, 3)
        )
    for sharding in SEQUENCE:
        cases[f"sequence_empty/{sharding}"] = Case(
            tables=NARROW, sharding=sharding, module="ec", empty=("a", "b", "c")
        )
        cases[f"sequence_vbe/{sharding}"] = Case(
            tables=NARROW, sharding=sharding, module="ec", vbe=True
        )
    for module in ("mc_ebc", "mc_ec"):
        cases[f"{module}/{RW}"] = Case(tables=NARROW_UNSHARED, sharding=RW, module=module)
    for module, sharding in (("ec", TW), ("ec", CW), ("ec", RW), ("mc_ec", RW)):
        cases[f"dedup_{module}/{sharding}"] = Case(
            tables=NARROW_UNSHARED, sharding=sharding, module=module, dedup=True, batch=(8, 3)
        )
    if world_size == 2:  # one node: test_every_sharding.py has two-level shardings there
        cases = {n: c for n, c in cases.items() if c.sharding not in BY_NODE}
    return cases


def exact_cases():
    """Return cases by name that stock TorchRec cannot run on gloo.

    Each rank has another number of distinct bags, which gloo cannot reduce-scatter. grid_shard
    takes a variable batch in stock TorchRec from 1.9 on only.
    """
    uneven = {"node_size": 2, "vbe": True, "uneven_vbe": True, "batch": (4, 3), "max_length": 5}
    return {f"uneven_vbe/{s}": Case(tables=TABLES, sharding=s, **uneven) for s in (RW, TWRW, GRID)}


def run_program(program):
    kind, case = program
    if kind == "exact":
        return run(case, exact_qcomm(), 1, linear=True)
    qcomms = None, exact_qcomm()
    if case.dedup:
        index_dedup.run_on_cpu()
    return tuple(run(case, qcomm, 3) for qcomm in qcomms)


@pytest.fixture(scope="module", params=[2, 4])
def outcomes(request):
    jobs = {
        ("parity", name): ("parity", case) for name, case in parity_cases(request.param).items()
    }
    jobs |= {("exact", name): ("exact", case) for name, case in exact_cases().items()}
    return run_programs(run_program, request.param, jobs, timeout_s=600)


@pytest.mark.dist
@pytest.mark.parametrize("name", parity_cases())
def test_module_equals_stock_bit_for_bit(outcomes, name):
    if ("parity", name) not in outcomes:
        pytest.skip("on two nodes only")
    pairs = results_of(outcomes["parity", name])
    # FBGEMM for CPU has no gradient of how TorchRec repeats the rows of a variable batch.
    trains = not name.startswith("sequence_vbe")
    assert_same(parity_cases()[name], *zip(*pairs, strict=True), trains=trains)


@pytest.mark.dist
@pytest.mark.parametrize("name", exact_cases())
def test_uneven_variable_batches_are_as_near_as_float32_can_be(outcomes, name):
    assert_near(exact_cases()[name], results_of(outcomes["exact", name]))
