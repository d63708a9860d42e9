"""Which bytes leave a host of several ranks, by plan and algorithm of the all-reduce."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from trec_qcomm.lab.records import NetworkRecord, Percentiles, TrafficBytes, read
from trec_qcomm.lab.simulate.between_hosts import sent_between_hosts

RESULTS = Path(__file__).resolve().parents[3] / "examples" / "bench" / "results"
KINDS = ("embedding_forward", "intra_embedding_forward", "dense", "intra_dense", "input")
PLAN_FILE = "Plan(sharding='{}', rules=({}), cluster=None)"
DENSE = "dense: {{codec: {{codec: cast, dtype: bf16}}, algorithm: {}}}"
BY_NODE = (
    "dense: {algorithm: hierarchical, cross: {codec: cast, dtype: bf16},"
    " intra: {codec: cast, dtype: bf16}}"
)


def record(config, *, plan="table_wise", num_hosts=2, ranks_per_host=2):
    traffic = {kind: TrafficBytes(wire_nbytes=300.0) for kind in KINDS}
    return NetworkRecord(
        configuration="a",
        config=config,
        setup={"plan": plan},
        num_hosts=num_hosts,
        ranks_per_host=ranks_per_host,
        rate="none",
        num_steps=1,
        step_s=Percentiles(p20=1.0, p50=1.0, p80=1.0),
        sent_nbytes=(1.0,) * num_hosts,
        sent_packets=(1.0,) * num_hosts,
        traffic=(traffic,) * (num_hosts * ranks_per_host),
    )


@pytest.mark.parametrize(
    ("plan", "config", "forward", "dense"),
    [  # of 300 bytes of each of 2 ranks: two of a rank's three peers are on the other host
        ("table_wise", DENSE.format("two_shot"), 400, 400),
        ("table_wise", DENSE.format("ring"), 400, 300),
        ("table_wise", "ids: {codec: packed}", 400, 300),  # gloo's is a ring
        ("two_level", DENSE.format("two_shot"), 600, 400),
        ("two_level", BY_NODE, 600, 600),
        (PLAN_FILE.format("two_level", ""), DENSE.format("two_shot"), 600, 400),
        (PLAN_FILE.format("row_wise", ""), DENSE.format("two_shot"), 400, 400),
    ],
)
def test_by_plan_and_algorithm(plan, config, forward, dense) -> None:
    hosts = sent_between_hosts(record(config, plan=plan))
    assert hosts[0] == hosts[1]
    expected = {"forward": forward, "backward": 0, "dense": dense, "ids": 400}
    assert hosts[0] == pytest.approx(expected)


def test_replicated_tables_have_the_share_of_their_own_algorithm() -> None:
    """Check 300 bytes of each of 2 ranks, with a ring of dense gradients beside them."""
    tables = "data_parallel: {{codec: identity, algorithm: {}}}"
    both = DENSE.format("ring").replace("{", "{{").replace("}", "}}") + "\n" + tables
    of_tables = {"data_parallel": TrafficBytes(wire_nbytes=300.0)}
    alone = replace(record(both.format("two_shot")), traffic=(of_tables,) * 4)
    assert [host["dense"] for host in sent_between_hosts(alone)] == pytest.approx([400, 400])
    for algorithm in ("ring", "recursive_doubling"):
        with pytest.raises(
            ValueError, match=f"a: data_parallel: algorithm: {algorithm}: the share"
        ):
            sent_between_hosts(replace(alone, config=both.format(algorithm)))


def test_nodes_that_are_no_hosts_are_an_error() -> None:
    by_node = record("ids: {codec: packed}", plan="two_level")
    sent_between_hosts(replace(by_node, setup={"plan": "two_level", "ranks_per_node": 2}))
    with pytest.raises(ValueError, match="a: ranks_per_node: 4: expected that of a host, 2"):
        sent_between_hosts(replace(by_node, setup={"plan": "two_level", "ranks_per_node": 4}))


def test_a_plan_of_which_only_some_tables_are_by_node_is_an_error() -> None:
    some = PLAN_FILE.format("row_wise", "Rule(sharding='two_level', tables=('a',)),")
    with pytest.raises(ValueError, match="plan: row_wise, two_level: the shares"):
        sent_between_hosts(record("ids: {codec: packed}", plan=some))
    planned = record("ids: {codec: packed}", plan="planned")
    with pytest.raises(ValueError, match="a: plan: planned has tables by node"):
        sent_between_hosts(planned)
    flat = tuple({k: v for k, v in rank.items() if "intra" not in k} for rank in planned.traffic)
    assert sent_between_hosts(replace(planned, traffic=flat))[0]["forward"] == pytest.approx(400)


def test_what_cannot_be_told_is_an_error() -> None:
    with pytest.raises(ValueError, match="algorithm: recursive_doubling: the share that leaves"):
        sent_between_hosts(record(DENSE.format("recursive_doubling")))
    with pytest.raises(ValueError, match="a: no traffic was counted"):
        sent_between_hosts(replace(record(None), traffic=None))


@pytest.fixture(scope="module")
def clusters():
    return [r for r in read(RESULTS / "clusters.jsonl") if isinstance(r, NetworkRecord)]


def test_what_ranks_counted_is_what_left_their_host(clusters):
    """Gloo's own messages, up to 20 KB of a host, are in the kernel's count alone."""
    for each in clusters:
        counted = fmean(sum(host.values()) for host in sent_between_hosts(each))
        kernel = fmean(each.payload_nbytes)
        assert kernel - 20e3 < counted < 1.001 * kernel


def test_by_node_sends_half_of_a_flat_all_reduce_from_nodes_of_two(clusters):
    """Compare two configurations that differ in the all-reduce alone, by the kernel's count."""
    of_two = {
        (r.configuration, r.setup["plan"]): r
        for r in clusters
        if (r.num_hosts, r.ranks_per_host, r.rate) == (2, 2, "none")
    }
    for plan in ("table_wise", "two_level"):
        flat, by_node = of_two["fast", plan], of_two["by_node", plan]
        saved = fmean(flat.payload_nbytes) - fmean(by_node.payload_nbytes)
        assert saved == pytest.approx(sent_between_hosts(flat)[0]["dense"] / 2, rel=0.01)
