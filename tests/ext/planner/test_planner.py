"""The estimator changes what the wire and the codec cost, by TorchRec's own formulas, and no more.

Expected figures are worked out here from the topology: bytes / bandwidth, in ms.
"""

import copy
import math

import pytest
import torch
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    QCommsConfig,
    get_qcomm_codecs_registry,
)
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.constants import BATCHED_COPY_PERF_FACTOR
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import (
    EmbeddingPerfEstimator,
    EmbeddingStorageEstimator,
)
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from trec_qcomm import Cast, Identity, QComm, Rowwise, Throughput
from trec_qcomm.config import Config, TableRule, config_from_dict
from trec_qcomm.core.segments import Segments
from trec_qcomm.ext.planner.cost_model import measure_throughput, wire_nbytes
from trec_qcomm.wire.frame import lay_out

WORLD, NODE, BATCH, DIM = 16, 8, 512, 64
NUM_NODES = WORLD // NODE
INTER, INTRA, HBM = 12.5e6, 300e6, 900e6  # bytes a ms
FREE = Throughput(encode_gb_s=math.inf, decode_gb_s=math.inf)
RAW = BATCH * DIM * 4  # bytes of a batch
UNTOUCHED = ("fwd_compute", "bwd_compute", "input_dist_comms", "prefetch_compute")
COPY = WORLD * RAW * BATCHED_COPY_PERF_FACTOR / HBM
CODECS = [Identity(), Cast("bf16"), Rowwise(8), Rowwise(4)]
ALL_TYPES = [kind.value for kind in ShardingType]


def topology(**options):
    bandwidths = {"inter_host_bw": INTER, "intra_host_bw": INTRA, "hbm_mem_bw": HBM}
    place = {"world_size": WORLD, "local_world_size": NODE, "compute_device": "cuda"}
    return Topology(**place | bandwidths | options)


def tables(*names, rows=1000):
    return EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name=name, embedding_dim=DIM, num_embeddings=rows, feature_names=[f"f_{name}"]
            )
            for name in names
        ],
        device=torch.device("meta"),
    )


def qcomm(forward, backward=None, tables="*"):
    rule = TableRule(tables=(tables,), forward=forward, backward=backward or forward)
    return QComm(Config(embedding=(rule,)))


def options_of(estimator, where, *, module=None, sharder=None, constraints=None):
    """Return {(table, sharding type): its option}, priced by an estimator."""
    module = module or tables("t")
    names = [config.name for config in module.embedding_bag_configs()]
    constraints = constraints or {
        name: ParameterConstraints(sharding_types=ALL_TYPES, min_partition=32) for name in names
    }
    enumerator = EmbeddingEnumerator(
        where, BATCH, constraints, estimator=[estimator, EmbeddingStorageEstimator(where)]
    )
    options = enumerator.enumerate(module, [sharder or EmbeddingBagCollectionSharder()])
    return {
        (so.name, so.sharding_type): so
        for so in options
        if so.compute_kernel in ("fused", "dense")
        and (so.compute_kernel == "fused" or so.sharding_type == "data_parallel")
    }


def perfs(estimator, where, **options):
    """Return {sharding type: Perf of the first shard} of table t."""
    priced = options_of(estimator, where, **options)
    return {
        kind: copy.copy(so.shards[0].perf) for (name, kind), so in priced.items() if name == "t"
    }


def stock_perfs(where):
    return perfs(EmbeddingPerfEstimator(where), where)


def test_lookups_keep_their_price_and_data_parallel_all_of_it() -> None:
    where = topology()
    stock = stock_perfs(where)
    ours = perfs(qcomm(Rowwise(2)).estimator(where, throughput=FREE), where)
    assert set(ours) == set(ALL_TYPES)
    for kind, perf in ours.items():
        for field in UNTOUCHED:
            assert getattr(perf, field) == getattr(stock[kind], field), (kind, field)
    assert ours["data_parallel"] == stock["data_parallel"]


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_each_hop_costs_its_wire_bytes(codec) -> None:
    """The rest is a local copy, and the identity inside a node."""
    where = topology()
    ours = perfs(qcomm(codec).estimator(where, throughput=FREE), where)
    frame, column = wire_nbytes(codec, (BATCH,), DIM), wire_nbytes(codec, (BATCH,), 32)
    inside = NODE * wire_nbytes(Identity(), (BATCH * NUM_NODES,), DIM) / INTRA
    inside_column = NODE * wire_nbytes(Identity(), (BATCH * NUM_NODES,), 32) / INTRA
    expected = {
        "table_wise": (WORLD * frame / INTER, 0),
        "column_wise": (WORLD * column / INTER, 0),
        "table_column_wise": (WORLD * column / INTER, 0),
        "row_wise": (WORLD * frame / INTER, COPY),
        "table_row_wise": (inside + NUM_NODES * frame / INTER, COPY),
        "grid_shard": (inside_column + NUM_NODES * column / INTER, COPY / 2),
    }
    for kind, (hops_ms, copy_ms) in expected.items():
        assert ours[kind].fwd_comms == pytest.approx(hops_ms), kind
        assert ours[kind].bwd_comms == pytest.approx(hops_ms + copy_ms), kind


