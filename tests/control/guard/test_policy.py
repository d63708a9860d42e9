"""Decisions of the guard, from numbers alone."""

import json
import random
from math import inf, nan

import pytest

from tests.control.guard.simulated_trainings import NOISES, simulated
from trec_qcomm.control.guard import GuardLimits, GuardPolicy, Ladder, Signals

LADDER = Ladder(names=("2", "4", "8", "32"), start=1, bits=(2, 4, 8, 32))
TABLES = ("a", "b", "c")
LIMIT = GuardLimits().limit_ne


def policy(start=1, lowest=1, tables=TABLES, **limits):
    def ladder(lowest):
        return Ladder(names=LADDER.names, start=start, lowest=lowest, bits=LADDER.bits)

    ladders = {(table, "forward"): ladder(lowest) for table in tables}
    ladders |= {(table, "backward"): ladder(start) for table in tables}
    return GuardPolicy(GuardLimits(**limits), ladders)


def changes(mean, seed=0, spread=0.002, batches=8):
    """Return a reading whose mean is `mean`, nearly."""
    source = random.Random(seed)
    return [mean + source.gauss(0, spread) for _ in range(batches)]


def effects(asked, **means):
    return {table: changes(means.get(table, 0.0), table, 0.0002) for table in asked}


def read_all(guard, means):
    """Read one probe for each mean, until the policy asks for effects; return all decisions."""
    decisions = []
    for mean in means:
        probe = guard.probe + 1
        decisions.append(guard.read(200 * probe, changes(mean, probe)))
        if decisions[-1].attribute:
            break
    return decisions


def kinds(decision):
    return [(event.kind, event.reason, event.table) for event in decision.events]


def tripped(calm=10, jump=0.2, **limits):
    """Return a policy that asks for effects, two probes after a jump."""
    guard = policy(**limits)
    assert all(not d.attribute and not d.events for d in read_all(guard, [0.0] * calm))
    first, second = read_all(guard, [jump] * 2)
    assert (kinds(first), first.attribute) == ([], ())
    assert kinds(second) == [("trip", "loss", None)]
    assert second.attribute
    return guard


def test_a_jump_trips_and_the_table_that_explains_it_is_moved():
    guard = tripped()
    decision = guard.attributed(effects(TABLES, a=0.01, b=0.18, c=0.02))
    assert decision.moves == {("b", "forward"): 2}
    assert decision.attribute == ()
    (event,) = decision.events
    assert (event.kind, event.reason, event.step, event.probe) == ("raise", "loss", 2200, 11)
    assert (event.name_before, event.name_after) == ("4", "8")
    assert event.figures["effect b"] == pytest.approx(0.18, abs=0.001)
    assert event.low < event.change < event.high
    assert event.change == pytest.approx(0.2, abs=0.01)
    assert event.message.startswith("guard: b forward: 4 -> 8: codecs add to the loss of the probe")
    assert guard.rungs["b", "forward"] == 2
    assert guard.rungs["b", "backward"] == 1
    assert [event.kind for event in guard.history] == ["trip", "raise"]


def test_the_next_table_is_moved_if_it_is_still_above():
    guard = tripped()
    guard.attributed(effects(TABLES, a=0.05, b=0.18))
    first, second = read_all(guard, [0.06] * 4)  # an episode needs raise_after readings each time
    assert (kinds(first), kinds(second), second.attribute) == ([], [], TABLES)
    assert guard.attributed(effects(TABLES, a=0.05)).moves == {("a", "forward"): 2}
    calm = read_all(guard, [0.001] * 10)
    assert [kinds(d) for d in calm[:-1]] == [[]] * 9
    assert kinds(calm[-1])[0] == ("calm", "calm", None)


def test_tables_that_are_alike_to_blame_move_together():
    guard = tripped(jump=0.3)
    decision = guard.attributed(effects(TABLES, a=0.15, b=0.12, c=0.03))
    assert decision.moves == {("a", "forward"): 2, ("b", "forward"): 2}
    assert {event.change for event in decision.events} == {decision.events[0].change}


