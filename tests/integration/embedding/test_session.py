"""What a QComm keeps: names, counters and steps, whatever the plan and the modules are.

And its sharders, which take the options of TorchRec's own.
"""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import nn
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

from tests.comm.rows.test_all_to_all import SpiedCollective
from tests.integration.sharded_models.batches import batch
from tests.integration.sharded_models.cases import CPU, MODULES, RW, TW, Case, Model, Table, plan
from tests.integration.sharded_models.training import fused_params, qcomm_of, shard, shard_by, train
from trec_qcomm import Config, Identity, QComm, Rowwise, TableRule
from trec_qcomm.core.checks import deferring, raise_first
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.integration.embedding.sharders import CodedEmbeddingBagCollectionSharder
from trec_qcomm.testing import run_ranks

TABLES = (Table("a", 16, ("f1",)), Table("b", 16, ("f2",)))


class Twins(nn.Module):
    """Two managed collision modules whose tables have the same names."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.one, self.two = MODULES["mc_ebc"](case), MODULES["mc_ebc"](case)

    def forward(self, features):
        return sum(module(features)[0].values().sum() for module in (self.one, self.two))


def steps_of_twins():
    case = Case(tables=TABLES, sharding=RW, module="mc_ebc")
    qcomm = qcomm_of(Identity())
    where = plan(case, dist.get_world_size())
    dmp = DistributedModelParallel(
        Twins(case),
        device=CPU,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        plan=ShardingPlan({"one": where, "two": where}),
        sharders=qcomm.sharders(fused_params=fused_params(case)),
        data_parallel_wrapper=qcomm.data_parallel_wrapper(),
    )
    dmp(batch(case, 0, dist.get_rank())).backward()
    return {name: int(step) for name, step in qcomm.state_dict()["steps"].items()}


def steps_under_another_plan():
    """Load the state of a table-wise run into a row-wise one; return its steps."""
    first = qcomm_of(Rowwise(4))
    case = Case(tables=TABLES, sharding=TW)
    train(shard(case, first), case, 3, linear=True)
    second = qcomm_of(Rowwise(4))
    shard(Case(tables=TABLES, sharding=RW), second)
    second.load_state_dict(first.state_dict())
    return {name: int(step) for name, step in second.state_dict()["steps"].items()}


def resharded(qcomm):
    """Train, let TorchRec move a table to the other rank, and train on.

    Returns: the outputs of all steps, and the sizes of merged batches that FBGEMM was given then.
    """
    case = Case(tables=TABLES, sharding=TW)
    dmp = shard(case, qcomm)
    outputs = train(dmp, case, 2, linear=True)
    before = dmp.plan.plan["sparse"]["a"]
    rank = 1 - before.ranks[0]
    blocks = [replace(b, placement=f"rank:{rank}/cpu") for b in before.sharding_spec.shards]
    moved = replace(before, ranks=[rank], sharding_spec=EnumerableShardingSpec(blocks))
    dmp.reshard({"sparse": (0.0, {"a": moved})})
    sizes = []
    for kernel in (k for lookup in dmp.module.sparse._lookups for k in lookup.modules()):
        if isinstance(kernel, SplitTableBatchedEmbeddingBagsCodegen):
            kernel.register_forward_pre_hook(
                lambda _kernel, _args, options: sizes.append(
                    options.get("batch_size_per_feature_per_rank")
                ),
                with_kwargs=True,
            )
    return outputs + train(dmp, case, 2, linear=True), sizes


def resharded_as_stock():
    rule = TableRule(tables="*", forward=Identity(), backward=Identity(), unique_bags=True)
    qcomm = QComm(Config(embedding=(rule,)))
    (stock, _), (ours, sizes) = resharded(None), resharded(qcomm)
    return {
        "equal": [
            all(torch.equal(a[key], b[key]) for key in a) for a, b in zip(stock, ours, strict=True)
        ],
        "sizes": sizes,
        "calls": qcomm.stats().embedding_forward.num_calls,
        "steps": {name: int(step) for name, step in qcomm.state_dict()["steps"].items()},
    }


def dense_bytes(**options):
    """Return (raw, wire) bytes of the dense all-reduce in one step."""
    case = Case(tables=TABLES, sharding=TW)
    qcomm = qcomm_of(Identity())
    sharders = qcomm.sharders(fused_params=fused_params(case))
    wrapper = qcomm.data_parallel_wrapper(**options)
    dmp = shard_by(case, sharders=sharders, data_parallel_wrapper=wrapper)
    train(dmp, case, 1, linear=False)
    dense = qcomm.stats().to_dict()["dense"]
    return dense["raw_nbytes"], dense["wire_nbytes"]


def ids_sent_and_counted():
    """Return bytes of a managed collision module that also returns the remapped ids."""
    case = Case(tables=TABLES, sharding=RW, module="mc_ec")
    qcomm = qcomm_of(Identity())
    model = Model(case)
    model.sparse._return_remapped_features = True
    dmp = shard(case, qcomm, model)
    spy = dist.all_to_all_single = SpiedCollective()
    try:
        with torch.no_grad():
            dmp(batch(case, 0, dist.get_rank()))
    finally:
        dist.all_to_all_single = spy._real
    stats = qcomm.stats().to_dict()
    return spy.nbytes, sum(stats[kind]["wire_nbytes"] for kind in ("input", "embedding_forward"))


def errors_of_a_bad_frame():
    """Return what each call of state_dict says after a GPU found a bad frame.

    Before the last call the model is sharded again.
    """
    qcomm = qcomm_of(Identity())
    case = Case(tables=TABLES, sharding=TW)
    shard(case, qcomm)
    collectives = qcomm._session.collectives
    ((module, by_name),) = collectives._by_module.items()
    ((name, op),) = by_name.items()
    error = CorruptFrameError("made up", rank=1)
    with deferring(op.checks):
        raise_first(torch.tensor([0], dtype=torch.int32), lambda _segment: error)
    errors = []
    for _ in range(3):
        with pytest.raises(CorruptFrameError) as raised:
            qcomm.state_dict()
        errors.append(str(raised.value))
        if len(errors) == 2:
            collectives.make(type(op), op.pg, op.layout, module=module, name=name)
    return errors


def everything():
    return {
        "twins": steps_of_twins(),
        "replanned": steps_under_another_plan(),
        "resharded": resharded_as_stock(),
        "bad frame": errors_of_a_bad_frame(),
        "dense": dense_bytes(),
        "dense fp16": dense_bytes(allreduce_comm_precision="fp16"),
        "remapped ids": ids_sent_and_counted(),
        "both": rates_and_types(),
        "orders": [order_of_types(order) for order in ([TW, RW], [RW, TW])],
    }


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(everything, 2)


@pytest.mark.dist
def test_modules_with_equal_tables_are_told_apart(ranks):
    assert all(results["twins"] == {"one": 1, "two": 1} for results in ranks)


@pytest.mark.dist
def test_a_run_is_resumed_under_another_plan(ranks):
    assert all(results["replanned"] == {"sparse": 3} for results in ranks)


@pytest.mark.dist
def test_a_resharded_module_goes_on(ranks):
    for results in (rank["resharded"] for rank in ranks):
        assert results["equal"] == [True] * 4
        assert results["calls"] == 4
        assert results["steps"] == {"sparse": 4}
    sizes = [size for rank in ranks for size in rank["resharded"]["sizes"]]
    assert sizes == [None, None], "FBGEMM looked up batches that were not padded"


@pytest.mark.dist
def test_no_state_is_given_out_after_a_bad_frame(ranks):
    assert all(results["bad frame"] == ["frame from rank 1: made up"] * 3 for results in ranks)


@pytest.mark.dist
def test_torchrecs_own_precision_of_the_dense_part_is_counted(ranks):
    for results in ranks:
        raw, wire = results["dense"]
        assert raw == wire > 0
        assert results["dense fp16"] == (raw, raw // 2)


@pytest.mark.dist
def test_returned_ids_of_managed_collisions_are_counted(ranks):
    for results in ranks:
        sent, counted = results["remapped ids"]
        assert sent == counted > 0


BAGS, ROWS = Case(tables=TABLES, sharding=TW), Case(tables=TABLES, sharding=TW, module="ec")
SGD = EmbOptimType.EXACT_SGD
RATES = {EmbeddingBagCollection: 0.5, EmbeddingCollection: 0.25}


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
    torch.manual_seed(0)
    qcomm = qcomm_of(Identity())
    arguments = qcomm.dmp_arguments()
    arguments["sharders"] = [
        sharder
        for kind, rate in RATES.items()
        for sharder in qcomm.sharders(
            fused_params={"optimizer": SGD, "learning_rate": rate}, subclasses=[RowWiseBags]
        )
        if sharder.module_type is kind
    ]
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
    arguments = qcomm_of(Identity()).dmp_arguments(sharded_module_order_overwrite=order)
    return shard_by(case, **arguments).module.sparse._sharding_types


@pytest.mark.dist
def test_sharders_of_several_calls_have_their_own_parameters(ranks):
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


def test_a_module_around_a_collection_has_its_parameters():
    params = {"learning_rate": 0.125}
    sharders = {s.module_type: s for s in qcomm_of(Rowwise(8)).sharders(fused_params=params)}
    assert sharders[FeatureProcessedEmbeddingBagCollection].fused_params == params
    assert len(sharders) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fused_params": {EmbeddingCollection: {}}}, "EmbeddingCollection'>: expected names of p"),
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