def test_without_codec_and_headers_it_is_torchrecs_estimate() -> None:
    """Check that identity adds headers alone: below 0.1 % of 512 rows of 128 bytes and more."""
    where = topology()
    stock = stock_perfs(where)
    ours = perfs(qcomm(Identity()).estimator(where, throughput=FREE), where)
    for kind, perf in ours.items():
        assert stock[kind].total <= perf.total <= 1.001 * stock[kind].total


def test_the_hop_inside_a_node_has_codecs_of_its_own() -> None:
    rule = {"tables": "*", "forward": {"codec": "identity"}, "backward": {"codec": "identity"}}
    rule["intra"] = {"forward": {"codec": "cast", "dtype": "bf16"}}
    where = topology()
    plain = perfs(qcomm(Identity()).estimator(where, throughput=FREE), where)
    half = QComm(config_from_dict({"embedding": [rule]})).estimator(where, throughput=FREE)
    ours = perfs(half, where)
    saved = plain["table_row_wise"].fwd_comms - ours["table_row_wise"].fwd_comms
    assert saved == pytest.approx(WORLD * RAW / 2 / INTRA, rel=1e-3)
    assert ours["table_row_wise"].bwd_comms == plain["table_row_wise"].bwd_comms
    assert ours["row_wise"] == plain["row_wise"]


def test_codec_time_is_added_for_both_ends() -> None:
    """The backward of a sum encodes one gradient and decodes that of every rank."""
    where = topology()
    codec, slow = Rowwise(4), Throughput(encode_gb_s=10.0, decode_gb_s=20.0)
    free = perfs(qcomm(codec).estimator(where, throughput=FREE), where)
    ours = perfs(qcomm(codec).estimator(where, throughput=slow), where)
    encode_ms, decode_ms = RAW / 10e9 * 1e3, RAW / 20e9 * 1e3
    world = WORLD * (encode_ms + decode_ms)
    two_level = world + NUM_NODES * (encode_ms + decode_ms)
    saved = (WORLD - 1) * encode_ms
    saved_inside = (NODE - 1) * encode_ms * NUM_NODES
    expected = {
        "table_wise": (world, world),
        "column_wise": (world / 2, world / 2),
        "row_wise": (world, world - saved),
        "table_row_wise": (two_level, two_level - saved_inside),
        "grid_shard": (two_level / 2, (two_level - saved_inside) / 2),
    }
    for kind, (forward, backward) in expected.items():
        assert ours[kind].fwd_comms - free[kind].fwd_comms == pytest.approx(forward), kind
        assert ours[kind].bwd_comms - free[kind].bwd_comms == pytest.approx(backward), kind


def test_tables_and_directions_have_their_own_codecs() -> None:
    where = topology()
    mine = qcomm(Rowwise(4), Cast("bf16"), tables="t")
    config = Config(
        embedding=(
            *mine.config.embedding,
            TableRule(tables=("*",), forward=Identity(), backward=Identity()),
        )
    )
    priced = options_of(
        QComm(config).estimator(where, throughput=FREE), where, module=tables("t", "u")
    )
    small = priced["t", "table_wise"].shards[0].perf
    large = priced["u", "table_wise"].shards[0].perf
    assert small.fwd_comms == pytest.approx(WORLD * wire_nbytes(Rowwise(4), (BATCH,), DIM) / INTER)
    assert small.bwd_comms == pytest.approx(
        WORLD * wire_nbytes(Cast("bf16"), (BATCH,), DIM) / INTER
    )
    assert large.fwd_comms == pytest.approx(WORLD * RAW / INTER, rel=1e-3)


def test_constraints_give_batches_and_poolings() -> None:
    where = topology()
    constraints = {
        "t": ParameterConstraints(
            sharding_types=["table_wise"], batch_sizes=[100], num_poolings=[3.0]
        )
    }
    estimator = qcomm(Rowwise(4)).estimator(where, constraints, throughput=FREE)
    priced = perfs(estimator, where, constraints=constraints)
    expected = WORLD * wire_nbytes(Rowwise(4), (300,), DIM) / INTER
    assert priced["table_wise"].fwd_comms == pytest.approx(expected)


