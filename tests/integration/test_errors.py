"""What is not supported is refused at construction, by name."""

import re
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import SparseType
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.comm_ops import set_use_sync_collectives
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.types import DataType

from tests.integration.sharded_models.batches import batch as sequence_batch
from tests.integration.sharded_models.cases import DP, MODULES, RW, Case, Table, plan
from tests.integration.sharded_models.training import shard as shard_case
from tests.integration.small_model import CPU, batch, qcomm_of, shard
from trec_qcomm import (
    Config,
    ErrorBounded,
    Fbgemm,
    Float6,
    GradientRule,
    Identity,
    QComm,
    Rowwise,
    TableGradientRule,
    TableRule,
)
from trec_qcomm.ext.dct.codecs import TopK
from trec_qcomm.integration.embedding.bases import _check_device
from trec_qcomm.integration.session import Session
from trec_qcomm.lab.debug.rule import DebugRule
from trec_qcomm.lab.guard.rule import GuardRule
from trec_qcomm.testing import run_ranks


def message_of(make) -> str:
    try:
        make()
    except ValueError as error:
        return str(error)
    return "no error"


def rule(*patterns):
    return TableRule(tables=patterns, forward=Identity(), backward=Identity())


@contextmanager
def sync_collectives():
    """Turn the switch on and off again; TorchRec's own context does not end after an exception."""
    set_use_sync_collectives(True)
    try:
        yield
    finally:
        set_use_sync_collectives(False)


def shard_with_sync_collectives():
    with sync_collectives():
        shard(qcomm_of(Identity()))


def switch_to_sync_collectives():
    dmp = shard(qcomm_of(Identity()))
    with sync_collectives():
        dmp(batch(0, 2))


def shard_twice():
    qcomm = qcomm_of(Identity())
    for _ in range(2):
        shard(qcomm)


def ranks_that_differ():
    codec = Rowwise(4) if dist.get_rank() == 0 else Rowwise(8)
    shard(qcomm_of(codec))


def wrapped(qcomm, module, plan):
    return DistributedModelParallel(
        module, device=CPU, plan=ShardingPlan(plan), **qcomm.dmp_arguments()
    )


def model_without_tables(*patterns):
    """Train one step with dense gradients as float6; return (bytes sent, bytes in float32)."""
    dense = GradientRule(codec=Float6(), min_numel=1)
    qcomm = QComm(Config(embedding=(rule(*patterns),), dense=dense))
    dmp = wrapped(qcomm, torch.nn.Linear(256, 2), {})
    dmp(torch.ones(1, 256)).sum().backward()
    sent = qcomm.stats().dense
    return sent.wire_nbytes, sent.raw_nbytes


def without_wrapper(backward=True, **gradients):
    """Run a step of a model that our sharders sharded under TorchRec's own wrapper."""
    qcomm = qcomm_of(Identity(), **gradients)
    dmp = shard(qcomm, sharders=qcomm.sharders())
    with torch.set_grad_enabled(backward):
        dmp(batch(0, 2))


def without_sharders(config):
    """Run a step of a model that stock sharders sharded under our wrapper."""
    qcomm = QComm(config)
    wrapper = qcomm.data_parallel_wrapper()
    dmp = shard(None, wrapper=wrapper)
    dmp(batch(0, 2)).sum().backward()


SEQUENCES = Case(tables=(Table("a", 16, ("f1",)),), sharding=RW, module="ec")


def shard_with_dense_kernel(case):
    """Shard with the kernel that TorchRec's sharding_plan chooses on CPU."""
    module_plan = plan(case, dist.get_world_size())
    for sharding in module_plan.values():
        sharding.compute_kernel = "dense"
    model = torch.nn.Module()
    model.sparse = MODULES[case.module](case)
    wrapped(qcomm_of(Identity()), model, {"sparse": module_plan})


class Prioritized(torch.nn.Module):
    """Model of TorchRec's prioritized exchanges."""

    def __init__(self):
        super().__init__()
        from torchrec.modules.pec_embedding_modules import PECEmbeddingCollection

        self.sparse = PECEmbeddingCollection(MODULES["ec"](SEQUENCES))
        self.over = torch.nn.Linear(16, 1)

    def forward(self, features):
        return self.over(self.sparse(features)["f1"].values())


def prioritized(*, with_wrapper):
    """Run a step of a PECEmbeddingCollection that holds our sharder."""
    from torchrec.distributed.pec_embedding import PECEmbeddingCollectionSharder

    qcomm = qcomm_of(Identity())
    arguments = qcomm.dmp_arguments()
    sequences = next(s for s in arguments["sharders"] if s.module_type is EmbeddingCollection)
    arguments["sharders"].append(PECEmbeddingCollectionSharder(sequences))
    if not with_wrapper:
        del arguments["data_parallel_wrapper"]
    dmp = DistributedModelParallel(
        Prioritized(),
        device=CPU,
        plan=ShardingPlan({"sparse": plan(SEQUENCES, dist.get_world_size())}),
        **arguments,
    )
    assert not with_wrapper
    dmp(sequence_batch(SEQUENCES, 0, dist.get_rank()))


