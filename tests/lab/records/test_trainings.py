"""The record of a user's own training, in three lines."""

from pathlib import Path

import pytest
import yaml

import trec_qcomm
from trec_qcomm.core.stats import KindStats, Stats
from trec_qcomm.lab.records import (
    TRAFFIC_KINDS,
    TrafficBytes,
    TrainingRecord,
    append,
    read,
    traffic_of,
)

ROOT = Path(__file__).parents[3]


def test_a_training_with_the_plugin_says_what_it_sent(tmp_path: Path) -> None:
    qcomm = trec_qcomm.QComm.from_yaml(ROOT / "configs" / "int4.yaml")
    record = TrainingRecord.from_qcomm(
        qcomm, name="mine", setup={"batch_size": 2048}, losses=[0.7, 0.6], metrics={"ne": 0.9}
    )
    append(tmp_path / "mine.jsonl", record)
    assert read(tmp_path / "mine.jsonl") == [record]
    assert (record.configuration, record.steps, record.num_ranks) == ("mine", 2, 1)
    assert trec_qcomm.QComm(trec_qcomm.config.config_from_dict(yaml.safe_load(record.config)))
    assert record.traffic["dense"].wire_nbytes == 0
    assert record.environment.versions["torch"]


def test_plain_torchrec_has_neither_config_nor_traffic() -> None:
    record = TrainingRecord.from_qcomm(None, name="stock", steps=3, num_ranks=2, seed=1)
    assert (record.config, record.traffic) == (None, None)
    assert (record.steps, record.num_ranks, record.seed) == (3, 2, 1)


def test_traffic_is_that_of_a_step() -> None:
    stats = Stats(input=KindStats(raw_nbytes=12, distinct_nbytes=8, wire_nbytes=4))
    traffic = traffic_of(stats, 4)
    assert traffic["input"] == TrafficBytes(raw_nbytes=3, distinct_nbytes=2, wire_nbytes=1)
    assert set(traffic) == set(TRAFFIC_KINDS)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="batch_size"):
        TrainingRecord.from_qcomm(None, name="stock", batch_size=2)
