"""TrainPipelineSparseDist runs over our sharders as over stock ones, and is counted alike."""

import pytest
import torch
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from tests.integration.small_model import (
    CPU,
    Model,
    batch,
    dense_optimizer,
    qcomm_of,
    shard,
    train,
)
from trec_qcomm import Config, Identity, QComm, TableRule
from trec_qcomm.config import IdRule
from trec_qcomm.testing import run_ranks

STEPS = range(6)


def with_loss(model):
    """Model whose forward returns (loss, output), as TrainPipeline wants it."""
    plain = Model.forward
    Model.forward = lambda self, features: (
        (loss := ((plain(self, features) - 1) ** 2).sum() / 8),
        loss.detach(),
    )
    try:
        return model()
    finally:
        Model.forward = plain


def pipelined(qcomm, *, detach_before=None):
    """Return losses. Args: detach_before: a step before which the model is called by hand, once."""

    def run():
        dmp = shard(qcomm)
        pipeline = TrainPipelineSparseDist(dmp, dense_optimizer(dmp), CPU)
        batches = iter([batch(step, 4) for step in STEPS])
        losses = []
        for step in STEPS:
            if step == detach_before:
                with torch.no_grad():
                    pipeline.detach()(batch(step, 4))
            losses.append(float(pipeline.progress(batches)))
        return losses

    return with_loss(run)


def by_hand(qcomm):
    dmp = shard(qcomm)
    optimizer = dense_optimizer(dmp)
    losses = []
    for step in STEPS:
        loss = ((dmp(batch(step, 4)) - 1) ** 2).sum() / 8
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def nbytes(qcomm):
    return {kind: traffic.wire_nbytes for kind, traffic in qcomm.stats().by_kind().items()}


def merging(*, packed=False):
    rule = TableRule(tables=("*",), forward=Identity(), backward=Identity(), unique_bags=True)
    return QComm(Config(embedding=(rule,), ids=IdRule(codec="packed") if packed else None))


def all_ways():
    ours, hand = qcomm_of(Identity()), qcomm_of(Identity())
    merged, merged_by_hand = merging(), merging()
    packed = merging(packed=True)
    return {
        "stock": pipelined(None),
        "ours": pipelined(ours),
        "by hand": by_hand(hand),
        "nbytes": nbytes(ours),
        "nbytes by hand": nbytes(hand),
        "merged": pipelined(merged),
        "detached": pipelined(merging(), detach_before=3),
        "merged by hand": by_hand(merged_by_hand),
        "merged nbytes": nbytes(merged),
        "merged nbytes by hand": nbytes(merged_by_hand),
        "packed": pipelined(packed),
        "packed nbytes": nbytes(packed),
        "bags": merged.stats().to_dict()["input"]["bags"],
    }


@pytest.mark.dist
def test_pipeline_equals_stock_and_counts_alike():
    for results in run_ranks(all_ways, 2):
        assert results["ours"] == results["stock"] == results["by hand"]
        assert results["nbytes"] == results["nbytes by hand"]
        assert results["nbytes"]["input"] > 0
        assert results["merged"] == results["merged by hand"]
        assert results["merged nbytes"] == results["merged nbytes by hand"]
        assert results["detached"] == results["merged"]
        assert results["packed"] == results["merged"]
        packed, merged = results["packed nbytes"]["input"], results["merged nbytes"]["input"]
        assert 0 < packed < merged
        assert results["packed nbytes"] | {"input": merged} == results["merged nbytes"]
        assert results["bags"]["num_sent"] < results["bags"]["num_bags"]


def shard_twice():
    qcomm = qcomm_of(Identity())
    first = shard(qcomm)
    train(first, dense_optimizer(first), range(2))
    with pytest.raises(ValueError, match="'ebc' is sharded already; one QComm"):
        shard(qcomm)
    return {name: int(step) for name, step in qcomm.state_dict()["steps"].items()}


@pytest.mark.dist
def test_one_qcomm_serves_one_model():
    assert run_ranks(shard_twice, 1) == [{"ebc": 2}]
