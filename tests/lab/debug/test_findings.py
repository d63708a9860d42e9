"""Rules of findings on records made by hand, at and below their limits."""

from dataclasses import replace

import pytest

from trec_qcomm.lab.debug.findings import (
    BIAS,
    DRIFT,
    EARLY_DRIFT,
    EARLY_STEPS,
    LOST_SHARE,
    SNR_GAP_DB,
    findings,
)
from trec_qcomm.lab.records import DebugRecord

PLAIN = DebugRecord(
    configuration="mine", rank=0, step=0, name="t", direction="backward", codec="Rowwise(bits=4)",
    num_rows=8, num_values=64, num_nan=0, num_inf=0, num_broken=0, rms=1.0, snr_db=20.0, bias=0.01,
    lost_share=0.1, rms_drift=0.3, time=1.0, bits=5.0,
)  # fmt: skip


def series(*changes, **shared):
    """Return a record a step, each with its changes."""
    return [replace(PLAIN, step=step, **shared, **change) for step, change in enumerate(changes)]


def kinds(records):
    return [(f.kind, f.step) for f in findings(records)]


@pytest.mark.parametrize(
    ("kind", "good", "bad", "shared"),
    [
        ("nan", {"num_nan": 0}, {"num_nan": 1}, {}),
        ("nan", {"num_inf": 0}, {"num_inf": 2}, {}),
        ("broken", {"num_broken": 0}, {"num_broken": 1}, {}),
        ("drift", {"rms_drift": EARLY_DRIFT - 0.01}, {"rms_drift": EARLY_DRIFT}, {}),
        ("drift", {"rms_drift": 0.01 - EARLY_DRIFT}, {"rms_drift": -EARLY_DRIFT}, {}),
        ("lost", {"lost_share": LOST_SHARE - 0.01}, {"lost_share": LOST_SHARE}, {}),
        ("bias", {"bias": 0.01 - BIAS}, {"bias": -BIAS}, {}),
    ],
)
def test_the_first_step_is_named(kind, good, bad, shared):
    assert kinds(series({}, good, {}, **shared)) == []
    assert kinds(series(good, {}, bad, bad, **shared)) == [(kind, 2)]
    assert kinds(series(good, bad, is_shadow=True, **shared)) == []


def test_a_jump_may_be_smaller_once_the_running_mean_knows_more():
    early = [{} for _ in range(EARLY_STEPS - 1)]
    assert kinds(series(*early, {"rms_drift": DRIFT})) == []
    assert kinds(series(*early, {}, {"rms_drift": DRIFT})) == [("drift", EARLY_STEPS)]
    assert kinds(series(*early, {}, {"rms_drift": DRIFT - 0.01})) == []


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({"rms_drift": 9.0}, {"num_values": 3}),  # few values may be small by chance
        ({"lost_share": 0.9}, {"codec": "TopK(density=0.1)"}),  # drops them by design
        ({"lost_share": 0.9}, {"codec": "Threshold(threshold=1.0)"}),
    ],
)
def test_what_a_codec_does_by_design_is_no_finding(change, shared):
    assert kinds(series({}, change, **shared)) == []


def residuals(*ratios):
    return series(
        *({"residual_over_gradient": ratio} for ratio in ratios),
        direction="residual", lost_share=None, bias=None,
    )  # fmt: skip


def test_a_residual_that_grows_is_told_from_one_that_saturates():
    assert kinds(residuals(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)) == [("residual", 3)]
    assert kinds(residuals(1.0, 4.0, 6.0, 7.0, 7.4, 7.6, 7.7)) == []
    assert kinds(residuals(0.1, 0.2, 0.3, 0.4, 0.5)) == []  # less than a step's gradient
    assert kinds(residuals(2.0, 4.0, 8.0)) == []  # too few to say


def test_error_feedback_makes_up_for_what_is_lost():
    gradient = series({"lost_share": 0.9, "bias": 0.5}, direction="dense")
    assert {kind for kind, _ in kinds(gradient)} == {"lost", "bias"}
    assert kinds([*gradient, *residuals(1.0)]) == []


def test_a_table_noisier_than_the_others_is_named_with_its_bound():
    def tables(gap, **shared):
        bounded = {"codec": "ErrorBounded(...)", "tolerance": 0.01}
        loose = {"snr_db": 30.0 - gap, "tolerance": 0.1}
        return [replace(PLAIN, name=n, snr_db=30.0, **bounded | shared) for n in "abc"] + [
            replace(PLAIN, name="d", **bounded | shared | loose)
        ]

    (finding,) = findings(tables(SNR_GAP_DB))
    assert (finding.kind, finding.place.name) == ("snr", "d")
    assert finding.what.endswith("; its bound is 0.1, theirs 0.01")
    assert findings(tables(SNR_GAP_DB - 0.1)) == []
    others = tables(SNR_GAP_DB)
    assert findings([replace(others[0], codec="Float6()"), *others[2:]]) == []  # too few alike