def test_a_rung_that_cannot_be_enough_is_skipped():
    guard = tripped(jump=20.0)
    assert guard.attributed(effects(TABLES, b=19.0)).moves == {("b", "forward"): 3}
    guard = tripped(jump=0.3)  # 4 bits more are a sixteenth
    assert guard.attributed(effects(TABLES, b=15 * LIMIT)).moves == {("b", "forward"): 2}
    guard = tripped(jump=0.4)
    assert guard.attributed(effects(TABLES, b=17 * LIMIT)).moves == {("b", "forward"): 3}


def test_suspects_are_asked_first_and_others_if_they_do_not_explain_it():
    def with_drift():
        guard = policy()
        for probe in range(10):
            drift = 1000.0 if probe >= 8 else 1.0
            signals = {(t, "forward"): Signals(rms=drift if t == "b" else 1.0) for t in TABLES}
            signals |= {
                ("c", "backward"): Signals(rms=drift)
            }  # of gradients the loss knows nothing
            decision = guard.read(probe, changes(0.2 if probe >= 8 else 0.0, probe), signals)
        assert decision.attribute == ("b",)
        return guard

    guard = with_drift()
    assert guard.attributed(effects(["b"], b=0.19)).moves == {("b", "forward"): 2}
    guard = with_drift()
    again = guard.attributed(effects(["b"], b=0.01))
    assert (again.events, again.attribute) == ((), ("a", "c"))
    decision = guard.attributed(effects(["a", "c"], c=0.18))
    assert decision.moves == {("c", "forward"): 2}
    assert set(decision.events[0].figures) == {"effect a", "effect b", "effect c"}


@pytest.mark.parametrize(
    ("signals", "suspect"),
    [
        ([Signals(snr_db=20.0)] * 5 + [Signals(snr_db=12.0)], True),
        ([Signals(snr_db=20.0)] * 5 + [Signals(snr_db=17.0)], False),
        ([Signals(range=1.0)] * 5 + [Signals(range=0.2)], True),
        ([Signals(range=1.0)] * 5 + [Signals(range=3.0)], False),
        ([Signals(verbatim_share=0.0)] * 5 + [Signals(verbatim_share=0.1)], True),
        ([Signals(rms=1.0), Signals(rms=1000.0)], False),  # nothing to compare with yet
        ([Signals(rms=1.0)] * 5 + [Signals(rms=0.0), Signals(rms=inf)], False),
        ([Signals(rms=1.0)] * 5 + [Signals(rms=9.0)] + [Signals(rms=1.0)] * 12, False),  # long ago
    ],
)
def test_who_is_suspect(signals, suspect):
    guard = policy()
    for probe, signal in enumerate(signals):
        guard.read(probe, changes(0.0, probe), {("a", "forward"): signal})
    asked = [d.attribute for d in read_all(guard, [0.2] * 4)][-1]
    assert asked == (("a",) if suspect else TABLES)


def test_warn_tells_once_an_episode_and_moves_nothing():
    guard = tripped(action="warn")
    decision = guard.attributed(effects(TABLES, b=0.18))
    assert kinds(decision) == [("warn", "loss", "b")]
    assert decision.moves == {}
    more = read_all(guard, [0.2] * 20 + [0.0] * 10)
    assert [kinds(d) for d in more if d.events] == [[("calm", "calm", None)]]
    assert not any(d.attribute for d in more)
    assert read_all(guard, [0.2] * 5)[-1].attribute == TABLES  # the next episode
    assert set(guard.rungs.values()) == {1}


