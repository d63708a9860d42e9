"""Decisions of the guard by the values of tables, whatever the loss says."""

import pytest

from tests.lab.guard.decisions.policies import BAD, changes, kinds, policy
from trec_qcomm.lab.guard.decisions.values import Signals


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    ("reason", "handling", "kind"),
    [
        ("unencodable", "warn", "warn"),
        ("unencodable", "error", "error"),
        ("pointless", "exact", "raise"),
        ("pointless", "warn", "warn"),
        ("pointless", "error", "error"),
        ("nan", "exact", "raise"),
        ("nan", "warn", "warn"),
        ("nan", "error", "error"),
    ],
)
def test_what_signals_ask_for(reason, handling, kind, direction):
    guard = policy(**{f"on_{reason}": handling})
    key = ("b", direction)
    decision = guard.read(0, changes(0.0), {key: BAD[reason], ("a", direction): Signals(bits=4.0)})
    assert kinds(decision) == [(kind, reason, "b")]
    assert decision.moves == ({key: 3} if kind == "raise" else {})
    assert decision.errors == (decision.events if kind == "error" else ())
    # An error stays one, others are told again only after the table was well.
    again = guard.read(1, changes(0.0), {key: BAD[reason]})
    assert kinds(again) == ([(kind, reason, "b")] if kind == "error" else [])
    guard.read(2, changes(0.0), {key: Signals()})
    once_more = kinds(guard.read(3, changes(0.0), {key: BAD[reason]}))
    if kind == "raise":  # the exact rung is not at fault; NaN is told
        assert once_more == ([("warn", "nan", "b")] if reason == "nan" else [])
    else:
        assert once_more == [(kind, reason, "b")]


def test_a_codec_that_breaks_values_is_made_finer_until_it_does_not():
    guard, key = policy(), ("a", "forward")
    moves = [guard.read(n, changes(0.0), {key: Signals(num_broken=1)}).moves for n in range(3)]
    assert moves == [{key: 2}, {key: 3}, {}]


def test_with_action_warn_signals_only_tell():
    guard = policy(action="warn", on_nan="exact", least_snr_db=5.0, raise_after=1)
    for reason, signal in BAD.items():
        decision = guard.read(0, changes(0.0), {("a", "forward"): signal})
        assert kinds(decision) == [("warn", reason, "a")]
    decision = guard.read(0, changes(0.0), {("a", "forward"): Signals(snr_db=1.0)})
    assert kinds(decision) == [("warn", "snr", "a")]
    assert set(guard.rungs.values()) == {1}


def test_too_much_noise_moves_one_rung_after_raise_after_probes():
    guard = policy(least_snr_db=10.0, raise_after=2)
    low, well = Signals(snr_db=9.0), Signals(snr_db=11.0)
    for signal in (low, well, low):
        assert guard.read(0, changes(0.0), {("a", "backward"): signal}).events == ()
    decision = guard.read(0, changes(0.0), {("a", "backward"): low})
    assert kinds(decision) == [("raise", "snr", "a")]
    assert decision.moves == {("a", "backward"): 2}
    assert policy().read(0, changes(0.0), {("a", "backward"): low}).events == ()


def decibels(guard, numbers, key=("a", "forward")):
    """Read one probe for each signal to noise, with a calm loss; return the table's events."""
    events = []
    for snr in numbers:
        probe = guard.probe + 1
        events += guard.read(probe, changes(0.0, probe), {key: Signals(snr_db=snr)}).events
    return [(e.probe, e.kind, e.reason, e.before, e.after) for e in events if e.table == key[0]]


@pytest.mark.parametrize("key", [("a", "forward"), ("b", "backward")])
def test_a_codec_that_does_much_worse_at_once_is_made_finer(key):
    guard = policy(lower_after=100)
    assert decibels(guard, [20.0] * 5 + [8.0, 20.0, 8.0], key) == []  # not twice in a row
    assert decibels(guard, [8.0], key) == [(8, "raise", "drift", 1, 2)]
    # It must now be as good as the coarser rung was: 12 dB is, 9 dB is not.
    assert decibels(guard, [12.0, 12.0, 9.0], key) == []
    assert decibels(guard, [9.0], key) == [(12, "raise", "drift", 2, 3)]
    assert decibels(guard, [0.0] * 5, key) == []  # exact is not at fault


def test_a_drift_skips_rungs_that_are_too_coarse():
    assert decibels(policy(), [20.0] * 5 + [-20.0] * 2) == [(6, "raise", "drift", 1, 3)]
    assert decibels(policy(), [20.0] * 5 + [-14.0] * 2) == [(6, "raise", "drift", 1, 2)]


def test_with_raise_after_1_each_probe_moves_on():
    events = decibels(policy(raise_after=1), [20.0] * 5 + [8.0, 9.0, 9.0])
    assert events == [(5, "raise", "drift", 1, 2), (6, "raise", "drift", 2, 3)]


def test_a_codec_that_does_worse_slowly_is_left_to_the_loss():
    assert decibels(policy(), [40.0 - 3 * n for n in range(15)]) == []
    assert decibels(policy(), [20.0, 20.0, 5.0, 5.0, 5.0]) == []  # nothing was expected yet


@pytest.mark.parametrize(("lost", "rung"), [(0.16, 2), (0.6, 3)])  # 3: float32
def test_values_that_are_lost_are_a_drift_too(lost, rung):
    guard, events = policy(), []
    for probe in range(8):
        share = 0.05 if probe < 5 else lost
        signals = {("a", "forward"): Signals(snr_db=20.0, lost_share=share)}
        events += guard.read(probe, changes(0.0, probe), signals).events
    assert [(e.probe, e.reason, e.after) for e in events] == [(6, "drift", rung)]


@pytest.mark.parametrize(("rms", "num_moves"), [(0.3, 0), (0.5, 1)])
def test_values_are_lost_beside_values_that_have_grown_at_once(rms, num_moves):
    guard, events = policy(), []
    for probe in range(8):
        lost, size = (0.05, 0.1) if probe < 5 else (0.6, rms)
        signals = {("a", "forward"): Signals(snr_db=20.0, lost_share=lost, rms=size)}
        events += guard.read(probe, changes(0.0, probe), signals).events
    assert len(events) == num_moves


def test_a_drift_is_told_once_with_on_drift_warn():
    guard = policy(on_drift="warn")
    assert decibels(guard, [20.0] * 5 + [0.0] * 9) == [(6, "warn", "drift", 1, 1)]
    assert decibels(guard, [20.0] + [0.0] * 3) == [(16, "warn", "drift", 1, 1)]


def test_a_drifted_table_that_is_tried_again_goes_back_and_waits():
    guard = policy(lower_after=4, patience=6)
    events = []
    for _ in range(40):
        snr = {1: 20.0 if guard.probe < 4 else 0.0, 2: 32.0, 3: None}[guard.rungs["a", "forward"]]
        events += decibels(guard, [snr])
    moves = [(kind, reason, after) for _, kind, reason, _, after in events]
    assert moves[:3] == [("raise", "drift", 2), ("lower", "calm", 1), ("raise", "drift", 2)]
    at = [probe for probe, *_ in events]
    assert at[0] == 6
    assert at[1] - at[0] == 6
    assert at[2] - at[1] == 2
    assert at[3] - at[2] == 12


def test_signals_that_are_not_the_guard_s_are_not_read():
    guard = policy()
    assert guard.read(0, changes(0.0), {("z", "forward"): BAD["unencodable"]}).events == ()
