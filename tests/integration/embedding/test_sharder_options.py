"""Sharders take the options of TorchRec's own, for each type of module, and may be extended."""

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

from tests.integration.sharded_models.batches import batch
from tests.integration.sharded_models.cases import CPU, MODULES, RW, TW, Case, Table, plan
from tests.integration.sharded_models.training import qcomm_of
from trec_qcomm import Identity, Rowwise
from trec_qcomm.integration.embedding.sharders import (
    CodedEmbeddingBagCollectionSharder,
    CodedManagedCollisionEmbeddingBagCollectionSharder,
)
from trec_qcomm.testing import run_ranks

TABLES = (Table("a", 16, ("f1",)), Table("b", 16, ("f2",)))
BAGS, ROWS = Case(tables=TABLES, sharding=TW), Case(tables=TABLES, sharding=TW, module="ec")
SGD = EmbOptimType.EXACT_SGD
RATES = {
    EmbeddingBagCollection: {"optimizer": SGD, "learning_rate": 0.5},
    EmbeddingCollection: {"optimizer": SGD, "learning_rate": 0.25},
}


class RowWiseBags(CodedEmbeddingBagCollectionSharder):
    """Sharder that lets TorchRec's planner choose row-wise only, which on CPU it does not offer."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [RW]


class Both(nn.Module):
    """Model of bags and of unpooled rows over the same features."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.rows = MODULES["ebc"](BAGS), MODULES["ec"](ROWS)

    def forward(self, features):
        rows = self.rows(features)
        return self.bags(features).values().sum() + sum(r.values().sum() for r in rows.values())


def rates_and_types():
    """Return what one step moved the rows by, and how the planner sharded each module."""
    qcomm = qcomm_of(Identity())
    arguments = qcomm.dmp_arguments(fused_params=RATES, subclasses=[RowWiseBags])
    dmp = DistributedModelParallel(Both(), device=CPU, **arguments)
    tables = [
        (name.partition(".")[0], part.tensor)
        for name, table in dmp.state_dict().items()
        for part in table.local_shards()
    ]
    for _, rows in tables:
        rows.zero_()
    dmp(batch(BAGS, 0, 0)).backward()
    moved = {"bags": set(), "rows": set()}
    for module, rows in tables:
        moved[module] |= {float(value) for value in rows[rows != 0].abs().unique()}
    types = {
        path: {p.sharding_type for p in module.values()} for path, module in dmp.plan.plan.items()
    }
    return moved, types, qcomm.stats().embedding_forward.num_calls


def order_of_types(order):
    """Return the sharding types of a module of two, in the order in which it goes through them."""
    case = Case(tables=TABLES, sharding="sequence_mix")  # table-wise, then row-wise
    model = nn.Module()
    model.sparse = MODULES["ebc"](case)
    dmp = DistributedModelParallel(
        model,
        device=CPU,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        plan=ShardingPlan({"sparse": plan(case, dist.get_world_size())}),
        **qcomm_of(Identity()).dmp_arguments(sharded_module_order_overwrite=order),
    )
    return dmp.module.sparse._sharding_types


def everything():
    torch.manual_seed(0)
    return {"both": rates_and_types(), "orders": [order_of_types(o) for o in ([TW, RW], [RW, TW])]}


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(everything, 2)


@pytest.mark.dist
def test_each_type_of_module_has_its_own_parameters(ranks):
    """Ids are drawn alike on both ranks, so a row that is in n bags of each moves by n rates."""
    moved = [rank["both"][0] for rank in ranks]
    for module, rate in (("bags", 0.5), ("rows", 0.25)):
        steps = set().union(*(rank[module] for rank in moved))
        assert min(steps) == rate
        assert all(step % rate == 0 for step in steps)


@pytest.mark.dist
def test_a_subclass_pins_the_sharding_types(ranks):
    for _, types, calls in (rank["both"] for rank in ranks):
        assert types["bags"] == {RW}
        assert calls >= 2
    bags, *_ = qcomm_of(Identity()).sharders()
    assert RW not in bags.sharding_types("cpu")  # without the subclass


@pytest.mark.dist
def test_the_order_of_sharding_types_is_taken_over(ranks):
    assert all(rank["orders"] == [[TW, RW], [RW, TW]] for rank in ranks)


def test_a_module_around_a_collection_has_the_collections_parameters_or_its_own():
    qcomm, special = qcomm_of(Rowwise(8)), {"learning_rate": 0.125}
    with_its_own = {**RATES, FeatureProcessedEmbeddingBagCollection: special}
    for params, expected in (
        (RATES, RATES[EmbeddingBagCollection]),
        (with_its_own, special),
        (special,) * 2,
    ):
        sharders = {s.module_type: s for s in qcomm.sharders(fused_params=params)}
        assert sharders[FeatureProcessedEmbeddingBagCollection].fused_params == expected
    assert len(sharders) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"fused_params": {FusedEmbeddingBagCollection: {}}},
            "'FusedEmbeddingBagCollection': expected one dict of parameters for each type of mod",
        ),
        ({"fused_params": {EmbeddingCollection: {}, "learning_rate": 1}}, "'learning_rate': expec"),
        ({"subclasses": [Case]}, "Case'> extends none of CodedEmbeddingBagCollectionSharder, "),
        (
            {"subclasses": [RowWiseBags, type("Other", (RowWiseBags,), {})]},
            "both extend CodedEmbeddingBagCollectionSharder",
        ),
    ],
)
def test_what_fits_no_sharder_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        qcomm_of(Identity()).sharders(**options)


@pytest.mark.parametrize(
    "base",
    [
        CodedEmbeddingBagCollectionSharder,
        CodedManagedCollisionEmbeddingBagCollectionSharder,
        FeatureProcessedEmbeddingBagCollectionSharder,
    ],
)
def test_a_subclass_stands_where_its_base_would(base):
    kind = type("Pinned", (base,), {"sharding_types": lambda _self, _device: [RW]})
    plain, pinned = (qcomm_of(Identity()).sharders(subclasses=s) for s in ((), [kind]))
    changed = [a for a, b in zip(plain, pinned, strict=True) if type(a) is not type(b)]
    assert [type(a) for a in changed] == [base]