def prioritized_messages():
    """Return what is said of a PECEmbeddingCollection, which TorchRec has from 1.7 on."""
    if find_spec("torchrec.distributed.pec_embedding") is None:
        return {}
    return {
        "prioritized": message_of(lambda: prioritized(with_wrapper=True)),
        "prioritized batch": message_of(lambda: prioritized(with_wrapper=False)),
    }


def dtype_messages():
    """Return what is said of rows that are not float32, by case."""
    half, tables = {"output_dtype": SparseType.FP16}, (Table("a", 8, ("f",)), Table("b", 8, ("g",)))
    two = Case(tables=tables, sharding=RW, fused_params=tuple(half.items()))
    module_plan = plan(two, dist.get_world_size())
    module_plan["b"].output_dtype = DataType.FP32
    model = nn.Module()
    model.sparse = MODULES["ebc"](two)
    mixed = qcomm_of(Identity()).dmp_arguments(fused_params=half)
    mixed["plan"] = ShardingPlan({"sparse": module_plan})
    merging = replace(rule("*"), unique_bags=True)
    int8, bf16 = ({"output_dtype": dtype} for dtype in (SparseType.INT8, SparseType.BF16))
    return {
        "int8 rows": message_of(lambda: shard(qcomm_of(Identity()), **int8)),
        "bf16 on CPU": message_of(lambda: shard(qcomm_of(Identity()), **bf16)),
        "codec of fp32": message_of(lambda: shard(qcomm_of(Identity(), TopK(density=0.1)), **half)),
        "mixed rows": message_of(lambda: DistributedModelParallel(model, device=CPU, **mixed)),
        "merged fp16": message_of(lambda: shard(QComm(Config(embedding=(merging,))), **half)),
        "guarded fp16": message_of(lambda: shard(qcomm_of(Identity(), guard=GuardRule()), **half)),
        "debugged fp16": message_of(lambda: shard(qcomm_of(Identity(), debug=DebugRule()), **half)),
        "captured fp16": message_of(lambda: capture_half(**half)),
    }  # fmt: skip


def capture_half(**options):
    qcomm = qcomm_of(Identity())
    shard(qcomm, **options)
    qcomm.capture_rows(steps=1)


def all_messages():
    dense = {"dense": GradientRule(codec=Float6())}
    tables = {"data_parallel": TableGradientRule(codec=Identity())}
    missing = QComm(Config(embedding=(rule("tw_*", "cw*"),), source="m.yaml"))
    superfluous = QComm(Config(embedding=(rule("tw_*", "user*"), rule("*")), source="s.yaml"))
    hidden = QComm(Config(embedding=(rule("*"), rule("tw_*")), source="h.yaml"))
    return {
        "missing": message_of(lambda: shard(missing)),
        "hidden": message_of(lambda: shard(hidden)),
        "superfluous": message_of(lambda: shard(superfluous)),
        **dtype_messages(),
        "unsharded": message_of(lambda: shard(qcomm_of(Identity()), more_plans={"over": {}})),
        "sync": message_of(shard_with_sync_collectives),
        "switched": message_of(switch_to_sync_collectives),
        "twice": message_of(shard_twice),
        "narrow shards": message_of(lambda: shard(qcomm_of(Fbgemm("mx4")))),
        "differ": message_of(ranks_that_differ),
        "no such path": message_of(
            lambda: shard(qcomm_of(Identity()), more_plans={"tower.bags": {}})
        ),
        "no tables": message_of(lambda: model_without_tables("user*")),
        "no wrapper": message_of(lambda: without_wrapper(**dense)),
        "no wrapper of tables": message_of(lambda: without_wrapper(**tables)),
        "no sharders": message_of(lambda: without_sharders(qcomm_of(Identity(), **dense).config)),
        "index dedup": message_of(
            lambda: shard_case(replace(SEQUENCES, dedup=True), qcomm_of(Identity()))
        ),
        "dense rows": message_of(lambda: shard_with_dense_kernel(SEQUENCES)),
        "replicated rows": message_of(
            lambda: shard_case(replace(SEQUENCES, sharding=DP), qcomm_of(Identity()))
        ),
        "dense bags": message_of(lambda: shard_with_dense_kernel(replace(SEQUENCES, module="ebc"))),
        **prioritized_messages(),
        "allowed": [
            message_of(lambda: without_wrapper(backward=False, **dense)),
            message_of(without_wrapper),
            message_of(lambda: without_sharders(Config(**dense))),
        ],
        "dense alone": model_without_tables("*"),
    }


