"""GuardExtension: what a config's `guard` adds to a session, before and after the guard is made.

`QComm` imports its method `guard` from here (qcomm.TOOLS).
Knows: sessions, ladders. Does not know: decisions, losses.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.config import TableRule
from trec_qcomm.integration.current_rules import CodecChanges
from trec_qcomm.integration.extension import Extension
from trec_qcomm.integration.session import Session
from trec_qcomm.lab.debug.inspection import LossFunction
from trec_qcomm.lab.guard.guard import Guard, codecs_of_state
from trec_qcomm.lab.guard.rule import GuardRule
from trec_qcomm.lab.guard.signals import SignalSums
from trec_qcomm.lab.records import Scalar
from trec_qcomm.qcomm import QComm

_log = logging.getLogger("trec_qcomm.guard")
MOST_STEPS_WITHOUT = 16  # before the guard is made
MOST_MICRO_BATCHES = 1000  # more than any loop accumulates for one optimizer step


class GuardExtension(Extension):
    """Counters of a guarded session, and its guard once it is made.

    Args: session: the session.  rule: the config's `guard`.
    Attributes:
        guard: the guard; None before `QComm.guard`.
        loaded: the guard's state in a checkpoint.
    """

    def __init__(self, session: Session, rule: GuardRule) -> None:
        self._session, self._rule = session, rule
        self.signals = SignalSums(rule)
        self.guard: Guard | None = None
        self.loaded = ""
        self._is_told = False
        session.state["guard"] = self

    def check_tables(
        self, tables: Iterable[str], dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        guarded = list(filter(self._rule.matches, tables))
        if guarded and dtype != torch.float32:
            raise ValueError(
                f"guard: table {guarded[0]!r}: {dtype}; allowed: torch.float32 (output_dtype fp32)"
            )
        if device is None or device.type != "cuda":
            return
        for table in guarded:
            for _, codec in self._rule.codecs_of_table(self._session.config.rule_for(table)):
                if not codec.has_gpu_kernels:
                    raise ValueError(
                        f"device {device}: guard: table {table!r}: no GPU kernels for {codec!r}; "
                        "take a ladder of codecs that have them, such as rowwise and cast"
                    )

    def changes_of(self, rules: Mapping[str, TableRule]) -> Iterator[CodecChanges]:
        """Yield changes that together have every codec that the guard may choose, rung by rung."""
        guard = self._rule
        ladders = {t: guard.ladders(rule) for t, rule in rules.items() if guard.matches(t)}
        tops = (ladder.top for pair in ladders.values() for ladder in pair.values())
        for rung in range(max(tops, default=-1) + 1):
            yield {
                table: {d: ladder.codecs[min(rung, ladder.top)] for d, ladder in pair.items()}
                for table, pair in ladders.items()
            }

    def add_collective(self, collective: RowCollective, module: str) -> None:
        if not collective.intra:
            collective.add_observer(self.signals)

    def check_step(self, step: int) -> None:
        if self.signals.guarded_step is None:
            self.signals.guarded_step = step
        num_steps = step - self.signals.guarded_step
        told = f"{self._session.config.source}: guard: {num_steps} steps without guard.step(); call"
        then = "guard.step() after each optimizer step, or leave out guard"
        if self.guard is None and num_steps >= max(self._rule.every, MOST_STEPS_WITHOUT):
            raise ValueError(f"{told} guard = qcomm.guard(loss_fn, probe_batches) and {then}")
        if self.guard is not None and num_steps >= MOST_MICRO_BATCHES and not self._is_told:
            _log.warning("%s %s", told, then)
            self._is_told = True

    def state_dict(self) -> dict[str, Any]:
        """Return {"guard": the guard's state as text, equal on all ranks, "num_steps"}.

        "num_steps" is there for torch.distributed.checkpoint, which does not always load a mapping
        without any tensor.
        """
        text = self.loaded if self.guard is None else self.guard.state_text()
        return {"guard": text, "num_steps": torch.tensor(self.signals.guarded_step or 0)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, or begin anew for {}."""
        self.loaded = str(state.get("guard", ""))
        self.signals.reset()
        self.signals.guarded_step = None
        changes = codecs_of_state(self.loaded, self._session.config)
        self._session.collectives.load_codecs(changes)
        if self.guard is not None and self.loaded:
            self.guard.load(self.loaded)


def guard(
    qcomm: QComm,
    loss_fn: LossFunction,
    probe_batches: Sequence[Any],
    *,
    parts: int = 1,
    file: str | Path | None = None,
    setup: Mapping[str, Scalar] | None = None,
    run: str | None = None,
) -> Guard:
    """Return the guard of the config's `guard`. Collective; call it once, after sharding.

        guard = qcomm.guard(loss_of, probe_batches)
        for batch in batches:
            ...  # forward, backward, optimizer.step()
            guard.step()

    At a probe it calls `loss_fn` on each batch with codecs and without, both times without
    gradients. Torch's random numbers and the codecs' noise are drawn anew for each probe, and are
    equal for both calls. Statistics and numbers of steps stay as they are. `loss_fn` decides about
    dropout and batch normalization: call `model.eval()` and `model.train()` in it. Batches that the
    model did not train on tell most.

    Args:
        loss_fn: function that takes a batch and returns this rank's loss, a number or a
            tensor of one; with `parts`, a tensor with the loss of each sample.
        probe_batches: this rank's batches, of any type, which stay the same; equally many on all
            ranks, and two or more parts in all. The spread of their changes says how certain a
            change is. With eight in all the guard trips soon.
        parts: number of parts of adjacent samples into which each batch's losses are cut. One
            forward pass then counts as so many batches.
        file: JSONL file to which rank 0 appends records; None writes none.
        setup: all settings that must be equal for two runs to be compared, for the records.
        run: name of the training, for the records.

    Raises: ValueError: no `guard` in the config, a second guard, a model that is not sharded yet, a
        pattern without a table, too few probe batches, or ranks with other numbers of batches.
    """
    extension = guarding_of(qcomm.session)
    options: dict[str, Any] = {"parts": parts, "file": file, "setup": setup, "run": run}
    if extension.guard is not None:
        raise ValueError("guard: this QComm has a guard already; use that one")
    made = Guard(qcomm.session, extension.signals, loss_fn, probe_batches, **options)
    if extension.loaded:
        made.load(extension.loaded)
    extension.guard = made
    return made


def guarding_of(session: Session) -> GuardExtension:
    """Return the GuardExtension of a session. Raises ValueError if the config has no `guard`."""
    for extension in session.extensions.values():
        if isinstance(extension, GuardExtension):
            return extension
    raise ValueError(
        f"{session.config.source}: guard: the config has no `guard`; add `guard: {{}}`"
    )
