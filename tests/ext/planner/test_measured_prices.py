"""The estimator with `measured`: expected bytes, distinct bags, ids and lookups, by hand."""

import math
from dataclasses import replace

import pytest
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator

from tests.ext.planner.test_planner import (
    BATCH,
    DIM,
    FREE,
    INTER,
    INTRA,
    NODE,
    NUM_NODES,
    WORLD,
    perfs,
    topology,
)
from trec_qcomm import QComm, Rowwise, Throughput
from trec_qcomm.config import config_from_dict, config_to_dict, write_yaml
from trec_qcomm.ext.planner.cost_model import wire_nbytes
from trec_qcomm.ext.planner.sizes import FixedSizes, SizeCurve
from trec_qcomm.ext.planner.traffic import TouchedTable, reduced_nbytes
from trec_qcomm.lab.records import SegmentSizes, TableSizes, TableSizesRecord
from trec_qcomm.wire.frame import overhead_nbytes

DISTINCT, ROWS = BATCH // 4, 1000  # as tables of test_planner have
CURVE = SegmentSizes(dim=DIM, num_rows=(1.0, 512.0), nbytes=(16.0, 4096.0))


def qcomm_of(forward, *, merges=True):
    rule = {"tables": ["*"], "forward": forward, "backward": {"codec": "identity"}}
    return QComm(config_from_dict({"embedding": [rule | {"unique_bags": merges}]}))


def record_of(qcomm, *, num_bags=BATCH, curves=()):
    table = TableSizes(
        dim=DIM, num_rows=ROWS, num_bags=num_bags, num_distinct=DISTINCT, forward=curves
    )
    config = write_yaml(config_to_dict(qcomm.config))
    return TableSizesRecord(
        configuration="mine", config=config, num_ranks=2, num_steps=1, tables={"t": table}
    )


IDENTITY = {"codec": "identity"}
BOUNDED = {"codec": "error_bounded", "bound": 0.01}


