"""QComm.use_codecs for rows, dense gradients and ids, in the middle of a training."""

import copy

import pytest

from tests.integration.small_model import (
    TABLES,
    dense_optimizer,
    same_weights,
    shard,
    train,
    weights,
)
from trec_qcomm import Cast, Float6, GradientRule, Identity, QComm, Rowwise
from trec_qcomm.config import LowRank
from trec_qcomm.testing import run_ranks

ROWS = {"tables": "*", "forward": {"codec": "rowwise", "bits": 4}, "backward": "float6"}
SHARED = {"block": 8, "min_numel": 8}
FED = {"codec": "float6", "error_feedback": True} | SHARED
LOW_RANK = {"codec": {"codec": "cast", "dtype": "bf16"}, "low_rank": {"rank": 1}} | SHARED
IDS = {"codec": "packed"}
NAMES = [name for name, *_ in TABLES if name != "dp"]


def started(config):
    qcomm = QComm.from_dict(config)
    dmp = shard(qcomm)
    return qcomm, dmp, dense_optimizer(dmp)


def everything_exact():
    """Return whether a config whose codecs are all off from the start trains as TorchRec does."""
    qcomm, dmp, optimizer = started({"embedding": [ROWS], "dense": LOW_RANK, "ids": IDS})
    exact = {"forward": Identity(), "backward": Identity()}
    qcomm.use_codecs(dict.fromkeys(NAMES, exact), dense="exact", ids="exact")
    stock = shard(None)
    losses = train(dmp, optimizer, range(4)), train(stock, dense_optimizer(stock), range(4))
    stats = qcomm.stats()
    counted = stats.dense.wire_nbytes == stats.dense.raw_nbytes > 0
    return losses[0] == losses[1], same_weights(weights(dmp), weights(stock)), counted


def changed_in_between():
    """Return whether a run whose codecs change goes on as one that is resumed with the others."""
    first = {"embedding": [ROWS], "dense": FED}
    later = {
        "embedding": [ROWS | {"backward": {"codec": "cast", "dtype": "bf16"}}],
        "dense": LOW_RANK,
        "ids": IDS,
    }
    qcomm, dmp, optimizer = started(first)
    train(dmp, optimizer, range(2))
    state, plain_ids = copy.deepcopy((qcomm.state_dict(), dmp.state_dict())), qcomm.stats().input
    rule = GradientRule(codec=Cast("bf16"), block=8, min_numel=8, low_rank=LowRank(rank=1))
    backward = {"backward": Cast("bf16")}
    qcomm.use_codecs(dict.fromkeys(NAMES, backward), dense=rule, ids="packed")
    losses = train(dmp, optimizer, range(2, 5))
    resumed, again, optimizer = started(later)
    again.load_state_dict(state[1])
    resumed.load_state_dict(state[0], allow_changed_config=True)
    same = train(again, optimizer, range(2, 5)) == losses
    sent = qcomm.stats().input
    is_packed = (
        plain_ids.raw_nbytes == plain_ids.wire_nbytes and sent.raw_nbytes != sent.wire_nbytes
    )
    return same, same_weights(weights(again), weights(dmp)), is_packed


def what_is_refused():
    """Return the messages of changes that cannot be, and whether they changed nothing."""
    qcomm, dmp, optimizer = started({"embedding": [ROWS], "dense": FED})
    _, untouched, its_optimizer = started({"embedding": [ROWS], "dense": FED})
    train(dmp, optimizer, range(1))
    train(untouched, its_optimizer, range(1))
    messages = []
    for changes in (
        {"dense": GradientRule(codec=Float6(), parameters=("no.such",))},
        {"dense": GradientRule(codec=Float6(), block=2**16, min_numel=8)},
        {"ids": "none"},
        {"bags": "none"},
        {"tables": {"none": {"forward": Rowwise(4)}}},
    ):
        with pytest.raises(ValueError, match=r".") as error:
            qcomm.use_codecs(**changes)
        messages.append(str(error.value))
    losses = train(dmp, optimizer, range(1, 3)), train(untouched, its_optimizer, range(1, 3))
    without = started({"embedding": [ROWS]})[0]
    with pytest.raises(ValueError, match="dense: missing"):
        without.use_codecs(dense="exact")
    return messages, losses[0] == losses[1]


def bags_merged_and_not():
    """Return numbers of bags that were merged with `distinct` and with `all`, and equal losses."""
    exact = {"tables": "*", "forward": "identity", "backward": "identity", "unique_bags": "auto"}
    qcomm, dmp, optimizer = started({"embedding": [exact]})
    stock = shard(None)
    expected = train(stock, dense_optimizer(stock), range(4))
    merged, losses = [], []
    for bags, steps in (("distinct", range(2)), ("all", range(2, 4))):
        qcomm.use_codecs(bags=bags)
        qcomm.reset_stats()
        losses += train(dmp, optimizer, steps)
        counted = qcomm.stats().bags
        merged.append(counted.num_bags - counted.num_sent)
    return merged, losses == expected


def all_of_it():
    return everything_exact(), changed_in_between(), what_is_refused(), bags_merged_and_not()


@pytest.fixture(scope="module")
def outcomes():
    return run_ranks(all_of_it, 2)


@pytest.mark.dist
def test_with_all_codecs_off_nothing_of_ours_is_in_the_way(outcomes):
    assert [outcome[0] for outcome in outcomes] == [(True, True, True)] * 2


@pytest.mark.dist
def test_a_run_goes_on_with_other_codecs_as_a_resumed_one(outcomes):
    assert [outcome[1] for outcome in outcomes] == [(True, True, True)] * 2


@pytest.mark.dist
def test_equal_bags_are_merged_or_not_and_the_training_is_the_same(outcomes):
    for (distinct, every), is_same in (outcome[3] for outcome in outcomes):
        assert is_same
        assert distinct > 0 == every


@pytest.mark.dist
def test_what_does_not_fit_changes_nothing(outcomes):
    for messages, is_same in (outcome[2] for outcome in outcomes):
        assert is_same
        patterns, block, ids, bags, table = messages
        assert "no.such" in patterns
        assert "block: 65536" in block
        assert "ids: 'none' is not one of (None, 'packed', 'exact')" in ids
        assert "bags: 'none' is not one of (None, 'distinct', 'all')" in bags
        assert "no collective sends none; tables: " in table