def test_a_rung_is_lowered_when_all_is_calm_and_not_again_soon_after_it_failed():
    guard = policy(lowest=0, lower_after=5, patience=20, max_lowers=2, tables=("a",))
    lowered = []
    for probe in range(200):
        bad = guard.rungs["a", "forward"] == 0
        decision = guard.read(probe, changes(0.2 if bad else 0.001, probe))
        if decision.attribute:
            guard.attributed(effects("a", a=0.2))
        for event in guard.history[len(lowered) :]:
            lowered.append((probe, event.kind, event.direction, event.before, event.after))
    moves = [move for move in lowered if move[1] in ("lower", "raise") and move[2] == "forward"]
    # Patience runs from when the rung was left: 20 probes, then 40, and the third try is none.
    assert [move[1:] for move in moves] == [
        ("lower", "forward", 1, 0), ("raise", "forward", 0, 1),
        ("lower", "forward", 1, 0), ("raise", "forward", 0, 1),
    ]  # fmt: skip
    assert moves[0][0] == 4
    assert 20 <= moves[2][0] - moves[1][0] <= 25


def test_patience_doubles():
    guard = policy(lowest=0, lower_after=3, patience=8, max_lowers=9, tables=("a",))
    left, tried = [], []
    for probe in range(300):
        bad = guard.rungs["a", "forward"] == 0
        decision = guard.read(probe, changes(0.2 if bad else 0.001, probe))
        tried += [probe for event in decision.events if event.kind == "lower"]
        if decision.attribute:
            guard.attributed(effects("a", a=0.2))
            left.append(probe)
    assert [b - a for a, b in zip(left, tried[1:], strict=False)] == [8, 16, 32, 64, 128]


