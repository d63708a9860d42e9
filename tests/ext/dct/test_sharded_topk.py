"""DCT on two real ranks: topk and forward_mask through TorchRec, and the presets by their YAML."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from tests.integration.sharded_models.batches import batch
from tests.integration.sharded_models.cases import (
    CW,
    LEARNING_RATE,
    RW,
    TW,
    Case,
    Table,
    full_table,
)
from tests.integration.sharded_models.expected import (
    assembled,
    incidence,
    output_keys,
    rounding,
    uses_of,
)
from tests.integration.sharded_models.training import run, shard
from trec_qcomm import Config, ForwardMask, QComm, Rowwise, TableRule, TopK, compress_ddp
from trec_qcomm.testing import run_ranks

DENSITY = 0.25
TABLES = (Table("a", 16, ("f1", "f2"), 10), Table("b", 32, ("f3",), 10))


def qcomm_of(backward, *, unique_bags=False):
    rule = TableRule(
        tables=("*",),
        forward=TopK(density=DENSITY, values="fp32"),
        backward=backward,
        unique_bags=unique_bags,
    )
    return QComm(Config(embedding=(rule,)))


def case_of(sharding, module="ebc"):
    tables = tuple(Table(t.name, 16, t.features, 10) for t in TABLES)
    return Case(
        tables=tables if module == "ec" else TABLES,
        sharding=sharding,
        module=module,
        batch=(30, 17),
        max_length=1,
    )


CASES = {
    "table_wise": (case_of(TW), False),
    "merged": (case_of(TW), True),
    "sequence": (case_of(TW, "ec"), False),
}


def everything():
    results = {
        name: run(case, qcomm_of(ForwardMask("fp32"), unique_bags=merge), 1, linear=True)
        for name, (case, merge) in CASES.items()
    }
    for sharding, backward in ((RW, ForwardMask()), (RW, Rowwise(8)), (CW, ForwardMask())):
        try:
            shard(case_of(sharding), qcomm_of(backward))
            results[sharding, backward.name] = "accepted"
        except ValueError as error:
            results[sharding, backward.name] = str(error)
    sent = run(CASES["table_wise"][0], QComm.from_preset("papers/dct"), 2, linear=True).stats
    results["dct"] = {d: sent[f"embedding_{d}"] for d in ("forward", "backward")}
    results["dense_dct"] = dense_dct()
    return results


def dense_dct():
    """Return the gradient of a layer in each step, and what was sent."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Linear(200, 200))
    handle = compress_ddp(ddp, "papers/dense_dct")
    gradients = []
    for step in range(11):
        ddp.zero_grad()
        inputs = torch.randn(8, 200, generator=torch.Generator().manual_seed(step))
        ddp(inputs).square().sum().backward()
        gradients.append(ddp.module.weight.grad.clone())
    return gradients, handle.stats().to_dict()["dense"]


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(everything, 2, timeout_s=240)


def kept(rows):
    """Return [n, D] bool: the largest quarter of each row; the lowest column first where equal."""
    k = round(rows.shape[1] * DENSITY)
    order = rows.abs().sort(dim=1, descending=True, stable=True).indices[:, :k]
    return torch.zeros_like(rows, dtype=torch.bool).scatter_(1, order, True)


@pytest.mark.dist
@pytest.mark.parametrize("name", CASES)
def test_rows_and_gradients_have_the_kept_columns(ranks, name):
    case, _ = CASES[name]
    batches = [batch(case, 0, rank) for rank in range(2)]
    masks = {}
    for rank, results in enumerate(ranks):
        for key, table, feature in output_keys(case):
            matrix = incidence(case, table, feature, batches[rank])
            rows = (matrix @ full_table(table).double()).float()  # one id a bag: exact
            masks[rank, key] = kept(rows)
            expected = torch.where(masks[rank, key], rows, 0)
            assert torch.equal(results[name].outputs[0][key], expected)
    for table in case.tables:
        expected = full_table(table).double()
        magnitude, uses = expected.abs(), 1
        for n, (key, matrix, gradient) in enumerate(uses_of(case, table, batches, 0)):
            masked = gradient * masks[n % 2, key]
            expected = expected - LEARNING_RATE / 2 * matrix.T @ masked
            magnitude = magnitude + LEARNING_RATE / 2 * matrix.T.abs() @ masked.abs()
            uses += int(matrix.sum(0).max())
        whole = assembled(table, [p for r in ranks for p in r[name].weights[table.name]])
        assert bool(((whole.double() - expected).abs() <= rounding(uses + 4, magnitude)).all())


@pytest.mark.dist
def test_row_wise_refuses_forward_mask_when_it_is_built(ranks):
    for results in ranks:
        assert "needs a table- or column-wise sharding" in results[RW, "forward_mask"]
        assert results[RW, "rowwise"] == results[CW, "forward_mask"] == "accepted"


@pytest.mark.dist
def test_the_preset_dct_sends_a_tenth(ranks):
    for results in ranks:
        for sent in results["dct"].values():
            assert sent["raw_nbytes"] > 4 * sent["wire_nbytes"] > 0


@pytest.mark.dist
def test_the_preset_dense_dct_sends_a_hundredth(ranks):
    """In steps 0 and 10, which find thresholds, each owner keeps about 1 % of the sums: in 8 bits
    some are equal, and some round to 0."""
    (gradients, sent), (others, _) = (results["dense_dct"] for results in ranks)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(gradients, others, strict=True))
    for step in (0, 10):
        assert 200 < int((gradients[step] != 0).sum()) <= 600
    assert sent["raw_nbytes"] > 20 * (sent["wire_nbytes"] + sent["header_nbytes"]) > 0
