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
from dataclasses import asdict
from math import fsum, inf, isfinite, isnan
from typing import Any

from trec_qcomm.control.guard.effects import choose, explain
from trec_qcomm.control.guard.events import Decision, Event, EventKind, Reason
from trec_qcomm.control.guard.ladder import DIRECTIONS, Key, Ladder
from trec_qcomm.control.guard.limits import GuardLimits
from trec_qcomm.control.guard.patience import Patience
from trec_qcomm.control.guard.readings import Readings
from trec_qcomm.control.guard.signals import Signals
from trec_qcomm.control.guard.suspects import Suspects

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
        self.ladders = dict(sorted(ladders.items()))  # the same order on all ranks
        self.history: list[Event] = []
        self._rungs = {key: ladder.start for key, ladder in self.ladders.items()}
        self._probe, self._step = -1, 0
        self._calm = 0  # readings in a row that were not above the limit
        self._is_episode = False
        self._told: set[str] = set()
        self._low_snr: dict[Key, int] = {}
        self._readings = Readings(limits.raise_after)
        self._patience = Patience(limits)
        self._suspects = Suspects()
        self._asked: tuple[str, ...] = ()
        self._effects: dict[str, Sequence[float]] = {}

    @property
    def rungs(self) -> dict[Key, int]:
        """The rung of each table and direction now."""
        return dict(self._rungs)

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
        Raises: ValueError: no changes, or `attributed` was due.
        """
        if self._asked:
            raise ValueError(f"attributed() is due, with effects of {', '.join(self._asked)}")
        if not changes:
            raise ValueError("changes: expected one number a probe batch, got none")
        self._probe, self._step = self._probe + 1, step
        signals = {key: signal for key, signal in (signals or {}).items() if key in self.ladders}
        self._suspects.observe(self._probe, signals)
        events = self._by_signals(signals)
        if any(event.is_move for event in events):  # this probe was read with other codecs
            return self._decision(events)
        return self._decision(events + self._by_loss(changes, signals))

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
        others = [table for table in self._movable() if table not in self._effects]
        excess = (self._latest()[0] or inf) - self.limits.limit_ne
        if others and not explain(self._effects, excess):
            self._asked = tuple(others)
            return self._decision([])
        chosen, self._asked = choose(self._effects, self.limits.limit_ne), ()
        events = [self._raise_for_loss(table) for table in chosen]
        self._effects = {}
        return self._decision(events)

    def _by_signals(self, signals: Mapping[Key, Signals]) -> list[Event]:
        """Return what follows at once from NaN, refused values, bytes and noise."""
        events = []
        for key in self.ladders:
            signal = signals.get(key)
            if signal is not None:
                event = self._of_signal(key, signal)
                events += [] if event is None else [event]
        return events

    def _of_signal(self, key: Key, signal: Signals) -> Event | None:
        """Return the first thing that is wrong with a table and was not told yet."""
        is_exact = self._rungs[key] == self.ladders[key].top
        bits, snr, least = signal.bits, signal.snr_db, self.limits.least_snr_db
        is_low = least is not None and snr is not None and snr < least
        self._low_snr[key] = self._low_snr.get(key, 0) + 1 if is_low else 0
        numbers = signal.num_unencodable + signal.num_broken
        cases: list[tuple[Reason, str, bool]] = [
            ("unencodable", self.limits.on_unencodable, numbers > 0 and not is_exact),
            ("pointless", self.limits.on_pointless, (bits or 0) > 32 and not is_exact),
            ("nan", self.limits.on_nan, signal.num_nan + signal.num_inf > 0),
            ("snr", "raise", self._low_snr[key] >= self.limits.raise_after and not is_exact),
        ]
        event = None
        for reason, handling, is_bad in cases:
            told = f"{reason} {key[1]} {key[0]}"
            if not is_bad:
                self._told.discard(told)
            elif event is None and (handling == "error" or told not in self._told):
                self._told.add(told)
                event = self._handle(key, reason, handling, signal)
        return event

    def _handle(self, key: Key, reason: Reason, handling: str, signal: Signals) -> Event:
        figures = {
            name: float(value)
            for name, value in asdict(signal).items()
            if value is not None and isfinite(value)
        }
        rung, top = self._rungs[key], self.ladders[key].top
        if handling == "error":
            return self._event("error", reason, key=key, figures=figures)
        if self.limits.action == "warn" or handling == "warn" or rung == top:
            return self._event("warn", reason, key=key, figures=figures)
        to = top if handling == "exact" else rung + 1
        return self._move(key, to, "raise", reason, figures)

    def _by_loss(self, changes: Sequence[float], signals: Mapping[Key, Signals]) -> list[Event]:
        """Return what follows from the loss of this probe."""
        if any(map(isnan, changes)):
            return self._tell_once("undecidable")
        self._told.discard("undecidable")
        limit = self.limits.limit_ne
        if all(map(isfinite, changes)):
            self._readings.add(changes)
            is_above = fsum(changes) / len(changes) > limit
            self._calm = 0 if is_above else self._calm + 1
            trips = self._readings.show_above(limit, is_suspected=self._is_episode)
        else:
            self._readings.restart()
            self._calm, trips = 0, True
        if trips:
            return self._trip()
        return self._end_episode() + self._lower(signals)

    def _trip(self) -> list[Event]:
        """Begin an episode, and ask for effects of tables."""
        events = [] if self._is_episode else [self._event("trip", "loss")]
        if self._is_episode and self.limits.action == "warn":
            return []
        self._is_episode = True
        movable = self._movable()
        if not movable:
            return events + self._tell_once("no_table_left")
        suspects = self._suspects.tables(self._probe)
        self._asked = tuple([table for table in movable if table in suspects] or movable)
        return events

    def _raise_for_loss(self, table: str) -> Event:
        key: Key = (table, "forward")
        figures = {
            f"effect {name}": fsum(values) / len(values)
            for name, values in self._effects.items()
            if all(map(isfinite, values))
        }
        if self.limits.action == "warn":
            return self._event("warn", "loss", key=key, figures=figures)
        return self._move(key, self._rungs[key] + 1, "raise", "loss", figures)

    def _end_episode(self) -> list[Event]:
        if not self._is_episode or self._calm < self.limits.lower_after:
            return []
        self._is_episode = False
        self._told.discard("no_table_left")
        return [self._event("calm", "calm")]

    def _lower(self, signals: Mapping[Key, Signals]) -> list[Event]:
        """Move one table down where the loss was calm for long: the one that saves most bits."""
        limit, after = self.limits.limit_ne, self.limits.lower_after
        if self.limits.action == "warn" or min(self._calm, len(self._readings)) < after:
            return []
        estimate = self._readings.estimate()
        if estimate.mean > CALM_SHARE * limit or estimate.upper > limit:
            return []
        saved: dict[Key, float] = {}
        for key, ladder in self.ladders.items():
            rung = self._rungs[key]
            if rung > ladder.lowest and self._patience.may_try(
                key, ladder.names[rung - 1], self._probe
            ):
                signal = signals.get(key)
                num_values = signal.num_values if signal is not None else None
                saved[key] = ladder.bits_saved(rung) * (num_values or 1)
        if not saved:
            return []
        key = max(saved, key=lambda key: saved[key])
        self._patience.try_rung(key, self.ladders[key].names[self._rungs[key] - 1])
        return [self._move(key, self._rungs[key] - 1, "lower", "calm", {})]

    def _movable(self) -> list[str]:
        """Return the tables whose rows may get a finer codec."""
        return [
            table
            for (table, direction), ladder in self.ladders.items()
            if direction == "forward" and self._rungs[table, direction] < ladder.top
        ]

    def _move(
        self, key: Key, to: int, kind: EventKind, reason: Reason, figures: Mapping[str, float]
    ) -> Event:
        """Give a table another rung. Readings begin anew."""
        before, ladder = self._rungs[key], self.ladders[key]
        event = self._event(kind, reason, key=key, after=to, figures=figures)
        if to > before:
            self._patience.leave(key, ladder.names[before], self._probe)
        self._rungs[key] = to
        self._low_snr[key] = 0
        self._suspects.forget_codec(key)
        self._readings.restart()
        return event

    def _tell_once(self, reason: Reason) -> list[Event]:
        if reason in self._told:
            return []
        self._told.add(reason)
        return [self._event("warn", reason)]

    def _event(
        self,
        kind: EventKind,
        reason: Reason,
        *,
        key: Key | None = None,
        after: int | None = None,
        figures: Mapping[str, float] | None = None,
        gone: Key | None = None,
    ) -> Event:
        change, low, high = self._latest()
        table, direction = key or gone or (None, None)
        before = None if key is None else self._rungs[key]
        after = before if after is None else after
        names = () if key is None else self.ladders[key].names
        event = Event(
            kind=kind,
            reason=reason,
            step=self._step,
            probe=self._probe,
            table=table,
            direction=direction,
            before=before,
            after=after,
            name_before=None if before is None else names[before],
            name_after=None if after is None else names[after],
            change=change,
            low=low,
            high=high,
            limit_ne=self.limits.limit_ne,
            figures=dict(figures or {}),
        )
        self.history = [*self.history[1 - MOST_EVENTS :], event]
        return event

    def _latest(self) -> tuple[float | None, float | None, float | None]:
        """Return the mean of the latest readings and its interval."""
        if not len(self._readings):
            return None, None, None
        estimate = self._readings.estimate(self.limits.raise_after)
        return estimate.mean, *estimate.interval

    def _decision(self, events: Sequence[Event]) -> Decision:
        change, low, high = None, None, None
        if len(self._readings):
            estimate = self._readings.estimate()
            change, (low, high) = estimate.mean, estimate.interval
        return Decision(
            events=tuple(events), attribute=self._asked, change=change, low=low, high=high
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all that later decisions depend on, and the history, as JSON can hold it."""
        rungs: dict[str, dict[str, str]] = {}
        for (table, direction), rung in self._rungs.items():
            rungs.setdefault(table, {})[direction] = self.ladders[table, direction].names[rung]
        return {
            "probe": self._probe,
            "step": self._step,
            "rungs": rungs,
            "readings": [list(reading) for reading in self._readings.values],
            "calm": self._calm,
            "is_episode": self._is_episode,
            "told": sorted(self._told),
            "low_snr": [[*key, count] for key, count in self._low_snr.items()],
            "patience": self._patience.state_dict(),
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
        self._low_snr = {(table, direction): n for table, direction, n in state["low_snr"]}
        self._readings.values = [tuple(reading) for reading in state["readings"]]
        self._patience.load_state_dict(state["patience"])
        self._suspects.load_state_dict(state["suspects"])
        self.history = [Event(**event) for event in state["history"]]
        self._asked, self._effects = (), {}
        events = self._load_rungs(state["rungs"])
        if events:
            self._readings.restart()
        return events

    def _load_rungs(self, saved: Mapping[str, Mapping[str, str]]) -> tuple[Event, ...]:
        events = []
        for key, ladder in self.ladders.items():
            name = saved.get(key[0], {}).get(key[1])
            self._rungs[key] = ladder.names.index(name) if name in ladder.names else ladder.start
            if name not in ladder.names:
                events.append(self._event("warn", "resumed", key=key))
        for table, names in saved.items():
            gone = [
                key for d in DIRECTIONS if d in names and (key := (table, d)) not in self.ladders
            ]
            events += [self._event("warn", "resumed", gone=key) for key in gone]
        return tuple(events)
