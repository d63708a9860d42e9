"""Ratios of configurations: those counted, and those by measured sizes of tables."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.simulate import sample_records
from tests.lab.simulate.sample_records import DISTINCT, network, write
from trec_qcomm.ext.planner.cost_model import Throughput
from trec_qcomm.lab.records import NetworkRecord, TableSizesRecord, TrafficBytes, read
from trec_qcomm.lab.simulate.between_hosts import sent_between_hosts
from trec_qcomm.lab.simulate.measured import load_steps
from trec_qcomm.lab.simulate.plans import Cluster, Link, Model
from trec_qcomm.lab.simulate.ratios import dense_values, find_configuration, ratios_at
from trec_qcomm.lab.simulate.step import Device, simulate

FAST = Link(latency_s=0.0, gb_s=1e9)
RESULTS = Path(__file__).resolve().parents[3] / "examples" / "bench" / "results"
CLUSTERS = RESULTS / "clusters.jsonl"
LINKS = (RESULTS / "links.jsonl", RESULTS / "links_4_hosts.jsonl")


def test_ratios_are_those_of_the_records(tmp_path: Path) -> None:
    path = tmp_path / "net.jsonl"
    steps, _ = load_steps(write(path, sample_records.everything(path)))
    stock, half, int8, best = (
        find_configuration(name, steps) for name in ("stock", "stock_fp16", "int8", "best")
    )
    assert (stock.forward, stock.backward, stock.dense) == pytest.approx((1, 1, 1))
    assert (half.forward, half.backward, half.dense) == pytest.approx((2, 2, 1))
    assert (int8.forward, int8.backward, int8.dense) == (4, 4, 1)
    assert (best.forward, best.backward, best.dense) == pytest.approx((10, 8, 2))
    assert (stock.distinct_share, half.distinct_share, int8.distinct_share) == (1, 1, 1)
    assert best.distinct_share == DISTINCT
    assert (stock.is_ours, int8.is_ours) == (False, True)
    assert (best.sizes_first, int8.sizes_first) == (True, False)
    with pytest.raises(ValueError, match=r"configs: 'int16' was not measured; expected of .*int8"):
        find_configuration("int16", steps)


@pytest.mark.parametrize("kind", ["embedding_forward", "embedding_backward", "dense"])
def test_a_ratio_of_nothing_is_refused(tmp_path: Path, kind: str) -> None:
    record = network("int8")
    nothing = {kind: TrafficBytes(raw_nbytes=1.0, distinct_nbytes=1.0, wire_nbytes=0.0)}
    record = replace(record, traffic=tuple({**host, **nothing} for host in record.traffic or ()))
    steps, _ = load_steps(write(tmp_path / "net.jsonl", [record]))
    group = kind.removeprefix("embedding_")
    message = rf"configs: 'int8' has no ratio of {group}: .* expected both"
    with pytest.raises(ValueError, match=message):
        find_configuration("int8", steps)


def test_ratios_of_the_committed_records() -> None:
    steps, _ = load_steps(*LINKS)
    for name in {step.configuration for step in steps}:
        configuration = find_configuration(name, steps)
        assert 0 < configuration.distinct_share <= 1
        assert configuration.is_ours == (not name.startswith("stock"))
    best = find_configuration("best", steps)
    assert best.ids > 10  # packed
    assert best.dense_algorithm == "two_shot"


@pytest.mark.parametrize(
    ("plan", "sharding"), [("tw", "table_wise"), ("rw", "row_wise"), ("twrw", "two_level")]
)
def test_ratios_by_sizes_of_tables_are_those_counted(plan: str, sharding: str) -> None:
    """Check 4 hosts of one rank, with sizes of another, table-wise training with `best`.

    Nothing is fitted. Codecs of fixed size without merged bags leave nothing to predict.
    """
    sizes = [r for r in read(RESULTS / "table_sizes.jsonl") if isinstance(r, TableSizesRecord)]
    steps = [s for s in load_steps(*LINKS)[0] if (s.plan, s.num_hosts) == (sharding, 4)]
    cluster = Cluster(num_gpus=4, gpus_per_node=1, intra=FAST, inter=FAST)
    groups = ["forward", "backward", "ids"]
    groups += ["distinct_share"] if plan == "tw" else []  # others count rows of no id as merged
    for name, within in (("int8", 0.001), ("fast", 0.03), ("best", 0.07)):
        counted = find_configuration(name, steps)
        predicted = ratios_at(counted, sizes, plan, cluster)
        for group in groups:
            ratio = getattr(predicted, group) / getattr(counted, group)
            assert ratio == pytest.approx(1, abs=within), (name, group)
    unknown = find_configuration("stock", steps)
    assert ratios_at(unknown, sizes, plan, cluster) == unknown


def test_the_model_of_clusters_has_the_counted_dense_bytes() -> None:
    """On links of 1 GB/s without latency, and free ones inside nodes, seconds are bytes."""
    steps, _ = load_steps(CLUSTERS)
    model = Model(num_ids=(1.0,), dim=64, batch_size=256, dense_values=dense_values(steps))
    free = Throughput(encode_gb_s=float("inf"), decode_gb_s=float("inf"))
    device = Device(compute_s=0.0, memory_gb_s=float("inf"), throughput=free, overlap=0.0)
    for record in read(CLUSTERS):
        if record.configuration not in ("fast", "by_node"):
            continue
        assert isinstance(record, NetworkRecord)
        cluster = Cluster(
            num_gpus=record.num_hosts * record.ranks_per_host,
            gpus_per_node=record.ranks_per_host,
            intra=FAST,
            inter=Link(latency_s=0.0, gb_s=1.0),
        )
        configuration = find_configuration(record.configuration, steps)
        seconds = simulate(configuration, "tw", model, cluster, device).parts_s["dense"]
        (dense, *_) = (host["dense"] / record.ranks_per_host for host in sent_between_hosts(record))
        assert 1e9 * seconds == pytest.approx(dense, rel=0.01), record.configuration
