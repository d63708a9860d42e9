"""Played ranks train every sharding as real ranks do, with equal noise: each bit and each byte."""

import pytest

from tests.integration.sharded_models.cases import CW, DP, MIX, RW, SEQUENCE_MIX, TW, Case, Table
from tests.integration.sharded_models.training import assert_same, run
from tests.rank_programs import results_of, run_programs
from trec_qcomm import Config, ErrorBounded, GradientRule, QComm, Rowwise, TableRule, played_ranks
from trec_qcomm.config import TableGradientRule

NUM_RANKS = 4
# A table in two features, a feature in two tables, mean pooling, row counts that ranks split badly.
TABLES = (
    Table("first", 16, ("a",)),
    Table("pair", 32, ("b", "c")),
    Table("mean", 16, ("d",), 10, "mean"),
    Table("shared", 16, ("a",), 17),
    Table("wide", 32, ("f",), pooling="mean"),
    Table("odd", 32, ("e",)),
    Table("last", 16, ("g", "h"), 33),
)
SEQUENCE_TABLES = tuple(Table(t.name, 16, t.features, t.num_rows) for t in TABLES)


def bags(sharding: str, **options) -> Case:
    return Case(
        tables=TABLES,
        sharding=sharding,
        node_size=2 if sharding == MIX else 0,
        max_length=4,  # multi-hot
        batch=(4,) if sharding == MIX else (4, 3),
        **options,
    )


CASES = {sharding: bags(sharding) for sharding in (TW, CW, RW, DP, MIX)}  # a mix has all of POOLED
CASES["mix, weighted, adagrad"] = bags(MIX, weighted=True, optimizer="rowwise_adagrad")
CASES["sequence mix"] = Case(
    tables=SEQUENCE_TABLES, sharding=SEQUENCE_MIX, module="ec", max_length=4, batch=(4, 3)
)
CASES["feature processor"] = Case(tables=TABLES[:2], sharding=RW, module="fp_ebc", max_length=4)
CASES["managed collisions"] = Case(tables=TABLES[:2], sharding=RW, module="mc_ebc")


def train(case: Case):
    """Train with codecs that draw noise, in every kind of traffic."""
    rule = TableRule(
        tables=("*",),
        forward=ErrorBounded(0.03),
        backward=Rowwise(4, "stochastic"),
        unique_bags="auto",
    )
    codec = Rowwise(4, "stochastic")
    config = Config(
        embedding=(rule,),
        dense=GradientRule(
            codec=codec, algorithm="ring", error_feedback=True, block=8, min_numel=8
        ),
        data_parallel=TableGradientRule(codec=codec) if case.sharding in (DP, MIX) else None,
    )
    return run(case, QComm(config), 3)


@pytest.fixture(scope="module")
def real():
    return run_programs(train, NUM_RANKS, CASES, timeout_s=240)


@pytest.mark.dist
@pytest.mark.parametrize("name", list(CASES))
def test_equals_real_ranks(real, name):
    case, expected = CASES[name], results_of(real[name])
    per_node = case.node_size or NUM_RANKS
    played = played_ranks(NUM_RANKS, ranks_per_node=per_node).run(lambda: train(case))
    assert_same(case, expected, played)
    for theirs, ours in zip(expected, played, strict=True):
        for kind, stats in theirs.stats.items():
            if isinstance(stats, dict):
                assert stats.get("wire_nbytes") == ours.stats[kind].get("wire_nbytes"), kind
    assert sum(result.stats["embedding_forward"]["wire_nbytes"] for result in played) > 0 or (
        case.sharding == DP
    )