def test_what_saves_most_is_lowered_first():
    guard = policy(start=3, lowest=0, lower_after=3)
    values = {"a": 10, "b": 1000, "c": 100}
    signals = {(table, "forward"): Signals(num_values=n) for table, n in values.items()}
    events = []
    for probe in range(9):
        events += guard.read(probe, changes(0.0, probe), signals).events
    assert [(e.kind, e.table, e.before, e.after) for e in events] == [
        ("lower", "b", 3, 2), ("lower", "b", 2, 1), ("lower", "c", 3, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mean", "spread"), [(0.6 * LIMIT, 0.001), (0.4 * LIMIT, 0.2), (2 * LIMIT, 0.2)]
)
def test_nothing_is_lowered_unless_calm_is_shown(mean, spread):
    """The mean is above half the limit, or noise might hide that it is above the limit."""
    guard = policy(start=3, lowest=0)
    for probe in range(50):
        assert guard.read(probe, changes(mean, probe, spread)).events == ()


def test_nothing_is_lowered_below_the_lowest_rung_or_with_no_tries():
    for options in ({"lowest": 1}, {"lowest": 0, "max_lowers": 0}, {"lowest": 0, "action": "warn"}):
        guard = policy(**options)
        assert [kinds(d) for d in read_all(guard, [0.0] * 40)] == [[]] * 40


def test_a_loss_that_is_infinite_with_codecs_trips_at_once():
    guard = policy()
    read_all(guard, [0.0] * 3)
    decision = guard.read(3, [0.0] * 7 + [inf])
    assert kinds(decision) == [("trip", "loss", None)]
    decision = guard.attributed({"a": [0.0] * 8, "b": [0.0] * 7 + [inf], "c": [nan] * 8})
    assert decision.moves == {("b", "forward"): 3}

    guard = policy()
    guard.read(0, [0.0] * 7 + [inf])  # by two tables, so no single one explains it
    decision = guard.attributed({table: [0.0] * 7 + [nan] for table in TABLES})
    assert decision.moves == {(table, "forward"): 3 for table in TABLES}


def test_a_loss_that_is_nan_without_codecs_is_told_once():
    guard = policy()
    decisions = [guard.read(n, [0.0, nan]) for n in range(3)]
    assert [kinds(d) for d in decisions] == [[("warn", "undecidable", None)], [], []]
    guard.read(3, changes(0.0))
    assert kinds(guard.read(4, [0.0, nan])) == [("warn", "undecidable", None)]
    assert guard.state_dict()["readings"] == [changes(0.0)]


BAD = {
    "unencodable": Signals(num_unencodable=1),
    "pointless": Signals(bits=33.0),
    "nan": Signals(num_nan=2, num_inf=1),
}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    ("reason", "handling", "kind"),
    [
        ("unencodable", "exact", "raise"),
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
    told = kind == "error" or (kind == "raise" and reason == "nan" and False)
    assert kinds(again) == ([(kind, reason, "b")] if told else [])
    guard.read(2, changes(0.0), {key: Signals()})
    once_more = kinds(guard.read(3, changes(0.0), {key: BAD[reason]}))
    if kind == "raise":  # the exact rung is not at fault; NaN is told
        assert once_more == ([("warn", "nan", "b")] if reason == "nan" else [])
    else:
        assert once_more == [(kind, reason, "b")]


def test_broken_values_are_as_refused_ones():
    decision = policy().read(0, changes(0.0), {("a", "forward"): Signals(num_broken=1)})
    assert decision.moves == {("a", "forward"): 3}


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


def test_no_table_left_is_told_once():
    guard = policy(start=3, lowest=3)
    told = [kinds(d) for d in read_all(guard, [0.0] * 5 + [0.3] * 5)]
    assert [k for k in told if k] == [[("trip", "loss", None), ("warn", "no_table_left", None)]]


def test_what_is_wrong_with_calls():
    guard = policy()
    with pytest.raises(ValueError, match="changes: expected those of two or more probe batches"):
        guard.read(0, [0.0])
    with pytest.raises(ValueError, match="nothing was asked for"):
        guard.attributed({})
    with pytest.raises(ValueError, match="ladders: expected one or more tables"):
        GuardPolicy(GuardLimits(), {})
    guard = tripped()
    with pytest.raises(ValueError, match=r"attributed\(\) is due, with effects of a, b, c"):
        guard.read(0, changes(0.0))
    with pytest.raises(ValueError, match="effects: missing c"):
        guard.attributed(effects(["a", "b"]))
    with pytest.raises(ValueError, match="effects: missing b"):
        guard.attributed(effects(["a", "c"]) | {"b": []})


@pytest.mark.parametrize(
    "fields",
    [
        {"names": ()},
        {"names": ("4", "4")},
        {"names": ("4", "8"), "start": 2},
        {"names": ("4", "8"), "start": 0, "lowest": 1},
        {"names": ("4", "8"), "bits": (4,)},
    ],
)
def test_ladders_that_are_none(fields):
    with pytest.raises(ValueError, match=r"names|start|lowest|bits"):
        Ladder(**fields)


class Training:
    """A training in numbers: each table's effect is its weight over 4 to the power of its bits."""

    def __init__(self, guard, seed=0):
        self.guard, self.source, self.weights = guard, random.Random(seed), dict.fromkeys(TABLES, 1)

    def effect(self, table):
        rung = self.guard.rungs[table, "forward"]
        return 0.0 if rung == 3 else self.weights[table] / 4 ** LADDER.bits[rung]

    def noisy(self, mean):
        return [mean * (1 + self.source.gauss(0, 0.2)) for _ in range(8)]

    def probe(self):
        change = self.noisy(sum(map(self.effect, TABLES)))
        decision = self.guard.read(self.guard.probe + 1, change)
        events = list(decision.events)
        while decision.attribute:
            asked = {table: self.noisy(self.effect(table)) for table in decision.attribute}
            decision = self.guard.attributed(asked)
            events += decision.events
        return events


def test_a_drifting_table_is_named_and_the_loss_ends_within_the_limit():
    for seed in range(5):
        training = Training(policy(lower_after=5), seed)
        assert [training.probe() for _ in range(20)] == [[]] * 20
        training.weights["b"] = 200.0  # 0.8 %, 40 limits
        events = [event for _ in range(4) for event in training.probe()]
        assert {event.table for event in events} == {None, "b"}
        assert events[0].probe <= 22
        assert training.effect("b") < LIMIT
        training.weights["b"] = 1.0
        events = [event for _ in range(60) for event in training.probe()]
        assert {(e.kind, e.table) for e in events} == {("calm", None), ("lower", "b")}
        assert set(training.guard.rungs.values()) == {1}


@pytest.mark.parametrize("name", ["batches of a probe, 1", "all three, 0.5 each"])
def test_nothing_happens_in_trainings_without_a_change(name):
    for seed in range(5):
        guard = policy()
        stream = simulated(seed, NOISES[name], lambda _: 0.5)
        for probe in range(200):
            change = [LIMIT * value for value in next(stream)]
            assert guard.read(probe, change, {("a", "forward"): Signals(rms=1.0)}).events == ()


def test_a_run_that_is_resumed_at_any_probe_decides_the_same():
    def trained(resume_at):
        training = Training(policy(lowest=0, lower_after=3, patience=5, least_snr_db=1.0), 7)
        log = []
        for probe in range(60):
            if probe in resume_at:
                state = json.loads(json.dumps(training.guard.state_dict()))
                training.guard = policy(lowest=0, lower_after=3, patience=5, least_snr_db=1.0)
                assert training.guard.load_state_dict(state) == ()
                assert training.guard.state_dict() == state
            training.weights["b"] = 300.0 if 20 <= probe < 30 else 1.0
            log.append(training.probe())
        return log, training.guard

    wanted, guard = trained(())
    assert {event.kind for event in guard.history} >= {"trip", "raise", "lower", "calm"}
    log, resumed = trained(range(60))
    assert log == wanted
    assert resumed.history == guard.history
    assert resumed.rungs == guard.rungs


def test_signals_are_resumed_too():
    def run(guard, probes):
        events = []
        for probe in probes:
            rms = 50.0 if probe == 11 else 1.0
            signals = {("a", "forward"): Signals(rms=rms), ("b", "backward"): Signals(num_nan=1)}
            signals |= {("c", "backward"): Signals(snr_db=0.0)}
            signals |= {("c", "forward"): Signals(snr_db=20.0 if probe < 3 else 5.0)}
            change = changes(0.3 if probe >= 11 else 0.0, probe)
            decision = guard.read(probe, change, signals)
            events += [decision.events, decision.attribute]
        return events

    def guarded():
        return policy(least_snr_db=1.0, raise_after=3)

    whole = run(guarded(), range(14))
    assert whole[-1] == ("a",)
    assert {event.reason for event in sum(whole[::2], ())} == {"nan", "snr", "drift", "loss"}
    for stop in range(1, 14):
        first, second = guarded(), guarded()
        events = run(first, range(stop))
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert events + run(second, range(stop, 14)) == whole


def test_a_checkpoint_of_other_tables_is_told():
    guard = tripped()
    guard.attributed(effects(TABLES, a=0.18))
    state = guard.state_dict()
    other = policy(tables=("a", "b", "new"))
    events = other.load_state_dict(state)
    assert [(e.kind, e.reason, e.table, e.direction) for e in events] == [
        ("warn", "resumed", table, direction)
        for table in ("new", "c")
        for direction in (("backward", "forward") if table == "new" else ("forward", "backward"))
    ]
    assert other.rungs["a", "forward"] == 2
    assert other.rungs["new", "forward"] == 1
    assert "new backward: no change: the checkpoint has no such rung" in events[0].message

    ladder = Ladder(names=("4", "6", "32"), bits=(4, 6, 32))  # without the rung that a was on
    changed = GuardPolicy(GuardLimits(), {(t, "forward"): ladder for t in TABLES})
    told = {(e.table, e.direction) for e in changed.load_state_dict(state)}
    assert told == {("a", "forward"), *((t, "backward") for t in TABLES)}
    assert changed.rungs == {(t, "forward"): 0 for t in TABLES}


def test_the_order_of_ladders_and_signals_does_not_matter():
    ladders = {(t, "forward"): LADDER for t in TABLES}
    first = GuardPolicy(GuardLimits(), ladders)
    second = GuardPolicy(GuardLimits(), dict(reversed(ladders.items())))
    signals = {("c", "forward"): BAD["pointless"], ("a", "forward"): BAD["unencodable"]}
    decisions = [
        guard.read(0, changes(0.0), dict(ordered))
        for guard, ordered in ((first, signals.items()), (second, reversed(signals.items())))
    ]
    assert decisions[0] == decisions[1]
    assert [event.table for event in decisions[0].events] == ["a", "c"]
