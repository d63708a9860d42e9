"""Codec fbgemm in every sharding: outputs and weights are those of FBGEMM's own round trip.

One model has a table for each precision and sharding. It is trained with the codec, and with one
that makes FBGEMM's round trip of each segment by itself and sends float32. Both code rows and
gradients and both hops of two-level shardings, one precision the gradients of DATA_PARALLEL tables.
All precisions in all-reduces: tests/comm/dense/test_fbgemm.py.
"""

from typing import get_args

import pytest
import torch

from tests.ext.fbgemm.fbgemm_round_trips import RoundTrip
from tests.integration.sharded_models.cases import CW, MIX, MIXES, SEQUENCE_MIX, Case, Table
from tests.integration.sharded_models.training import assert_same, run, shard
from tests.rank_programs import results_of, run_programs
from trec_qcomm import Config, Fbgemm, GradientRule, Identity, QComm, TableGradientRule, TableRule
from trec_qcomm.config import HopCodecs
from trec_qcomm.ext.fbgemm.codec import Precision

WORLD_SIZE = 4
PRECISIONS = get_args(Precision)
# Dims of the tables of MIXES[MIX], in that order. All precisions take the dims of all shards.
DIMS = (16, 32, 64, 24, 32, 16, 32)


def tables_of(sharding: str) -> tuple[Table, ...]:
    """Return the tables of all shardings with the first precision, then with the second one .."""
    shardings = MIXES[sharding]
    return tuple(
        Table(
            name=f"{precision}_{kind}",
            dim=DIMS[n] if sharding == MIX else 64,
            features=(f"{precision}_{kind}",),
            num_rows=12,
        )
        for precision in PRECISIONS
        for n, kind in enumerate(shardings)
    )


CASES = {
    "ebc": Case(tables=tables_of(MIX), sharding=MIX, node_size=2, batch=(5, 3)),
    "ec": Case(tables=tables_of(SEQUENCE_MIX), sharding=SEQUENCE_MIX, module="ec", batch=(5, 3)),
}
MAKES = {"fbgemm": Fbgemm, "round trip": RoundTrip, "exact": lambda _: Identity()}
REFUSED = Case(tables=(Table("narrow", 36, ("a",)),), sharding=CW)


def qcomm_of(case: Case, make) -> QComm:
    rules = []
    for precision in PRECISIONS:
        both = {"forward": make(precision), "backward": make(precision)}
        tables = [f"{precision}_{kind}" for kind in MIXES[case.sharding]]
        rules.append(TableRule(tables=tables, **both, intra=HopCodecs(**both), unique_bags="auto"))
    dense = GradientRule(codec=make("mx4"), block=8, min_numel=8, algorithm="two_shot")
    tables = TableGradientRule(codec=make("int8"), algorithm="ring")
    return QComm(Config(embedding=rules, dense=dense, data_parallel=tables))


def train(argument):
    name, make = argument
    return run(CASES[name], qcomm_of(CASES[name], MAKES[make]), 1)


def refusals() -> dict[str, str]:
    """Return by precision what sharding REFUSED raises: a shard of 12 values, and others of 8."""
    errors = {}
    for precision in PRECISIONS:
        rule = TableRule(tables="*", forward=Fbgemm(precision), backward=Identity())
        try:
            shard(REFUSED, QComm(Config(embedding=[rule])))
        except ValueError as error:
            errors[precision] = str(error)
    return errors


def program(argument):
    return train(argument) if argument else refusals()


@pytest.fixture(scope="module")
def outcomes():
    programs = {(name, make): (name, make) for name in CASES for make in MAKES}
    return run_programs(program, WORLD_SIZE, programs | {"refused": ()}, timeout_s=240)


@pytest.mark.dist
@pytest.mark.parametrize("name", CASES)
def test_a_training_equals_one_with_fbgemms_round_trip(outcomes, name):
    ours, theirs, exact = (results_of(outcomes[name, make]) for make in MAKES)
    assert_same(CASES[name], theirs, ours)
    for table in CASES[name].tables:
        same = [
            torch.equal(coded.outputs[0][table.name], plain.outputs[0][table.name])
            for coded, plain in zip(ours, exact, strict=True)
        ]
        assert all(same) == table.name.endswith("data_parallel"), f"{table.name}: coded, or not"


@pytest.mark.dist
def test_shards_of_dims_that_fbgemm_does_not_take_are_refused(outcomes):
    for errors in results_of(outcomes["refused"]):
        assert set(errors) == {"int2", "mx4"}
        for precision, error in errors.items():
            assert (
                f"table 'narrow': codec fbgemm, precision {precision}: rows of 12 values" in error
            )
