"""Error feedback by id in whole models: resume, and what is refused when a model is sharded."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from tests.integration.sharded_models.cases import RW, TW, Case, Table
from tests.integration.sharded_models.training import run
from tests.integration.small_model import dense_optimizer, same_weights, shard, train, weights
from trec_qcomm import Config, QComm, Rowwise, TableRule, TopK, played_ranks
from trec_qcomm.config import config_from_dict, config_to_dict
from trec_qcomm.ext.feedback.rule import RowFeedback


def config(error_feedback=RowFeedback(backward_rows=4), **options):  # noqa: B008
    rule = {"forward": Rowwise(2), "backward": Rowwise(2, "stochastic"), "unique_bags": True}
    return Config(
        embedding=(TableRule(tables="*", error_feedback=error_feedback, **(rule | options)),)
    )


def straight_and_resumed():
    qcomm = QComm(config())
    straight = shard(qcomm)
    losses = train(straight, dense_optimizer(straight), range(3))
    state = qcomm.state_dict()
    copied = shard(second := QComm(config()))
    copied.load_state_dict(straight.state_dict())
    forgetful = shard(third := QComm(config()))
    forgetful.load_state_dict(straight.state_dict())
    second.load_state_dict(state)
    third.load_state_dict({k: v for k, v in state.items() if k != "row_residuals"})
    losses = train(straight, dense_optimizer(straight), range(3, 6))
    resumed = train(copied, dense_optimizer(copied), range(3, 6))
    other = train(forgetful, dense_optimizer(forgetful), range(3, 6))
    stats = qcomm.stats()
    return {
        "same": losses == resumed and same_weights(weights(straight), weights(copied)),
        "other": losses != other or not same_weights(weights(straight), weights(forgetful)),
        "residuals": state["row_residuals"],
        "evicted": sum(t.num_evicted for t in stats.embedding_backward.tables.values()),
    }


def test_resumed_training_is_the_same():
    results = played_ranks(2).run(straight_and_resumed)
    assert sum(result["evicted"] for result in results) > 0
    for result in results:
        assert result["same"]
        assert result["other"]
        (by_collective,) = result["residuals"].values()
        tables = [tables for kept in by_collective.values() for tables in kept["backward"].values()]
        assert sum(bool(kept["residuals 0"].any()) for kept in tables) > 2


def trained(forward_rows):
    """Return the outputs and the evictions of a model whose lookups take distinct bags."""
    case = Case(tables=(Table("a", 16, ("x",)), Table("b", 8, ("y",))), sharding=TW)
    feedback = RowFeedback(forward_rows=forward_rows) if forward_rows else None
    result = run(case, QComm(config(feedback)), 4)
    tables = result.stats["embedding_forward"]["tables"].values()
    return result.outputs, sum(table["num_evicted"] for table in tables)


def test_rows_have_residuals_too():
    for few, many, none in played_ranks(2).run(lambda: [trained(n) for n in (2, 100, 0)]):
        assert few[1] > 0
        assert many[1] == none[1] == 0
        assert not all(
            torch.equal(a[key], b[key]) for a, b in zip(many[0], none[0], strict=True) for key in a
        )


def joint_counts(path, forward_rows):
    """Return what rank 0 wrote of table-wise tables: their sent and joint rows, and joint sets."""
    feedback = RowFeedback(forward_rows=forward_rows) if forward_rows else None
    (rest,), (table_wise,) = config(None).embedding, config(feedback).embedding
    rules = replace(table_wise, tables=("tw_*",)), rest
    dmp = shard(qcomm := QComm(Config(embedding=rules)))
    optimizer = dense_optimizer(dmp)
    train(dmp, optimizer, range(1))
    capture = qcomm.capture_rows(2)
    train(dmp, optimizer, range(1, 3))
    capture.save(path)
    if dist.get_rank():
        return None
    tables = torch.load(path, weights_only=True)["tables"].items()
    names = ("num_sent", "num_joint", "num_joint_sets")
    return [[t[name] for name in names] for table, t in tables if table.startswith("tw_")]


def test_rows_with_residuals_are_not_counted_as_different_ones(tmp_path):
    """A residual of each peer makes equal rows differ, so that too many would be counted."""
    plain, fed = (
        played_ranks(2).run(lambda n=n: joint_counts(tmp_path / f"{n}.pt", n))[0] for n in (0, 100)
    )
    assert all(sent >= joint > 0 and sets > 0 for sent, joint, sets in plain)
    assert len(fed) == len(plain) > 0
    assert all((joint, sets) == (0, 0) for _, joint, sets in fed)


def test_the_config_has_it():
    ours = config()
    assert config_from_dict(config_to_dict(ours)).embedding == ours.embedding


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique_bags": "auto"}, "error_feedback: needs unique_bags: true"),
        ({"backward": TopK(0.5)}, "error_feedback.backward_rows: not with topk"),
    ],
)
def test_rules_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        config(**options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [({}, "one of them must be above 0"), ({"backward_rows": -1}, "backward_rows: -1 is not")],
)
def test_numbers_that_cannot_be(fields, message):
    with pytest.raises(ValueError, match=message):
        RowFeedback(**fields)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case(tables=(Table("t", 8, ("a",)),), sharding=RW), "'t': sparse/row_wise does not keep"),
        (
            Case(tables=(Table("t", 8, ("a",)),), sharding=TW, weighted=True),
            "'t': its ids have weights",
        ),
    ],
    ids=["row-wise", "weighted"],
)
def test_shardings_that_cannot_be(case, message):
    with pytest.raises(ValueError, match=message):
        played_ranks(2).run(lambda: run(case, QComm(config())))


def test_rows_that_are_chosen_after_the_lookup_cannot_be():
    feedback = RowFeedback(forward_rows=4)
    with pytest.raises(ValueError, match="forward_rows: its lookups do not take distinct bags"):
        played_ranks(2).run(lambda: shard(QComm(config(feedback))))
