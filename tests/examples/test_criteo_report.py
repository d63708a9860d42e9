"""Metrics against their definitions."""

import math

import pytest
import torch
from report.metrics import score, step_seconds


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


def test_step_times_leave_out_the_first_steps() -> None:
    def p50(step_s: list[float]) -> float:
        percentiles = step_seconds(step_s)
        assert percentiles is not None
        return percentiles.p50

    assert p50([9.0] * 10 + [0.001] * 5) == pytest.approx(0.001)
    assert p50([0.002]) == pytest.approx(0.002)
    assert step_seconds([]) is None
