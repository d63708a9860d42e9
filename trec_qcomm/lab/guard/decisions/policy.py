"""GuardPolicy: which tables get another codec, from numbers that all ranks share.

    policy = GuardPolicy(limits, ladders)
    decision = policy.read(step, changes, signals)      # at each probe
    if decision.attribute:
        decision = policy.attributed(effects)           # may ask once more
    for (table, direction), rung in decision.moves.items():
        ...

It decides by the numbers that it is given and by nothing else, so ranks that are given the same
ones decide alike, and a run that is resumed from `state_dict` decides as the first one would.

Knows: readings, signals, ladders. Does not know: codecs, process groups, how a probe is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import fsum, inf, isfinite, isnan
from typing import Any

from trec_qcomm.lab.guard.decisions.events import Decision, Event
from trec_qcomm.lab.guard.decisions.ladder import GuardLimits, Key, Ladder, Rungs
from trec_qcomm.lab.guard.decisions.readings import (
    Readings,
    choose,
    explain,
    mean_effect,
    missing_bits,
)
from trec_qcomm.lab.guard.decisions.values import Alarm, Alarms, Signals, Suspects
from trec_qcomm.lab.records.kinds import GuardEvent, GuardReason

MOST_EVENTS = 1000  # that the history keeps
CALM_SHARE = 0.5  # of the limit, which the mean must not exceed before a table is moved down


class GuardPolicy:
    """Rungs of all tables, and the rules by which they change."""

    def __init__(self, limits: GuardLimits, ladders: Mapping[Key, Ladder]) -> None:
        """Begin with the rungs that the configuration gives.

        Args: limits: the rules.  ladders: rungs of each table and direction that may be moved.
        Raises: ValueError: there are none.
        """
        if not ladders:
            raise ValueError("ladders: expected one or more tables to guard, got none")
        self.limits = limits
        self.history: list[Event] = []
        self._rungs = Rungs(ladders, limits)
        self._probe, self._step = -1, 0
        self._calm = 0  # readings in a row that were not above the limit
        self._is_episode = False
        self._told: set[GuardReason] = set()  # of the whole model, and still so
        self._alarms = Alarms(limits)
        self._readings = Readings(limits.raise_after)
        self._suspects = Suspects()
        # What one probe leaves for `attributed`, which follows at once.
        self._shown = Decision()  # with the numbers of the latest probe
        self._is_finite = True
        self._asked: tuple[str, ...] = ()
        self._effects: dict[str, Sequence[float]] = {}

    @property
    def rungs(self) -> dict[Key, int]:
        """The rung of each table and direction now."""
        return dict(self._rungs.now)

    @property
    def ladders(self) -> dict[Key, Ladder]:
        """The ladder of each table and direction."""
        return self._rungs.ladders

    @property
    def probe(self) -> int:
        """Number of the latest probe; -1 before the first one."""
        return self._probe

    def read(
        self, step: int, changes: Sequence[float], signals: Mapping[Key, Signals] | None = None
    ) -> Decision:
        """Take a probe's numbers and decide.

        Args:
            step: number of the training step.
            changes: for each probe batch by how many percent codecs change its loss; inf where
                only the loss with codecs is not finite, NaN where the one without is not.
            signals: figures of tables since the last probe; of others than the guard's they are
                not read.
        Raises: ValueError: fewer than two changes, whose spread nobody knows, or `attributed` was
            due.
        """
        if self._asked:
            raise ValueError(f"attributed() is due, with effects of {', '.join(self._asked)}")
        if len(changes) < 2:
            raise ValueError(f"changes: expected those of two or more probe batches, got {changes}")
        self._probe, self._step = self._probe + 1, step
        signals = {key: signal for key, signal in (signals or {}).items() if key in self.ladders}
        self._suspects.observe(self._probe, signals)
        self._read(changes)
        events = self._by_signals(signals)
        if not any(event.is_move for event in events):  # or the next probe shows what it changed
            events += self._by_loss(changes, signals)
        return self._decision(events)

    def attributed(self, effects: Mapping[str, Sequence[float]]) -> Decision:
        """Take the effects of the tables that were asked for, and decide; it may ask for others.

        Args: effects: numbers by table, one a probe batch: the loss as it is minus the loss with
            this table's rows sent exactly, in percent of the loss without codecs.
        Raises: ValueError: a table that was asked for is missing, or has no numbers.
        """
        missing = [table for table in self._asked if not effects.get(table)]
        if missing or not self._asked:
            raise ValueError(f"effects: missing {', '.join(missing) or '; nothing was asked for'}")
        self._effects |= {table: tuple(effects[table]) for table in self._asked}
        others = [table for table in self._rungs.movable() if table not in self._effects]
        change = self._latest()[0]
        excess = inf if change is None else change - self.limits.limit_ne
        if others and not explain(self._effects, excess):
            self._asked = tuple(others)
            return self._decision([])
        self._asked = ()
        events = [self._raise_for_loss(table) for table in self._chosen()]
        self._effects = {}
        return self._decision(events)

    def _chosen(self) -> list[str]:
        """Return the tables that are to blame: all where no single one makes the loss infinite."""
        if not self._is_finite and all(mean_effect(e) < inf for e in self._effects.values()):
            return list(self._effects)
        return choose(self._effects, self.limits.limit_ne)

    def _read(self, changes: Sequence[float]) -> None:
        """Add a reading, if it is one."""
        self._is_finite = all(map(isfinite, changes))
        self._shown = Decision()
        if any(map(isnan, changes)):
            return
        if self._is_finite:
            self._readings.add(changes)
            estimate = self._readings.estimate()
            low, high = estimate.interval
            self._shown = Decision(change=estimate.mean, low=low, high=high)
            is_above = fsum(changes) / len(changes) > self.limits.limit_ne
        else:
            self._readings.restart()
            is_above = True
        self._calm = 0 if is_above else self._calm + 1

    def _by_signals(self, signals: Mapping[Key, Signals]) -> list[Event]:
        """Return what follows at once from NaN, values that break, bytes and noise."""
        events = []
        for key, ladder in self.ladders.items():
            if key in signals:
                alarm = self._alarms.check(key, signals[key], ladder, self._rungs.now[key])
                events += [] if alarm is None else [self._answer(alarm, signals[key])]
        return events

    def _answer(self, alarm: Alarm, signal: Signals) -> Event:
        key, answer = alarm.key, alarm.answer
        values = {name: float(v) for name, v in asdict(signal).items() if v is not None}
        figures = {name: value for name, value in values.items() if isfinite(value)}
        rung, ladder = self._rungs.now[key], self.ladders[key]
        if answer == "error":
            return self._event("error", alarm.reason, key=key, figures=figures)
        if self.limits.action == "warn" or answer == "warn" or rung == ladder.top:
            return self._event("warn", alarm.reason, key=key, figures=figures)
        to = ladder.top if answer == "exact" else ladder.rung_for(rung, alarm.more_bits)
        return self._move(key, to, "raise", alarm.reason, figures)

    def _by_loss(self, changes: Sequence[float], signals: Mapping[Key, Signals]) -> list[Event]:
        """Return what follows from the loss of this probe."""
        if any(map(isnan, changes)):
            return self._tell_once("undecidable")
        self._told.discard("undecidable")
        limit = self.limits.limit_ne
        trips = not self._is_finite
        is_suspected = self._is_episode or self._rungs.on_trial(self._probe) is not None
        trips = trips or self._readings.show_above(limit, is_suspected=is_suspected)
        if trips:
            return self._trip()
        return self._end_episode() + self._lower(signals)

    def _trip(self) -> list[Event]:
        """Begin an episode, and ask for effects of tables."""
        events = [] if self._is_episode else [self._event("trip", "loss")]
        if self._is_episode and self.limits.action == "warn":
            return []
        self._is_episode = True
        movable = self._rungs.movable()
        if not movable:
            return events + self._tell_once("no_table_left")
        suspects = self._suspects.tables(self._probe)
        self._asked = tuple([table for table in movable if table in suspects] or movable)
        return events

    def _raise_for_loss(self, table: str) -> Event:
        key: Key = (table, "forward")
        effects = {name: mean_effect(values) for name, values in self._effects.items()}
        figures = {f"effect {name}": mean for name, mean in effects.items() if isfinite(mean)}
        if self.limits.action == "warn":
            return self._event("warn", "loss", key=key, figures=figures)
        more_bits = missing_bits(effects[table], self.limits.limit_ne) if self._is_finite else inf
        to = self.ladders[key].rung_for(self._rungs.now[key], more_bits)
        if key == self._rungs.on_trial(self._probe):
            to = self._rungs.now[key] + 1  # on which all was calm
        return self._move(key, to, "raise", "loss", figures)

    def _end_episode(self) -> list[Event]:
        if not self._is_episode or self._calm < self.limits.lower_after:
            return []
        self._is_episode = False
        self._told.discard("no_table_left")
        event = self._event("calm", "calm")
        self._readings.restart(self._readings.readings[-self._calm :])  # the others are no noise
        return [event]

    def _lower(self, signals: Mapping[Key, Signals]) -> list[Event]:
        """Move one table down where the loss was calm for long: the one that saves most bits."""
        limit, after = self.limits.limit_ne, self.limits.lower_after
        if self.limits.action == "warn" or min(self._calm, len(self._readings)) < after:
            return []
        estimate = self._readings.estimate()
        if estimate.mean > CALM_SHARE * limit or estimate.upper > limit:
            return []
        key = self._rungs.to_lower(self._probe, {k: s.num_values for k, s in signals.items()})
        return (
            [] if key is None else [self._move(key, self._rungs.now[key] - 1, "lower", "calm", {})]
        )

    def _move(
        self, key: Key, to: int, kind: GuardEvent, reason: GuardReason, figures: Mapping[str, float]
    ) -> Event:
        """Give a table another rung."""
        event = self._event(kind, reason, key=key, after=to, figures=figures)
        self._rungs.move(key, to, self._probe)
        self._alarms.forget_codec(key)
        self._suspects.forget_codec(key)
        return event

    def _tell_once(self, reason: GuardReason) -> list[Event]:
        if reason in self._told:
            return []
        self._told.add(reason)
        return [self._event("warn", reason)]

    def _event(
        self,
        kind: GuardEvent,
        reason: GuardReason,
        *,
        key: Key | None = None,
        after: int | None = None,
        figures: Mapping[str, float] | None = None,
        gone: Key | None = None,
    ) -> Event:
        change, low, high = self._latest()
        table, direction = key or gone or (None, None)
        before = None if key is None else self._rungs.now[key]
        after = before if after is None else after
        names = () if key is None else self.ladders[key].names
        event = Event(
            kind=kind, reason=reason, step=self._step, probe=self._probe,
            table=table, direction=direction, before=before, after=after,
            name_before=None if before is None else names[before],
            name_after=None if after is None else names[after],
            change=change, low=low, high=high, limit_ne=self.limits.limit_ne,
            figures=dict(figures or {}),
        )  # fmt: skip
        self.history = [*self.history[1 - MOST_EVENTS :], event]
        return event

    def _latest(self) -> tuple[float | None, float | None, float | None]:
        """Return the mean of the latest readings and its interval."""
        if not len(self._readings):
            return None, None, None
        estimate = self._readings.estimate(self.limits.raise_after)
        return estimate.mean, *estimate.interval

    def _decision(self, events: Sequence[Event]) -> Decision:
        if any(event.is_move for event in events):
            self._readings.restart()
        return replace(self._shown, events=tuple(events), attribute=self._asked)

    def state_dict(self) -> dict[str, Any]:
        """Return all that later decisions depend on, and the history, as JSON can hold it."""
        return {
            "probe": self._probe,
            "step": self._step,
            "rungs": self._rungs.state_dict(),
            "readings": [list(reading) for reading in self._readings.readings],
            "calm": self._calm,
            "is_episode": self._is_episode,
            "told": sorted(self._told),
            "alarms": self._alarms.state_dict(),
            "suspects": self._suspects.state_dict(),
            "history": [asdict(event) for event in self.history],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> tuple[Event, ...]:
        """Continue from a `state_dict`, by names of tables and of rungs.

        A table that is new, or whose rung is on its ladder no more, has the rung that the
        configuration gives.
        Returns: an event for each such table and for each one that is gone; empty where the run
            goes on as if it had not stopped.
        """
        self._probe, self._step = state["probe"], state["step"]
        self._calm, self._is_episode = state["calm"], state["is_episode"]
        self._told = set(state["told"])
        self._alarms.load_state_dict(state["alarms"])
        self._readings.restart(state["readings"])
        self._suspects.load_state_dict(state["suspects"])
        self.history = [Event(**event) for event in state["history"]]
        self._shown, self._asked, self._effects = Decision(), (), {}
        new, gone = self._rungs.load_state_dict(state["rungs"])
        events = [self._event("warn", "resumed", key=key) for key in new]
        events += [self._event("warn", "resumed", gone=key) for key in gone]
        if events:
            self._readings.restart()
        return tuple(events)
