"""With the identity codec a model trains bit for bit as with stock TorchRec; bypass, statistics."""

import pytest
import torch

from tests.integration.small_model import (
    OPTIMIZERS,
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

STEPS = range(8)


def run(qcomm, optimizer):
    dmp = shard(qcomm, optimizer=optimizer)
    before = weights(dmp)
    losses = train(dmp, dense_optimizer(dmp), STEPS)
    return losses, weights(dmp), before


def evaluations():
    """Return outputs of one batch before training: stock, int4, int4 bypassed."""
    quantized = qcomm_of(Rowwise(4))
    models = shard(None), shard(quantized)
    features = batch(1, batch_size(1))
    with torch.no_grad():
        stock, coded = (dmp(features) for dmp in models)
        with quantized.bypass():
            bypassed = models[1](features)
        after = models[1](features)
    return {"stock": stock, "coded": coded, "bypassed": bypassed, "after": after}


def everything():
    results = {}
    for optimizer in OPTIMIZERS:
        results[optimizer] = {
            "stock": run(None, optimizer),
            "identity": run(qcomm_of(Identity()), optimizer),
        }
    qcomm = qcomm_of(Rowwise(4), measure_error=True)
    dmp = shard(qcomm)
    train(dmp, dense_optimizer(dmp), range(2))
    return {
        "runs": results,
        "evaluations": evaluations(),
        "stats": qcomm.stats().to_dict(),
    }


@pytest.fixture(scope="module", params=[1, 2, 4])
def ranks(request):
    return run_ranks(everything, request.param)


@pytest.mark.dist
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_identity_equals_stock_bit_for_bit(ranks, optimizer):
    for results in ranks:
        runs = results["runs"][optimizer]
        assert runs["identity"][0] == runs["stock"][0]
        assert same_weights(runs["identity"][1], runs["stock"][1])
        for name, parts in runs["identity"][2].items():  # every table was really trained
            for before, after in zip(parts, runs["identity"][1][name], strict=True):
                assert not torch.equal(before, after), name


@pytest.mark.dist
def test_bypass_is_exact_and_ends(ranks):
    for results in ranks:
        outputs = results["evaluations"]
        assert torch.equal(outputs["bypassed"], outputs["stock"])
        assert torch.equal(outputs["after"], outputs["coded"])
    first = ranks[0]["evaluations"]
    assert not torch.equal(first["coded"], first["stock"])


@pytest.mark.dist
def test_stats_name_every_coded_table(ranks):
    coded = {"tw_first", "tw_last", "cw", "cw_shared"}
    for results in ranks:
        stats = results["stats"]
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
        lossless_part = stats["dense"]["raw_nbytes"] == 0
        assert lossless_part == (len(ranks) == 1)
    errors = [r["stats"]["embedding_forward"]["tables"]["tw_first"]["max_abs_err"] for r in ranks]
    assert errors[0] > 0  # its owner encodes it ...
    assert all(e is None for e in errors[1:])  # ... and no one else
