"""Decisions of the guard by the values of tables, whatever the loss says."""

import pytest

from tests.lab.guard.policies import BAD, policy, read
from trec_qcomm.lab.guard.tables import Signals

A = ("a", "forward")


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("answer", ["raise", "warn", "error"])
@pytest.mark.parametrize(("reason", "rung"), [("unencodable", 2), ("pointless", 3), ("nan", 3)])
def test_what_signals_ask_for(reason, rung, answer, direction):
    guard, key = policy(**{f"on_{reason}": answer}), ("b", direction)
    outcome = read(guard, 0.0, {key: BAD[reason], ("a", direction): Signals(bits=4.0)})
    assert outcome.told == [(answer, reason, "b")]
    assert outcome.moves == ({key: rung} if answer == "raise" else {})
    if answer == "raise":
        return
    # An error stays one, a warning is given again only after the table was well.
    again = read(guard, 0.0, {key: BAD[reason]})
    assert again.told == ([(answer, reason, "b")] if answer == "error" else [])
    read(guard, 0.0, {key: Signals()})
    assert read(guard, 0.0, {key: BAD[reason]}).told == [(answer, reason, "b")]


def test_a_codec_that_breaks_values_is_made_finer_until_it_does_not():
    guard = policy()
    moves = [read(guard, 0.0, {A: BAD["unencodable"]}).moves for _ in range(3)]
    assert moves == [{A: 2}, {A: 3}, {}]


def test_float32_is_not_at_fault_but_nan_is_told_once():
    guard = policy(start=3, lowest=3, on_nan="raise")
    assert read(guard, 0.0, {A: BAD["pointless"]}).told == []
    told = [read(guard, 0.0, {A: BAD["nan"]}).told for _ in range(2)]
    assert told == [[("warn", "nan", "a")], []]


def test_with_action_warn_signals_only_tell():
    guard = policy(action="warn", on_nan="raise")
    for reason, signal in BAD.items():
        assert read(guard, 0.0, {A: signal}).told == [("warn", reason, "a")]
    assert set(guard.rungs.values()) == {1}


def test_signals_that_are_not_the_guard_s_are_not_read():
    assert read(policy(), 0.0, {("z", "forward"): BAD["unencodable"]}).events == []


def after(guard, signals, key=A):
    """Read one probe for each signal, with a calm loss; return the table's events."""
    events = [event for signal in signals for event in read(guard, 0.0, {key: signal}).events]
    return [(e.probe, e.event, e.reason, e.rung_after) for e in events if e.table == key[0]]


def decibels(guard, numbers, key=A):
    return after(guard, [Signals(snr_db=number) for number in numbers], key)


@pytest.mark.parametrize("key", [A, ("b", "backward")])
def test_a_codec_that_does_much_worse_at_once_is_made_finer(key):
    guard = policy(lower_after=100)
    assert decibels(guard, [20.0] * 5 + [8.0, 20.0, 8.0], key) == []  # not twice in a row
    assert decibels(guard, [8.0], key) == [(8, "raise", "drift", 2)]
    # It must now be as good as the coarser rung was: 12 dB is, 9 dB is not.
    assert decibels(guard, [12.0, 12.0, 9.0], key) == []
    assert decibels(guard, [9.0], key) == [(12, "raise", "drift", 3)]
    assert decibels(guard, [0.0] * 5, key) == []  # exact is not at fault


@pytest.mark.parametrize(("snr", "rung"), [(-20.0, 3), (-14.0, 2)])
def test_a_drift_skips_rungs_that_are_too_coarse(snr, rung):
    assert decibels(policy(), [20.0] * 5 + [snr] * 2) == [(6, "raise", "drift", rung)]


def test_a_finer_codec_is_expected_to_be_better_than_a_coarser_one_was():
    guard = policy(lower_after=100)
    assert decibels(guard, [20.0] * 5 + [8.0] * 2) == [(6, "raise", "drift", 2)]
    assert decibels(guard, [40.0] * 3 + [20.0] * 2) == [(11, "raise", "drift", 3)]


def test_a_codec_that_does_worse_slowly_is_left_to_the_loss():
    assert decibels(policy(), [40.0 - 3 * n for n in range(15)]) == []
    assert decibels(policy(), [20.0, 20.0, 5.0, 5.0, 5.0]) == []  # nothing was expected yet


@pytest.mark.parametrize(
    ("lost", "rms", "rungs"),
    [
        (0.16, 0.5, [2]),
        (0.6, 0.5, [3]),  # float32
        (0.6, None, [3]),
        (0.6, 0.3, []),  # beside values that have not grown fourfold
    ],
)
def test_values_that_are_lost_beside_values_that_have_grown_are_a_drift_too(lost, rms, rungs):
    well = Signals(snr_db=20.0, lost_share=0.05, rms=0.1)
    bad = Signals(snr_db=20.0, lost_share=lost, rms=rms)
    events = after(policy(), [well] * 5 + [bad] * 3)
    assert events == [(6, "raise", "drift", rung) for rung in rungs]


def test_a_drifted_table_that_is_tried_again_goes_back_and_waits():
    guard, events = policy(lower_after=4, patience=6), []
    for _ in range(40):
        snr = {1: 20.0 if guard.probe < 4 else 0.0, 2: 32.0, 3: None}[guard.rungs[A]]
        events += decibels(guard, [snr])
    moves = [(kind, reason, after) for _, kind, reason, after in events]
    assert moves[:3] == [("raise", "drift", 2), ("lower", "calm", 1), ("raise", "drift", 2)]
    assert [probe for probe, *_ in events[:4]] == [6, 12, 14, 26]
