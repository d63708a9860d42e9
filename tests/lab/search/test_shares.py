"""Shares of tables: what a training of the cheaper part of them makes of a guess."""

import pytest

from trec_qcomm import Identity, Rowwise
from trec_qcomm.lab.search.losses import Change, LossModel, Rest, cheaper_half, corrected, guessed
from trec_qcomm.lab.search.noise import ALL as ALL_TABLES
from trec_qcomm.lab.search.noise import Measured, Noise
from trec_qcomm.lab.search.probes import COARSE

INT4, INT8 = Rowwise(4), Rowwise(8)
RELATIVE = {Identity(): 0.0, INT8: 4e-5, INT4: 0.01, COARSE: 0.1}
ALL = {("forward", INT4): Change(10.0, 0.3)}  # one of the tables is spoilt
CHEAP = frozenset("bcd")


def measured(effects: dict[str, list[float]] | None = None) -> Measured:
    noise = {
        (table, direction, codec): Noise(nbytes=100, rows=10, dim=16, relative=relative)
        for table in "abcd" for direction in ("forward", "backward")
        for codec, relative in RELATIVE.items()
    }  # fmt: skip
    changes = (effects or {}).items()
    return Measured(noise, {(table, COARSE): percents for table, percents in changes})


def model(rest: Change) -> LossModel:
    probes = measured()
    part = Rest(INT4, CHEAP, all=ALL["forward", INT4], rest=rest)
    shares = corrected(guessed(probes, COARSE), probes, {"forward": part})
    return LossModel(probes, shares, ALL)


def loss(model: LossModel, tables: str, codec: Rowwise) -> float:
    return sum(model.loss(table, "forward", codec) or 0.0 for table in tables)


def test_a_table_that_is_spoilt_makes_no_other_one_dear():
    sure = model(Change(0.0, 0.1))
    assert loss(sure, "bcd", INT4) < 0.2  # of 10 %, of which equal shares would be 7.5 %
    assert loss(sure, "a", INT4) == pytest.approx(10, rel=0.02)
    assert loss(sure, "a", INT8) < 0.05


def test_a_training_that_shows_nothing_leaves_the_guess():
    assert loss(model(Change(4.0, 50.0)), "bcd", INT4) == pytest.approx(7.5, rel=0.05)


def test_no_table_is_worth_a_share_of_what_another_one_is():
    """A table whose effect is chance is worth about its error, however dear the dearest one is."""
    effects = {"a": [30.0, 31.0, 29.0], "b": [0.01, -0.01, 0.0], "c": [0.0, 0.01, -0.01]}
    shares = guessed(measured(effects | {"d": [0.4, 0.5, 0.6]}), COARSE)["forward"]
    assert shares["a"] > 0.97
    assert 0 < shares["b"] < 0.005
    assert shares["d"] == pytest.approx(0.5 / 30.5, rel=0.2)


def test_rows_cost_what_the_float32_model_feels_only_where_it_is_served():
    probes = measured()
    probes.effects[ALL_TABLES, INT4] = [80.0, 80.0, 80.0]  # codecs switched on
    shares = guessed(probes, COARSE)
    trained = LossModel(probes, shares, ALL)
    assert loss(trained, "abcd", INT4) == pytest.approx(10)
    served = LossModel(probes, shares, ALL, served=shares["forward"])
    assert loss(served, "abcd", INT4) == pytest.approx(80)
    assert loss(served, "a", INT4) == pytest.approx(20)


def test_the_cheaper_half_has_no_more_than_half_of_the_expected_loss():
    shares = {"forward": {"a": 0.6, "b": 0.1, "c": 0.1, "d": 0.2}}
    assert cheaper_half(shares, measured(), "forward", INT4) == CHEAP
    shares = {"forward": {"a": 1.0}}
    assert cheaper_half(shares, measured(), "forward", INT4) == frozenset()
