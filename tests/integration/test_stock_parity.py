"""Tables that an optimizer outside of the lookup trains, bit for bit as in stock; bypass; stats.

Lookups that train their tables themselves are compared in embedding/test_every_sharding.py.
"""

import pytest
import torch

from tests.integration.small_model import (
    batch,
    batch_size,
    dense_optimizer,
    qcomm_of,
    same_weights,
    shard,
    train,
    weights,
)
from trec_qcomm import Identity, Rowwise
from trec_qcomm.testing import run_ranks


def run(qcomm):
    dmp = shard(qcomm, optimizer="dense")
    before = weights(dmp)
    losses = train(dmp, dense_optimizer(dmp), range(8))
    return losses, weights(dmp), before


def evaluations():
    """Return outputs of one batch before training: stock, int4, int4 bypassed, int4 again."""
    quantized = qcomm_of(Rowwise(4))
    models = shard(None), shard(quantized)
    features = batch(1, batch_size(1))
    with torch.no_grad():
        stock, coded = (dmp(features) for dmp in models)
        with quantized.bypass():
            bypassed = models[1](features)
        return stock, coded, bypassed, models[1](features)


def everything():
    qcomm = qcomm_of(Rowwise(4), measure_error=True)
    dmp = shard(qcomm)
    train(dmp, dense_optimizer(dmp), range(2))
    runs = run(None), run(qcomm_of(Identity()))
    return {"runs": runs, "evaluations": evaluations(), "stats": qcomm.stats().to_dict()}


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(everything, 2)


@pytest.mark.dist
def test_identity_equals_stock_bit_for_bit(ranks):
    for stock, identity in (results["runs"] for results in ranks):
        assert identity[0] == stock[0]
        assert same_weights(identity[1], stock[1])
        for name, parts in identity[2].items():  # every table was really trained
            for before, after in zip(parts, identity[1][name], strict=True):
                assert not torch.equal(before, after), name


@pytest.mark.dist
def test_bypass_is_exact_and_ends(ranks):
    for stock, coded, bypassed, after in (results["evaluations"] for results in ranks):
        assert torch.equal(bypassed, stock)
        assert torch.equal(after, coded)
        assert not torch.equal(coded, stock)


@pytest.mark.dist
def test_stats_name_every_coded_table(ranks):
    coded = {"tw_first", "tw_last", "cw", "cw_shared"}
    for stats in (results["stats"] for results in ranks):
        assert set(stats) == {
            "embedding_forward", "embedding_backward", "dense", "data_parallel", "input",
            "intra_dense", "intra_embedding_forward", "intra_embedding_backward",
        }  # fmt: skip
        for kind in ("embedding_forward", "embedding_backward"):
            assert set(stats[kind]["tables"]) == coded
            assert stats[kind]["num_calls"] == 4  # two steps, TW and CW
            tables = sum(t["wire_nbytes"] for t in stats[kind]["tables"].values())
            assert stats[kind]["wire_nbytes"] == tables + stats[kind]["header_nbytes"]
            assert sum(ranks[0]["stats"][kind]["encode_s"].values()) > 0
        assert stats["dense"]["raw_nbytes"] > 0
    errors = [r["stats"]["embedding_forward"]["tables"]["tw_first"]["max_abs_err"] for r in ranks]
    assert errors[0] > 0  # its owner encodes it ...
    assert errors[1] is None  # ... and no one else