def test_distinct_bags_are_sent_and_looked_up_once() -> None:
    where, qcomm = topology(), qcomm_of(IDENTITY)
    plain = perfs(qcomm.estimator(where, throughput=FREE), where)
    estimator = qcomm.estimator(where, throughput=FREE, measured=record_of(qcomm), pipeline=True)
    ours = perfs(estimator, where)
    codec = qcomm.config.rule_for("t").forward
    sent_ms = WORLD * wire_nbytes(codec, (DISTINCT,), DIM) / INTER
    for field in ("fwd_comms", "bwd_comms"):
        assert getattr(ours["table_wise"], field) == pytest.approx(sent_ms)
    for kind in ("table_wise", "row_wise", "table_row_wise", "column_wise"):
        for field in ("fwd_compute", "bwd_compute"):
            expected = getattr(plain[kind], field) / 4
            assert getattr(ours[kind], field) == pytest.approx(expected)
    assert ours["data_parallel"] == plain["data_parallel"]
    # Row-wise, only partial rows with an id are sent: a shard has 63 of 1000 rows.
    block = -(-ROWS // WORLD)
    nbytes = FixedSizes(codec).nbytes(DISTINCT * block / ROWS, DIM) + overhead_nbytes(1)
    assert ours["row_wise"].fwd_comms == pytest.approx(WORLD * nbytes / INTER)
    # Two-level, the rows of as many batches as there are nodes go to each rank of the node first.
    inside = wire_nbytes(codec, (DISTINCT * NUM_NODES,), DIM)
    two_level_ms = NODE * inside / INTRA + NUM_NODES * wire_nbytes(codec, (DISTINCT,), DIM) / INTER
    assert ours["table_row_wise"].fwd_comms == pytest.approx(two_level_ms)


def test_ids_cost_their_time_unless_they_travel_beside_the_step() -> None:
    where, qcomm = topology(), qcomm_of(IDENTITY)
    prices = [
        perfs(
            qcomm.estimator(where, throughput=FREE, measured=[record_of(qcomm)], pipeline=pipeline),
            where,
        )
        for pipeline in (False, True)
    ]
    block = -(-ROWS // WORLD)
    ids_ms = {
        "table_wise": WORLD * DISTINCT * (8 + 4) / INTER,
        "column_wise": WORLD * DISTINCT * (8 + 4) / INTER,
        "row_wise": WORLD * DISTINCT * (8 * block / ROWS + 4) / INTER,
    }
    for kind, ms in ids_ms.items():
        alone, beside = prices[0][kind], prices[1][kind]
        assert beside.input_dist_comms == pytest.approx(ms)
        assert alone.fwd_comms - beside.fwd_comms == pytest.approx(ms)
        assert alone.bwd_comms == beside.bwd_comms
    packed = QComm(config_from_dict(config_to_dict(qcomm.config) | {"ids": {"codec": "packed"}}))
    estimator = packed.estimator(where, throughput=FREE, measured=record_of(packed), pipeline=True)
    assert perfs(estimator, where)["table_wise"].input_dist_comms < ids_ms["table_wise"] / 10


def test_a_codec_of_no_fixed_size_has_its_measured_bytes() -> None:
    """Without a measurement the upper bound, which is raw rows; row-wise the bound is divided."""
    where, qcomm = topology(), qcomm_of(BOUNDED, merges=False)
    record = record_of(qcomm, curves=(CURVE,))
    estimator = qcomm.estimator(where, throughput=FREE, measured=record, pipeline=True)
    ours, upper = perfs(estimator, where), perfs(qcomm.estimator(where, throughput=FREE), where)
    raw_ms = WORLD * BATCH * DIM * 4 / INTER
    assert upper["table_wise"].fwd_comms >= raw_ms
    assert ours["table_wise"].fwd_comms == pytest.approx(
        WORLD * (4096 + overhead_nbytes(1)) / INTER
    )
    curve = SizeCurve(CURVE.num_rows, CURVE.nbytes)
    half = curve.at(BATCH) * 32 / DIM + overhead_nbytes(1)  # of 32 columns
    assert ours["column_wise"].fwd_comms == pytest.approx(WORLD * half / INTER)


def test_what_was_not_measured_is_named() -> None:
    where, qcomm = topology(), qcomm_of(IDENTITY)

    def price(record):
        perfs(qcomm.estimator(where, throughput=FREE, measured=record), where)

    with pytest.raises(ValueError, match=r"'t' with 1024 bags a rank, and 512 are planned"):
        price(record_of(qcomm, num_bags=2 * BATCH))
    other = record_of(qcomm)
    renamed = TableSizesRecord(
        configuration="mine", config=other.config, num_ranks=2, num_steps=1,
        tables={"u": other.tables["t"]},
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"measured: nothing of table 't'; there is: u; a DATA_PA"):
        price(renamed)
    with pytest.raises(ValueError, match="pipeline: only with measured"):
        qcomm.estimator(where, throughput=FREE, pipeline=True)


def test_data_parallel_tables_cost_the_rows_that_ranks_touch_together() -> None:
    """Without a `data_parallel` section TorchRec's price stays, which is that of whole tables."""
    where, qcomm = topology(), qcomm_of(IDENTITY)
    rule = {"codec": {"codec": "rowwise", "bits": 8}, "algorithm": "two_shot"}
    coded = QComm(config_from_dict(config_to_dict(qcomm.config) | {"data_parallel": rule}))
    stock = perfs(qcomm.estimator(where, throughput=FREE), where)["data_parallel"]
    free = perfs(EmbeddingPerfEstimator(topology(inter_host_bw=math.inf)), topology())
    optimizer_ms = free["data_parallel"].bwd_comms

    def price(**measured):
        estimator = coded.estimator(where, throughput=FREE, **measured)
        return perfs(estimator, where)["data_parallel"]

    def expected_ms(num_touched):
        table = TouchedTable(dim=DIM, num_rows=ROWS, num_touched=num_touched)
        nbytes = reduced_nbytes([table], Rowwise(8), "two_shot", WORLD)
        return optimizer_ms + nbytes * WORLD / (WORLD - 1) / INTER

    record = record_of(coded)
    joint = replace(
        record, tables={"t": replace(record.tables["t"], num_joint=256.0, num_joint_ranks=4)}
    )
    prices = {
        "bound": (price(), ROWS * (1 - (1 - BATCH / ROWS) ** WORLD)),
        "one rank's": (price(measured=record), ROWS * (1 - (1 - DISTINCT / ROWS) ** WORLD)),
        "all ranks'": (price(measured=joint), DISTINCT * (256 / DISTINCT) ** 2),
    }
    for perf, num_touched in prices.values():
        assert perf.bwd_comms == pytest.approx(expected_ms(num_touched))
        for field in ("fwd_compute", "bwd_compute", "fwd_comms"):
            assert getattr(perf, field) == getattr(stock, field)
    slow = Throughput(encode_gb_s=1.0, decode_gb_s=2.0)
    perf = perfs(coded.estimator(where, throughput=slow, measured=joint), where)["data_parallel"]
    raw = DISTINCT * (256 / DISTINCT) ** 2 * DIM * 4
    codec_ms = raw * (1 + 1 / WORLD + 1) / 1e6
    assert perf.bwd_comms - price(measured=joint).bwd_comms == pytest.approx(codec_ms)
