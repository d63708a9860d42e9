"""GuardPolicy: which tables get another codec, from numbers that all ranks share.

    policy = GuardPolicy(rule, ladders, {"configuration": "best.yaml"})
    probe, events = policy.read(step, changes, signals, effects_of)      # at each probe
    for event in filter(is_move, events):
        ...

It decides only by the numbers that it is given. So ranks with the same numbers decide alike, and a
run that is resumed from `state_dict` decides as the first run would.

Knows: readings, signals, ladders. Does not know: process groups, how a probe is run, files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from math import fsum, inf, isfinite, isnan
from typing import Any

from trec_qcomm.lab.guard.ladders import Ladder
from trec_qcomm.lab.guard.messages import is_move, message_of
from trec_qcomm.lab.guard.readings import Readings, choose, mean_effect, missing_bits
from trec_qcomm.lab.guard.rule import GuardRule
from trec_qcomm.lab.guard.tables import GuardedTable, Key, Signals, TableState
from trec_qcomm.lab.records import GuardProbeRecord, GuardRecord
from trec_qcomm.lab.records.kinds import GuardEvent, GuardReason

CALM_SHARE = 0.5  # of the limit, which the mean must not exceed before a table is moved down
_SAVED = ("probe", "step", "calm", "is_episode", "told")  # attributes of the policy

# Returns the effect of each table, one number a probe batch: the loss as it is minus the loss with
# this table's rows sent exactly, in percent of the loss without codecs.
EffectsOf = Callable[[Sequence[str]], Mapping[str, Sequence[float]]]


class GuardPolicy:
    """Rungs of all tables, and the rules by which they change.

    Args:
        rule: settings of the guard.
        ladders: rungs of each table and direction that may be moved.
        about: constant fields of the records, `configuration` among them.
    Attributes:
        probe, step: number of the latest probe, -1 before the first one, and number of its step.
        calm: number of readings in a row that were not above the limit.
        is_episode: whether the loss was above the limit, and has not been calm since.
        told: messages about the whole model that still hold.
        tables: guarded tables, in the same order on all ranks.
    """

    def __init__(
        self, rule: GuardRule, ladders: Mapping[Key, Ladder], about: Mapping[str, Any]
    ) -> None:
        self._rule, self._about = rule, about
        self.tables = {key: GuardedTable(ladders[key], rule) for key in sorted(ladders)}
        self.probe, self.step, self.calm, self.is_episode = -1, 0, 0, False
        self.told: list[GuardReason] = []
        self._readings = Readings(rule.raise_after)

    @property
    def rungs(self) -> dict[Key, int]:
        """Present rung of each table and direction."""
        return {key: table.rung for key, table in self.tables.items()}

    def read(
        self,
        step: int,
        changes: Sequence[float],
        signals: Mapping[Key, Signals],
        effects_of: EffectsOf,
    ) -> tuple[GuardProbeRecord, list[GuardRecord]]:
        """Take a probe's numbers and decide.

        Args:
            step: number of the training step.
            changes: percentages by which codecs change the loss of each probe batch. inf: only the
                loss with codecs is not finite. NaN: the loss without codecs is not finite.
            signals: figures of tables since the last probe; only guarded tables are read.
            effects_of: function that returns the effects of tables; called if the loss is above the
                limit.
        Returns: the reading, with the rungs at which it was taken, and the decisions.
        Raises: ValueError: fewer than two changes, which have no spread.
        """
        if len(changes) < 2:
            raise ValueError(f"changes: expected those of two or more probe batches, got {changes}")
        self.probe, self.step = self.probe + 1, step
        signals = {key: signal for key, signal in signals.items() if key in self.tables}
        change = fsum(changes) / len(changes)
        if isfinite(change):
            self._readings.add(changes)
        elif not isnan(change):
            self._readings.restart()
        if not isnan(change):
            self.calm = 0 if change > self._rule.limit_ne else self.calm + 1
        probe = self._probe_record(change)
        events = self._by_signals(signals)
        if not any(map(is_move, events)):  # or the next probe shows what it changed
            events += self._by_loss(change, signals, effects_of)
        if any(map(is_move, events)):
            self._readings.restart()
        return probe, events

    def _probe_record(self, change: float) -> GuardProbeRecord:
        mean, low, high = self._estimate() if isfinite(change) else (None, None, None)
        return GuardProbeRecord(
            step=self.step,
            probe=self.probe,
            limit_ne=self._rule.limit_ne,
            change=change if isfinite(change) else None,
            mean=mean,
            low=low,
            high=high,
            forward={table: rung for (table, d), rung in self.rungs.items() if d == "forward"},
            backward={table: rung for (table, d), rung in self.rungs.items() if d == "backward"},
            num_rungs={f"{t} {d}": len(x.ladder.codecs) for (t, d), x in self.tables.items()},
            **self._about,
        )

    def _by_signals(self, signals: Mapping[Key, Signals]) -> list[GuardRecord]:
        """Return what follows at once from NaN, values that break, bytes and noise."""
        events = []
        for key, table in self.tables.items():
            alarm = table.alarm(signals[key]) if key in signals else None
            if alarm is None:
                continue
            values = {name: float(v) for name, v in asdict(signals[key]).items() if v is not None}
            figures = {name: value for name, value in values.items() if isfinite(value)}
            reason, answer, rung = alarm
            if answer == "raise":
                events.append(self._move("raise", reason, key, rung, figures))
            else:
                events.append(self._event(answer, reason, key, figures=figures))
        return events

    def _by_loss(
        self, change: float, signals: Mapping[Key, Signals], effects_of: EffectsOf
    ) -> list[GuardRecord]:
        """Return what follows from the loss of this probe."""
        if isnan(change):
            return self._tell_once("undecidable")
        self._forget("undecidable")
        limit = self._rule.limit_ne
        on_trial = [table.is_on_trial(self.probe) for table in self.tables.values()]
        is_suspected = self.is_episode or any(on_trial)
        if change == inf or self._readings.show_above(limit, is_suspected=is_suspected):
            return self._trip(effects_of, is_finite=isfinite(change))
        return self._end_episode() + self._lower(signals)

    def _trip(self, effects_of: EffectsOf, *, is_finite: bool) -> list[GuardRecord]:
        """Begin an episode, and move the tables that are to blame."""
        if self.is_episode and self._rule.action == "warn":
            return []
        events = [] if self.is_episode else [self._event("trip", "loss")]
        self.is_episode = True
        movable = [
            table
            for (table, direction), one in self.tables.items()
            if direction == "forward" and not one.is_exact
        ]
        if not movable:
            return events + self._tell_once("no_table_left")
        effects = effects_of(movable)
        means = {table: mean_effect(numbers) for table, numbers in effects.items()}
        figures = {f"effect {table}": mean for table, mean in means.items() if isfinite(mean)}
        to_blame = choose(effects, self._rule.limit_ne)
        if not is_finite and max(means.values()) < inf:  # no single one makes it infinite
            to_blame = movable
        for name in to_blame:
            table = self.tables[name, "forward"]
            more_bits = missing_bits(means[name], self._rule.limit_ne) if is_finite else inf
            to = table.ladder.rung_for(table.rung, more_bits)
            if table.is_on_trial(self.probe):
                to = table.rung + 1  # on which all was calm
            events.append(self._move("raise", "loss", (name, "forward"), to, figures))
        return events

    def _end_episode(self) -> list[GuardRecord]:
        if not self.is_episode or self.calm < self._rule.lower_after:
            return []
        self.is_episode = False
        self._forget("no_table_left")
        event = self._event("calm", "calm")
        self._readings.restart(self._readings.readings[-self.calm :])  # the others are no noise
        return [event]

    def _lower(self, signals: Mapping[Key, Signals]) -> list[GuardRecord]:
        """Move one table down where the loss was calm for long: the one that saves most bits."""
        limit, after = self._rule.limit_ne, self._rule.lower_after
        if self._rule.action == "warn" or min(self.calm, len(self._readings)) < after:
            return []
        estimate = self._readings.estimate()
        if estimate.mean > CALM_SHARE * limit or estimate.upper > limit:
            return []
        saved: dict[Key, float] = {}
        for key, table in self.tables.items():
            if table.may_lower(self.probe):
                bits, num_values = table.ladder.bits, signals.get(key, Signals()).num_values
                saved[key] = (bits[table.rung] - bits[table.rung - 1]) * (num_values or 1)
        if not saved:
            return []
        key = max(saved, key=lambda key: saved[key])
        return [self._move("lower", "calm", key, self.tables[key].rung - 1, {})]

    def _move(
        self,
        event: GuardEvent,
        reason: GuardReason,
        key: Key,
        to: int,
        figures: Mapping[str, float],
    ) -> GuardRecord:
        """Give a table another rung, or tell that it needs one."""
        if self._rule.action == "warn" or to == self.tables[key].rung:
            return self._event("warn", reason, key, figures=figures)
        record = self._event(event, reason, key, to=to, figures=figures)
        self.tables[key].move(to, self.probe)
        return record

    def _tell_once(self, reason: GuardReason) -> list[GuardRecord]:
        if reason in self.told:
            return []
        self.told = [*self.told, reason]
        return [self._event("warn", reason)]

    def _forget(self, reason: GuardReason) -> None:
        self.told = [told for told in self.told if told != reason]

    def _event(
        self,
        event: GuardEvent,
        reason: GuardReason,
        key: Key | None = None,
        *,
        to: int | None = None,
        figures: Mapping[str, float] | None = None,
    ) -> GuardRecord:
        """Return the record of an event. Args: to: the rung after it; None: as before it."""
        mean, low, high = self._estimate(self._rule.raise_after)
        name, direction = key or (None, None)
        table = None if key is None else self.tables.get(key)  # None of one that is gone, too
        before = None if table is None else table.rung
        after = before if to is None else to
        names = () if table is None else table.ladder.names
        record = GuardRecord(
            step=self.step,
            probe=self.probe,
            event=event,
            reason=reason,
            message="",
            table=name,
            direction=direction,
            rung_before=before,
            rung_after=after,
            codec_before=None if before is None else names[before],
            codec_after=None if after is None else names[after],
            change=mean,
            low=low,
            high=high,
            figures=dict(figures or {}),
            **self._about,
        )
        return replace(record, message=message_of(record, self._rule.limit_ne))

    def _estimate(
        self, length: int | None = None
    ) -> tuple[float | None, float | None, float | None]:
        """Return the mean of the latest readings and its interval. Args: length: how many."""
        if not len(self._readings):
            return None, None, None
        estimate = self._readings.estimate(length)
        return estimate.mean, *estimate.interval

    def state_dict(self) -> dict[str, Any]:
        """Return all that later decisions depend on, as JSON can hold it."""
        tables = [[*key, asdict(table.state)] for key, table in self.tables.items()]
        readings = [list(reading) for reading in self._readings.readings]
        saved = {name: getattr(self, name) for name in _SAVED}
        return saved | {"readings": readings, "tables": tables}

    def load_state_dict(self, state: Mapping[str, Any]) -> list[GuardRecord]:
        """Continue from a `state_dict`, by names of tables and of rungs.

        A new table, or a table whose rung is no longer on its ladder, begins anew with the rung
        that the configuration gives.

        Returns: an event for each such table and for each table that is gone; empty if the run goes
            on exactly.
        """
        for name in _SAVED:
            setattr(self, name, state[name])
        self._readings.restart(state["readings"])
        saved: dict[Key, Any] = {(table, d): one for table, d, one in state["tables"]}
        unfit = [key for key in saved if key not in self.tables]  # which are gone
        for key, table in self.tables.items():
            if key in saved and saved[key]["rung"] in table.ladder.names:
                table.state = TableState.from_dict(saved[key])
            else:
                table.state = TableState(table.ladder.names[table.ladder.start])
                unfit.append(key)
        events = [self._event("warn", "resumed", key) for key in unfit]
        if events:
            self._readings.restart()
        return events