@pytest.fixture(scope="module")
def messages():
    return run_ranks(all_messages, 2)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("missing", ["m.yaml: embedding: no pattern matches table 'dp'", "tw_*, cw*"]),
        ("hidden", ["h.yaml: embedding[1].tables: embedding[0] before it takes all its tables"]),
        ("superfluous", ["s.yaml: embedding[0].tables: 'user*' matches no table", "cw_shared"]),
        ("int8 rows", ["'tw_first': output_dtype", "int8", "allowed: fp32, fp16, bf16"]),
        ("bf16 on CPU", ["'tw_first': output_dtype bf16", "allowed on a CPU: fp32, fp16"]),
        (
            "codec of fp32",
            [
                "backward: TopK",
                "torch.float16 rows: cast, error_bounded, float6, float8, identity, rowwise",
            ],
        ),
        ("mixed rows", ["rows of table 'a' are torch.float16 and those of 'b' torch.float32"]),
        ("merged fp16", ["unique_bags: true for table", "torch.float16", "false, auto"]),
        ("guarded fp16", ["guard: table", "torch.float16; allowed: torch.float32"]),
        ("debugged fp16", ["debug: table", "torch.float16; allowed: torch.float32"]),
        ("captured fp16", ["capture_rows: there are rows of torch.float16", "output_dtype fp32"]),
        ("unsharded", ["'over' is a Linear, for which no sharder was given"]),
        ("sync", ["use_sync_collectives"]),
        ("switched", ["use_sync_collectives"]),
        ("twice", ["'ebc' is sharded already; one QComm"]),
        ("narrow shards", ["codec fbgemm, precision mx4: rows of"]),
        ("no such path", ["plan: the model has no module 'tower.bags'; sharded is: ebc"]),
        ("no tables", ["'user*' matches no table; the model has: no tables"]),
        ("no wrapper", ["config: dense: no wrapper", "data_parallel_wrapper=qcomm.data_para"]),
        ("no wrapper of tables", ["config: data_parallel: no wrapper", "leave out data_parallel"]),
        ("index dedup", ["use_index_dedup: FBGEMM has its operator", "unique_bags: true"]),
        ("dense rows", ["plan: table 'a': row_wise with compute_kernel dense: on CPU"]),
        ("replicated rows", ["plan: table 'a': data_parallel with compute_kernel dense", "fused"]),
        ("dense bags", ["no error"]),
        ("prioritized", ["PECEmbeddingCollection is not supported around a sharder of trec_qcomm"]),
        ("prioritized batch", ["PECEmbeddingCollection is not supported around a sharder"]),
        ("no sharders", ["no table was sharded by this QComm; pass sharders=qcomm.sharders()"]),
        (
            "differ",
            [
                "config: ranks of the group have different configs or tables:\n"
                "embedding[0].forward.bits: 4 on rank 0; 8 on rank 1\n"
                "embedding[0].backward.bits: 4 on rank 0; 8 on rank 1"
            ],
        ),
    ],
)
def test_message(messages, case, words):
    if case.startswith("prioritized") and case not in messages[0]:
        pytest.skip("TorchRec 1.6 has no PECEmbeddingCollection")
    for message in (rank[case] for rank in messages):
        for word in words:
            assert word in message


@pytest.mark.dist
def test_half_of_the_arguments_is_enough_where_the_config_has_no_use_for_the_other(messages):
    assert all(rank["allowed"] == ["no error"] * 3 for rank in messages)


@pytest.mark.dist
def test_a_model_without_tables_goes_with_a_pattern_for_all(messages):
    for wire_nbytes, raw_nbytes in (rank["dense alone"] for rank in messages):
        assert 0 < wire_nbytes < raw_nbytes / 3


@pytest.mark.parametrize(
    ("device", "backward", "message"),
    [
        ("mps", Identity(), "device mps: trec_qcomm has kernels for cpu and cuda"),
        (
            "cuda:0",
            ErrorBounded(0.01, encoder="vector_lz"),
            "device cuda:0: table 't': no GPU kernels for ErrorBounded(bound=0.01, mode='rel', ",
        ),
    ],
)
def test_devices_without_kernels_are_refused(device, backward, message):
    rules = {"t": TableRule(tables=("*",), forward=Rowwise(4), backward=backward)}
    _check_device(torch.device("cpu"), rules)
    with pytest.raises(ValueError, match=re.escape(message)):
        _check_device(torch.device(device), rules)


def test_a_guard_that_a_gpu_cannot_have_is_refused():
    guard = GuardRule(ladder=[Rowwise(4), ErrorBounded(0.01, encoder="vector_lz"), Identity()])
    message = "device cuda:0: guard: table 't': no GPU kernels for ErrorBounded(bound=0.01, "
    rules = (TableRule(tables=("*",), forward=Rowwise(4), backward=Identity()),)
    config = Config(embedding=rules, guard=guard)
    extension = Session(config).extensions["guard"]
    extension.check_tables(["t"], torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match=re.escape(message)):
        extension.check_tables(["t"], torch.float32, torch.device("cuda:0"))