def test_throughputs_by_codec_or_by_name() -> None:
    where = topology()
    fast, slow = FREE, Throughput(encode_gb_s=1.0, decode_gb_s=1.0)
    speeds = {Rowwise(4): fast, "rowwise": slow, "identity": fast}
    four, eight = (
        perfs(qcomm(Rowwise(bits)).estimator(where, throughput=speeds), where)["table_wise"]
        for bits in (4, 8)
    )
    assert four.fwd_comms == pytest.approx(WORLD * wire_nbytes(Rowwise(4), (BATCH,), DIM) / INTER)
    assert eight.fwd_comms > 2 * WORLD * RAW / 1e9 * 1e3
    with pytest.raises(ValueError, match=r"throughput: neither Cast\(.*\) nor 'cast' is among: "):
        perfs(qcomm(Cast("fp16")).estimator(where, throughput=speeds), where)


def test_on_cpu_the_codec_is_measured_here() -> None:
    where = topology(compute_device="cpu")
    codec = Rowwise(8)
    sent = WORLD * RAW
    seconds = measure_throughput(codec, DIM).codec_s(encoded_nbytes=sent, decoded_nbytes=sent)
    ours = perfs(qcomm(codec).estimator(where), where)["table_wise"]
    wire_ms = WORLD * wire_nbytes(codec, (BATCH,), DIM) / INTER
    assert ours.fwd_comms == pytest.approx(wire_ms + seconds * 1e3)


def test_a_gpu_cannot_be_measured_on_a_cpu() -> None:
    with pytest.raises(ValueError, match=r"throughput: measuring is for cpu, .* of cuda"):
        qcomm(Identity()).estimator(topology())


def test_a_table_that_no_pattern_matches_is_an_error() -> None:
    where = topology()
    with pytest.raises(ValueError, match="config: embedding: no pattern matches table 't'"):
        perfs(qcomm(Identity(), tables="x*").estimator(where, throughput=FREE), where)


def test_codecs_that_torchrec_prices_already_are_refused() -> None:
    where = topology()
    registry = get_qcomm_codecs_registry(QCommsConfig(forward_precision=CommType.FP16))
    with pytest.raises(ValueError, match=r"sharders: .* has a qcomm_codecs_registry"):
        perfs(
            qcomm(Identity()).estimator(where, throughput=FREE),
            where,
            sharder=EmbeddingBagCollectionSharder(qcomm_codecs_registry=registry),
        )


def test_a_small_codec_changes_the_plan() -> None:
    """All-reducing a table of 1.3 MB costs less than sending its rows in fp32, but not in int2."""
    where = topology()
    chosen = {}
    for name, codec in {"fp32": Identity(), "int2": Rowwise(2)}.items():
        estimators = [
            qcomm(codec).estimator(where, throughput=FREE),
            EmbeddingStorageEstimator(where),
        ]
        planner = EmbeddingShardingPlanner(
            topology=where,
            batch_size=BATCH,
            enumerator=EmbeddingEnumerator(where, BATCH, estimator=estimators),
            storage_reservation=FixedPercentageStorageReservation(0.1),
            debug=False,
        )
        plan = planner.plan(tables("t", rows=5000), [EmbeddingBagCollectionSharder()])
        chosen[name] = plan.plan[""]["t"].sharding_type
    assert chosen == {"fp32": "data_parallel", "int2": "table_row_wise"}


@pytest.mark.parametrize("codec", [*CODECS, Rowwise(2)], ids=repr)
@pytest.mark.parametrize(("num_rows", "dim"), [((512,), 64), ((3, 0, 7), 5), ((1,), 1)])
def test_a_frame_is_as_large_as_it_is_laid_out(codec, num_rows, dim) -> None:
    segments = Segments.packed(num_rows, dim)
    assert segments.num_rows.tolist() == list(num_rows)
    _, frames = lay_out(codec.max_nbytes(segments), [len(num_rows)])
    assert [wire_nbytes(codec, num_rows, dim)] == frames


@pytest.mark.parametrize("value", [0, -1.0, math.nan, True, "fast", None])
@pytest.mark.parametrize("field", ["encode_gb_s", "decode_gb_s"])
def test_a_throughput_is_a_number_above_zero(field, value) -> None:
    values = {"encode_gb_s": 1.0, "decode_gb_s": 1.0} | {field: value}
    with pytest.raises(ValueError, match=rf"throughput\.{field}: .* is not a number > 0"):
        Throughput(**values)
