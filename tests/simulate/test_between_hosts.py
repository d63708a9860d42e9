"""Which bytes leave a host of several ranks, by plan and algorithm of the all-reduce."""

from dataclasses import replace

import pytest

from trec_qcomm.records import NetworkRecord, Percentiles, TrafficBytes
from trec_qcomm.simulate.between_hosts import sent_between_hosts

KINDS = ("embedding_forward", "intra_embedding_forward", "dense", "intra_dense", "input")
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
        ("table_wise", DENSE.format("recursive_doubling"), 400, 300),
        ("two_level", DENSE.format("two_shot"), 600, 400),
        ("two_level", BY_NODE, 600, 600),
    ],
)
def test_by_plan_and_algorithm(plan, config, forward, dense) -> None:
    hosts = sent_between_hosts(record(config, plan=plan))
    assert hosts[0] == hosts[1]
    expected = {"forward": forward, "backward": 0, "dense": dense, "ids": 400}
    assert hosts[0] == pytest.approx(expected)


def test_hosts_of_one_rank_send_all() -> None:
    hosts = sent_between_hosts(record(DENSE.format("ring"), num_hosts=4, ranks_per_host=1))
    assert hosts == [{"forward": 600, "backward": 0, "dense": 600, "ids": 300}] * 4


def test_what_cannot_be_told_is_an_error() -> None:
    with pytest.raises(ValueError, match="algorithm: auto: which one was taken is not recorded"):
        sent_between_hosts(record(DENSE.format("auto")))
    with pytest.raises(ValueError, match="a: no traffic was counted"):
        sent_between_hosts(replace(record(None), traffic=None))
