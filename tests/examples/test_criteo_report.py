"""Metrics against their definitions."""

import math

import pytest
import torch
from compare import _cells
from report import score, shown, step_seconds

from trec_qcomm.lab.records import TrainingRecord


def test_metrics_follow_their_definitions() -> None:
    predictions = torch.tensor([0.9, 0.2, 0.6, 0.1], dtype=torch.float64)
    labels = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    metrics = score(predictions, labels)
    logloss = -sum(map(math.log, (0.9, 0.8, 0.4, 0.1))) / 4
    assert metrics["auc"] == pytest.approx(2 / 4)  # two of the four pairs (1, 0) are in order
    assert metrics["logloss"] == pytest.approx(logloss)
    assert metrics["ne"] == pytest.approx(logloss / math.log(2))  # half of the labels are 1
    assert metrics["calibration"] == pytest.approx(1.8 / 2)
    assert metrics["num_rows"] == 4


@pytest.mark.filterwarnings("error")
def test_what_one_class_leaves_undefined_is_no_number() -> None:
    for label in (0.0, 1.0):
        labels = torch.full((3,), label, dtype=torch.float64)
        metrics = score(torch.full_like(labels, 0.5), labels)
        assert metrics == {"logloss": pytest.approx(math.log(2)), "num_rows": 3}
        assert [shown(metrics, name, 3) for name in ("auc", "logloss")] == ["n/a", "0.693"]
        assert _cells(TrainingRecord(configuration="a", steps=1, metrics=metrics), _OTHER)[1:4] == [
            *["n/a", "0.6931", "n/a"]
        ]


_OTHER = TrainingRecord(configuration="b", steps=1, metrics={"ne": 0.5})


def test_step_times_leave_out_the_first_steps() -> None:
    def p50(step_s: list[float]) -> float:
        percentiles = step_seconds(step_s)
        assert percentiles is not None
        return percentiles.p50

    assert p50([9.0] * 10 + [0.001] * 5) == pytest.approx(0.001)
    assert p50([0.002]) == pytest.approx(0.002)
    assert step_seconds([]) is None
