"""Sequences are measured on networks as Criteo's rows are: bytes of the interface beside ours."""

import argparse

import pytest

from examples.bench.net import sequences
from tests.rank_programs import results_of, run_programs

SMALL = [
    *("--users", "40", "--items", "100", "--batch-size", "8", "--length", "10"),
    *("--dim", "8", "--blocks", "1"),
]


def measure(arguments):
    every = sequences.TRAIN_OPTIONS.parse(["stock", "int4"], SMALL, sequences.PIPELINES)
    return sequences.measure(every, arguments, "lo")


@pytest.mark.dist
def test_a_record_a_config_with_bytes_and_parts_of_a_step():
    arguments = argparse.Namespace(num_steps=2, rate="none", delay=None, ranks_per_host=1)
    outcomes = run_programs(measure, 2, {"measured": arguments})
    (stock, pipelined, int4, another), again = results_of(outcomes["measured"])
    means = [stock.losses, pipelined.losses, int4.losses, another.losses]
    assert [r.losses for r in again] == means  # over ranks
    assert pipelined.losses == stock.losses
    assert another.losses == int4.losses
    assert pipelined.setup == stock.setup | {"pipeline": "sparse_dist"}
    assert (stock.configuration, stock.traffic, stock.num_hosts) == ("stock", None, 2)
    assert int4.configuration == "int4"
    assert len(stock.losses) == len(int4.losses) == sequences.WARM_STEPS + 2
    assert len(int4.sent_nbytes) == 2
    assert min(int4.sent_nbytes) > 0
    assert int4.traffic[0]["embedding_forward"].wire_nbytes > 0
    assert {"lookup", "encode", "wire", "reader"} <= int4.breakdown_s.keys()
    assert stock.setup == int4.setup


def test_options_that_would_do_nothing_are_refused():
    with pytest.raises(ValueError, match="epochs: an option that bench-net does not have"):
        sequences.TRAIN_OPTIONS.parse(["stock"], ["--epochs", "2"])
    (by_hand, pipelined) = sequences.TRAIN_OPTIONS.parse(["stock"], [], ["none", "sparse_dist"])
    assert by_hand.items == pipelined.items == 20_000
    assert (by_hand.pipeline, pipelined.pipeline) == ("none", "sparse_dist")
