"""With the identity codec every sharding equals stock TorchRec: outputs and weights, bit for bit.

Bags have at most two ids, so that at most two partial sums are not 0 and the order of addition,
in which ours differs from gloo's for more than two ranks, changes nothing. Longer bags, and what
stock cannot run on gloo (uneven batches of row-wise shardings), are held against float64.
With 4 ranks all ids are packed, which changes no bit either.
"""

from dataclasses import replace

import pytest
import torch

from tests.integration.sharded_models.batches import batch
from tests.integration.sharded_models.cases import (
    CW,
    DP,
    GRID,
    MIX,
    POOLED,
    RW,
    SEQUENCE,
    TW,
    TWCW,
    TWRW,
    Case,
    Table,
    full_table,
)
from tests.integration.sharded_models.expected import assembled, outputs, updated
from tests.integration.sharded_models.training import OPTIMIZERS, assert_same, exact_qcomm, run
from tests.rank_programs import results_of, run_programs

pytestmark = pytest.mark.timeout(900)  # the ranks' own limit comes first

BY_NODE = (TWRW, GRID, TWCW, MIX)  # shardings that know nodes
# A table in two features, a feature in two tables, mean pooling, dims of all remainders.
TABLES = (
    Table("first", 16, ("a",)),
    Table("pair", 32, ("b", "c")),
    Table("mean", 12, ("d",), 10, "mean"),
    Table("shared", 16, ("a",), 17),
    Table("odd", 20, ("e",)),
    Table("wide", 52, ("f",), pooling="mean"),
    Table("last", 36, ("g", "h"), 33),
)
SUM_TABLES = tuple(replace(table, pooling="sum") for table in TABLES)
# Where a feature is in two tables, TorchRec divides row-wise means by the wrong numbers.
MEAN_TABLES = tuple(replace(table, pooling="mean") for table in TABLES if table.name != "shared")
SEQUENCE_TABLES = tuple(Table(t.name, 16, t.features, t.num_rows) for t in TABLES)
NARROW_TABLES = tuple(Table(t.name, 12, t.features, t.num_rows) for t in TABLES)


def node_sizes(sharding, world_size):
    return (1, 2, world_size) if sharding in BY_NODE and world_size == 4 else (1, world_size)


def parity_cases(world_size):
    """Return by name all cases that stock can run. Nodes have every size with SGD, and one with
    the other optimizer, which knows rows and no nodes."""
    cases = {}
    for sharding in POOLED:
        for node_size in node_sizes(sharding, world_size) if sharding in BY_NODE else (0,):
            for optimizer in OPTIMIZERS if node_size in (0, 2) else ("sgd",):
                cases[f"{sharding}/{node_size}/{optimizer}"] = Case(
                    tables=TABLES, sharding=sharding, node_size=node_size, optimizer=optimizer
                )
    for sharding in SEQUENCE:
        for optimizer in OPTIMIZERS:
            for tables in (SEQUENCE_TABLES, NARROW_TABLES)[: 1 + (optimizer == "sgd")]:
                cases[f"sequence_{sharding}/{tables[0].dim}/{optimizer}"] = Case(
                    tables=tables, sharding=sharding, module="ec", optimizer=optimizer
                )
    for sharding in (TW, CW, TWCW, DP):
        for name, sizes in (("uneven", (4, 3)), ("zero", (5, 0))):
            cases[f"{sharding}/{name}"] = Case(tables=TABLES, sharding=sharding, batch=sizes)
    for sharding in (TW, CW, RW):
        cases[f"sequence_{sharding}/uneven"] = Case(
            tables=SEQUENCE_TABLES, sharding=sharding, module="ec", batch=(4, 3)
        )
    return cases


def exact_cases(world_size):
    """Return cases by name: long bags, and uneven batches, also of no samples. With 2 ranks those
    of shardings that know no nodes."""
    cases = {}
    for sharding in POOLED:
        if sharding in BY_NODE and world_size == 2:
            continue
        # TorchRec's own divisor of means fails on a rank that has no samples.
        for name, tables, sizes in (
            ("even", SUM_TABLES, (5,)),
            ("uneven", SUM_TABLES, (5, 3)),
            ("zero", SUM_TABLES, (0, 4, 1)),
            ("mean", MEAN_TABLES, (5, 3)),
        ):
            # TorchRec does not divide the sums of grid_shard, where a table wants their mean.
            if name == "mean" and sharding in (GRID, MIX):
                continue
            cases[f"{sharding}/{name}"] = Case(
                tables=tables, sharding=sharding, node_size=2, batch=sizes, max_length=9
            )
    return cases


def run_program(program):
    kind, case = program
    if kind == "exact":
        return run(case, exact_qcomm(), 1, linear=True)
    return run(case, None), run(case, exact_qcomm())


@pytest.fixture(scope="module", params=[2, 4])
def outcomes(request):
    parity, exact = parity_cases(request.param), exact_cases(request.param)
    jobs = {("parity", name): ("parity", case) for name, case in parity.items()}
    jobs |= {("exact", name): ("exact", case) for name, case in exact.items()}
    return run_programs(run_program, request.param, jobs, timeout_s=600)


@pytest.mark.dist
@pytest.mark.parametrize("name", parity_cases(4))
def test_identity_equals_stock_bit_for_bit(outcomes, name):
    if ("parity", name) not in outcomes:
        pytest.skip("no such node size")
    pairs = results_of(outcomes["parity", name])
    assert_same(parity_cases(4)[name], *zip(*pairs, strict=True))


@pytest.mark.dist
@pytest.mark.parametrize("name", exact_cases(4))
def test_identity_is_as_near_as_float32_can_be(outcomes, name):
    if ("exact", name) not in outcomes:
        pytest.skip("on two nodes only")
    assert_near(exact_cases(4)[name], results_of(outcomes["exact", name]))


def assert_near(case, runs):
    batches = [batch(case, 0, rank) for rank in range(len(runs))]
    weights = {table.name: full_table(table) for table in case.tables}
    for rank, result in enumerate(runs):
        for key, expected in outputs(case, weights, batches[rank]).items():
            assert expected.holds(result.outputs[0][key]), f"rank {rank}, output {key}"
    after = updated(case, weights, batches)
    for table in case.tables:
        whole = assembled(table, [part for result in runs for part in result.weights[table.name]])
        untrained = set(table.features) <= set(case.empty)
        assert torch.equal(whole, weights[table.name]) == untrained, table.name
        assert after[table.name].holds(whole), table.name
