"""The planted model: coarse rows hurt the planted table, and no other."""

import pytest

from examples import planted, study
from trec_qcomm import load_preset, quality
from trec_qcomm.config import config_from_dict

EXACT = {"codec": "identity"}


def coarse_rows_of(feature):
    """Return a config that sends 2 bits a value of one feature's rows, and the others exactly."""
    rules = {f"t_{feature}": {"codec": "rowwise", "bits": 2}, "*": EXACT}
    return {"embedding": [{"tables": t, "forward": c, "backward": EXACT} for t, c in rules.items()]}


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(study, "STEPS", 15)
    monkeypatch.setattr(study, "TEST_STEPS", 2)


def test_coarse_rows_hurt_the_planted_table_alone(short):
    trained = planted.train(load_preset("fp32"), 0, 0.0)
    assert isinstance(trained, quality.Trained)
    exact = trained.evaluate(load_preset("fp32"))["loss"]
    assert exact == pytest.approx(trained.metrics["loss"], rel=1e-6)
    coarse = {f: config_from_dict(coarse_rows_of(f)) for f in study.FEATURES}
    added = {f: trained.evaluate(config)["loss"] / exact - 1 for f, config in coarse.items()}
    others = [abs(change) for feature, change in added.items() if feature != planted.PLANTED]
    assert added[planted.PLANTED] > 10 * max(others)
    assert added[planted.PLANTED] > 0.1
    assert planted.train(coarse[planted.PLANTED], 0, 0.0).metrics["loss"] > 1.03 * exact
