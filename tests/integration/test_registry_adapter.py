"""TorchRec's own registry: stock sharders with our casts."""

import pytest
import torch
import torch.distributed as dist
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import data_parallel, row_wise, table_wise

from tests.integration.small_model import OPTIMIZERS, batch, qcomm_of, shard
from trec_qcomm import Cast, Config, Identity, QComm, Rowwise, TableRule, UnencodableError
from trec_qcomm.testing import run_ranks

PLAN = ("tw_first", "tw_last", "cw", "cw_shared")


def outputs():
    """Return pooled rows of a table-wise plan, and gradients' effect, through stock sharders."""
    last = dist.get_world_size() - 1
    plan = {name: table_wise(rank=last) for name in PLAN} | {"dp": data_parallel()}
    fused = {"optimizer": OPTIMIZERS["sgd"], "learning_rate": 0.1}
    results = {}
    for name, codec in {"fp32": Identity(), "fp16": Cast("fp16"), "bf16": Cast("bf16")}.items():
        registry = qcomm_of(codec).codecs_registry()
        sharder = EmbeddingBagCollectionSharder(fused, registry)
        dmp = shard(None, plan=plan, sharders=[sharder])
        values = dmp.module.ebc(batch(1, 4)).values()
        values.sum().backward()
        results[name] = values.detach()
    results["row_wise"] = row_wise_outputs(fused, Identity())
    results["row_wise bf16"] = row_wise_outputs(fused, Cast("bf16"))
    return results


def row_wise_outputs(fused, codec):
    """Return outputs of a row-wise plan. Stock adds encoded values, which works for casts alone."""
    plan = {name: row_wise() for name in PLAN} | {"dp": data_parallel()}
    sharder = EmbeddingBagCollectionSharder(fused, qcomm_of(codec).codecs_registry())
    dmp = shard(None, plan=plan, sharders=[sharder])
    values = dmp.module.ebc(batch(1, 4)).values()
    values.sum().backward()
    return values.detach()


@pytest.mark.dist
def test_bf16_on_gloo_is_bf16():
    for results in run_ranks(outputs, 2):
        exact = results["fp32"]
        coded = slice(0, -7)  # the last 7 columns are the data-parallel table's
        for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
            assert torch.equal(results[name][:, coded], exact[:, coded].to(dtype).float())
        # Two summands, each below 3 ids of at most 1/sqrt(10), and their sum are rounded.
        error = (results["row_wise bf16"] - results["row_wise"]).abs()
        assert bool((error <= 3 * 2**-9).all())
        assert float(error[:, coded].max()) > 0


def config_of(*rules):
    return QComm(Config(embedding=rules, source="x.yaml"))


def test_only_casts_fit():
    rule = TableRule(tables=("*",), forward=Cast("fp16"), backward=Rowwise(8))
    message = r"x\.yaml: embedding\[0\]\.backward: Rowwise.* cannot go .*; allowed: cast, identity"
    with pytest.raises(ValueError, match=message):
        config_of(rule).codecs_registry()


def test_stock_sharders_merge_no_bags():
    rule = TableRule(tables=("*",), forward=Identity(), backward=Identity(), unique_bags="auto")
    with pytest.raises(ValueError, match=r"embedding\[0\].unique_bags: 'auto'; allowed.*: false"):
        QComm(Config(embedding=(rule,))).codecs_registry()


def test_one_codec_for_all_tables():
    first = TableRule(tables=("a",), forward=Cast("fp16"), backward=Identity())
    second = TableRule(tables=("*",), forward=Cast("bf16"), backward=Identity())
    with pytest.raises(ValueError, match=r"embedding\[1\]\.forward: .* one codec for all tables"):
        config_of(first, second).codecs_registry()


def test_overflow_raises_if_configured():
    codecs = qcomm_of(Cast("fp16", overflow="raise")).codecs_registry()
    forward = codecs["POOLED_EMBEDDINGS_ALL_TO_ALL"].forward
    assert forward.encode(torch.tensor([1.0, torch.inf])).dtype == forward.quantized_dtype
    with pytest.raises(UnencodableError):
        forward.encode(torch.tensor([1e5]))
