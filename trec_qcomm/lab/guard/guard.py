"""Guard: watch what codecs add to the loss of a training, and change them (docs/GUARD.md).

In most steps the guard counts and returns. When a probe is due, all ranks run the same forward
passes and one small all-reduce. They decide by the same numbers (policy.py), so they change the
same codecs at the same step without asking one another.

Knows: sessions, configs, ladders, decisions. Does not know: TorchRec, models.
"""

import json
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite, nan
from pathlib import Path
from time import time
from typing import Any

import torch.distributed as dist

from trec_qcomm.config import Config
from trec_qcomm.config.tables import Direction
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.errors import GuardError
from trec_qcomm.integration.agreement import check_equal
from trec_qcomm.integration.session import Session
from trec_qcomm.lab import records
from trec_qcomm.lab.debug.inspection import LossFunction
from trec_qcomm.lab.debug.rule import check_patterns
from trec_qcomm.lab.guard.ladders import Ladder
from trec_qcomm.lab.guard.messages import is_move
from trec_qcomm.lab.guard.policy import GuardPolicy
from trec_qcomm.lab.guard.probe import Probe, gathered
from trec_qcomm.lab.guard.rule import GuardRule
from trec_qcomm.lab.guard.signals import SignalSums, signals_of
from trec_qcomm.lab.guard.tables import Key
from trec_qcomm.lab.records import GuardRecord, Record, Scalar

_log = logging.getLogger("trec_qcomm.guard")
KEPT_RECORDS = 10_000
_LEVELS = {"calm": logging.INFO, "lower": logging.INFO}  # others are warnings


class Guard:
    """Guard of one QComm; `QComm.guard` makes it. Call `step` after each optimizer step."""

    def __init__(
        self,
        session: Session,
        signals: SignalSums,
        loss_fn: LossFunction,
        probe_batches: Sequence[Any],
        *,
        parts: int = 1,
        file: str | Path | None = None,
        setup: Mapping[str, Scalar] | None = None,
        run: str | None = None,
    ) -> None:
        """Prepare. Collective. The arguments are those of QComm.guard.

        Args: session: the session.  signals: sums over its values.
        Raises: ValueError: a model that is not sharded, a pattern without a table, a wrong `parts`,
            too few probe batches, or ranks with other numbers of batches.
        """
        config, rule = session.config, session.config.guard
        assert isinstance(rule, GuardRule)
        if not callable(loss_fn):
            raise ValueError(f"guard: loss_fn: {loss_fn!r} is not a function")
        batches = list(probe_batches)
        _check_batches(batches, parts)
        self._session, self._signals, self._every = session, signals, rule.every
        about = {"configuration": config.source, "seed": config.seed}
        ladders = _ladders(config, rule, session.collectives.tables())
        self._policy = GuardPolicy(rule, ladders, about | {"setup": dict(setup or {}), "run": run})
        self._probe = Probe(session, loss_fn, batches, parts)
        self._file = file
        self._records: deque[Record] = deque(maxlen=KEPT_RECORDS)
        self._num_steps = 0
        self._sent = 0.0, 0
        self._arm()

    @property
    def records(self) -> list[Record]:
        """Latest records, in order, on rank 0 only."""
        return list(self._records)

    @property
    def codecs(self) -> dict[str, dict[Direction, Codec]]:
        """Codecs of the guarded tables in the next step, {table: {direction: codec}}."""
        return self._codecs(self._policy.tables)

    def _codecs(self, keys: Iterable[Key]) -> dict[str, dict[Direction, Codec]]:
        codecs: dict[str, dict[Direction, Codec]] = {}
        for table, direction in keys:
            codecs.setdefault(table, {})[direction] = self._policy.tables[table, direction].codec
        return codecs

    def step(self) -> tuple[GuardRecord, ...]:
        """Count an optimizer step, and probe if a probe is due. Call it on all ranks alike.

        Returns: events of this step: what the guard did or told, usually nothing.
        Raises:
            GuardError: the config asks for an error, as with `on_nan: error`; on all ranks.
            ValueError: ranks that are not in step, or a loss that is not one number.
        """
        self._num_steps += 1
        self._signals.guarded_step = max((c.step for c in self._session.collectives), default=0)
        events = self._read() if self._num_steps % self._every == 0 else []
        self._arm()
        return tuple(events)

    def _arm(self) -> None:
        self._signals.is_armed = (self._num_steps + 1) % self._every == 0

    def _read(self) -> list[GuardRecord]:
        """Probe, decide, and change codecs."""
        keys = list(self._policy.tables)
        sums = self._signals.take(keys)
        losses = self._probe.on_and_off(self._num_steps)
        losses, sums = gathered(losses, sums, self._agreed())
        on, off = losses.tolist()
        changes = [_percent(a, b, b) for a, b in zip(on, off, strict=True)]
        effects_of = partial(self._effects, on=on, off=off)
        probe, events = self._policy.read(
            self._num_steps, changes, signals_of(keys, sums), effects_of
        )
        moved = {(event.table, event.direction) for event in filter(is_move, events)}
        if moved:
            self._session.collectives.use_codecs(self._codecs(k for k in keys if k in moved))
        self._write([replace(probe, wire_nbytes=self._nbytes_a_step()), *events])
        errors = [event.message for event in events if event.event == "error"]
        if errors:
            raise GuardError("; ".join(errors))
        return events

    def _effects(
        self, tables: Sequence[str], on: Sequence[float], off: Sequence[float]
    ) -> dict[str, list[float]]:
        """Return what each table's codec adds to the loss of each batch, in percent. Collective."""
        losses = self._probe.without(self._num_steps, tables)
        without, _ = gathered(losses, losses.new_zeros(0), self._agreed())
        return {
            table: [_percent(*losses) for losses in zip(on, of_table, off, strict=True)]
            for table, of_table in zip(tables, without.tolist(), strict=True)
        }

    def _write(self, made: Sequence[Record]) -> None:
        """Keep records, tell the log of events, and append to the file; on rank 0."""
        if dist.get_rank() != 0:
            return
        for record in made:
            if isinstance(record, GuardRecord):
                _log.log(_LEVELS.get(record.event, logging.WARNING), "%s", record.message)
        stamped = [replace(record, time=time()) for record in made]
        self._records.extend(stamped)
        if self._file is not None and stamped:
            records.append(self._file, *stamped)

    def _agreed(self) -> str:
        """Return what must be equal on all ranks."""
        rungs = ",".join(map(str, self._policy.rungs.values()))
        return f"step {self._num_steps}, {len(self._probe.batches)} batches, rungs {rungs}"

    def _nbytes_a_step(self) -> float | None:
        """Return the bytes of rows and gradients that this rank sent in a step since last asked."""
        stats = self._session.stats()
        kinds = [kind for name, kind in stats.by_kind().items() if "embedding" in name]
        nbytes = float(sum(kind.wire_nbytes for kind in kinds))
        (nbytes_before, steps_before), self._sent = self._sent, (nbytes, stats.num_steps)
        num_steps = stats.num_steps - steps_before
        return (nbytes - nbytes_before) / num_steps if num_steps > 0 else None

    def state_text(self) -> str:
        """Return the state, equal on all ranks, as text."""
        return json.dumps({"num_steps": self._num_steps, "policy": self._policy.state_dict()})

    def load(self, text: str) -> None:
        """Continue from a `state_text`, and use its codecs. The number of ranks may differ."""
        state = json.loads(text)
        self._num_steps = state["num_steps"]
        self._write(self._policy.load_state_dict(state["policy"]))
        self._session.collectives.use_codecs(self.codecs)
        self._arm()


