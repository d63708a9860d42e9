"""Stats: typed, as dicts, and as one table of a step."""

from trec_qcomm import QComm
from trec_qcomm.core.stats import TRAFFIC_GROUPS, TRAFFIC_KINDS, KindStats, Stats

ROWS = KindStats(
    raw_nbytes=400_000, distinct_nbytes=100_000, wire_nbytes=20_000, wire_s=0.5,
    encode_s={"a": 0.1, "b": 0.1}, decode_s={"a": 0.04},
)  # fmt: skip


def test_groups_hold_every_kind_once() -> None:
    grouped = [kind for kinds in TRAFFIC_GROUPS.values() for kind in kinds]
    assert sorted(grouped) == sorted(TRAFFIC_KINDS) == sorted(Stats().by_kind())


def test_the_table_is_of_a_step() -> None:
    stats = Stats(embedding_forward=ROWS, intra_embedding_forward=ROWS, num_steps=4)
    lines = str(stats).splitlines()
    assert lines[0] == "Sent by this rank to others, a step, 4 steps:"
    assert [line.split()[0] for line in lines[2:]] == [*TRAFFIC_GROUPS, "all"]
    numbers = "200.0 50.0 10.0 20.00 100.00 250.00 20.00"
    assert lines[2].split() == ["forward", *numbers.split()]
    assert lines[-1].split() == ["all", *numbers.split()]
    assert lines[3].split() == ["backward", "0.0", "0.0", "0.0", "-", "-", "-", "-"]
    assert "in all:" in str(Stats(dense=ROWS))


def test_dicts_have_every_kind_and_the_bags() -> None:
    counted = Stats(dense=ROWS).to_dict()
    assert counted["dense"]["raw_nbytes"] == 400_000
    assert counted["dense"]["encode_s"] == {"a": 0.1, "b": 0.1}
    assert counted["input"]["bags"] == {"num_bags": 0, "num_sent": 0, "tables": {}}


def test_a_qcomm_says_what_is_active() -> None:
    qcomm = QComm.from_preset("best")
    assert "preset best" in repr(qcomm)
    assert "unique_bags auto" in repr(qcomm)
    assert "dense: Cast" in repr(qcomm)
    with qcomm.bypass():
        assert repr(qcomm).endswith("bypassed)")
    assert "dense: DDP" in repr(QComm.from_preset("int4"))
    assert "all" in qcomm.summary()
