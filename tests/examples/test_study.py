"""The quickstart of quality.study: two towers learn, and its seed and config decide the rest."""

from math import log

from examples import study
from trec_qcomm import load_preset, quality


def test_a_seed_of_the_two_towers(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "STEPS", 15)
    monkeypatch.setattr(study, "TEST_STEPS", 2)
    limits = {"loss": study.LIMITS, "progressive_loss": study.LIMITS}
    result = quality.study(
        study.train,
        ["papers/int2"],
        1,
        limits=limits,
        path=tmp_path / "runs.jsonl",
        show_progress=False,
    )
    fp32, null, int2 = (record.training.metrics["loss"] for record in result.records)
    assert fp32 < 0.7 * log(2)  # it learns
    assert 0 < abs(null / fp32 - 1) < 1e-3
    assert abs(int2 / fp32 - 1) > 0.01
    assert study.train(load_preset("fp32"), 0, 0.0)["loss"] == fp32