def _check_batches(batches: Sequence[Any], parts: int) -> None:
    if type(parts) is not int or parts < 1:
        raise ValueError(f"guard: parts: {parts!r} is not an integer >= 1")
    everyone = dist.group.WORLD
    assert everyone is not None
    said = {"probe_batches": f"{len(batches)} batches", "parts": f"{parts} parts"}
    check_equal(everyone, said, "guard: ranks have different numbers of probe batches")
    if len(batches) * parts * dist.get_world_size() < 2:
        raise ValueError(
            f"guard: probe_batches: {len(batches)} in all; expected two or more, whose spread "
            "shows how certain a change of the loss is"
        )


def _percent(loss: float, other: float, base: float) -> float:
    """Return by how many percent of `base` a loss is above another one.

    NaN where `base` is not finite; inf where only `loss` is not; 0 where both others are not.
    """
    if not isfinite(base):
        return nan
    if not isfinite(loss):
        return inf if isfinite(other) else 0.0
    if not isfinite(other):
        return -inf
    return 100 * (loss - other) / abs(base) if base else (inf if loss > other else 0.0)


def _ladders(config: Config, rule: GuardRule, tables: Sequence[str]) -> dict[Key, Ladder]:
    """Return the ladders of the tables that the guard watches.

    Raises: ValueError: no table is exchanged, or a pattern of `guard.tables` matches none.
    """
    if not tables:
        raise ValueError("guard: no table is sharded yet, or none is sent")
    check_patterns(f"{config.source}: guard.tables", rule.tables, tables, "table that is sent")
    return {
        (table, direction): ladder
        for table in filter(rule.matches, tables)
        for direction, ladder in rule.ladders(config.rule_for(table)).items()
    }


def codecs_of_state(text: str, config: Config) -> dict[str, dict[Direction, Codec]]:
    """Return the codecs that tables have in a guard's state, {table: {direction: codec}}.

    Rungs that the config's ladders do not have are left out.

    Args: text: result of Guard.state_text.
    Raises: ValueError: no such text.
    """
    guard = config.guard
    if not text or not isinstance(guard, GuardRule):
        return {}
    try:
        names = {(t, d): state["rung"] for t, d, state in json.loads(text)["policy"]["tables"]}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"state: guard: no state of a guard: {error!r}") from error
    codecs: dict[str, dict[Direction, Codec]] = {}
    for table in filter(guard.matches, dict.fromkeys(table for table, _ in names)):
        for direction, ladder in guard.ladders(config.rule_for(table)).items():
            name = names.get((table, direction))
            if name in ladder.names:
                codecs.setdefault(table, {})[direction] = ladder.codecs[ladder.names.index(name)]
    return codecs
