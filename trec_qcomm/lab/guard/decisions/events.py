"""Event, what a guard did or told at a probe, and Decision, all that it wants after a reading.

Knows: rungs as numbers. Does not know: codecs, files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trec_qcomm.config.tables import Direction
from trec_qcomm.lab.guard.decisions.ladder import Key
from trec_qcomm.lab.records.kinds import GuardEvent, GuardReason


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that a guard did or told.

    Args:
        kind: what was done.
        reason: why.
        step: number of the training step.
        probe: number of the probe, from 0.
        table, direction: what it is about; None where it is about the whole model.
        before, after: rungs; equal where nothing was changed, None without a table.
        name_before, name_after: names of these rungs, such as a codec's repr.
        change: mean change of the loss in percent that the decision rests on.
        low, high: interval of that mean; None where there are too few readings.
        limit_ne: the limit of that mean.
        figures: further numbers, by name: signals, and effects of tables ("effect t_C3").
    """

    kind: GuardEvent
    reason: GuardReason
    step: int
    probe: int
    table: str | None = None
    direction: Direction | None = None
    before: int | None = None
    after: int | None = None
    name_before: str | None = None
    name_after: str | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    limit_ne: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_move(self) -> bool:
        """Whether a table has another rung after it."""
        return self.before != self.after

    @property
    def message(self) -> str:
        """One sentence for a log."""
        subject = "guard" if self.table is None else f"guard: {self.table}"
        subject += f" {self.direction}" if self.direction else ""
        move = f"{self.name_before} -> {self.name_after}" if self.is_move else _KINDS[self.kind]
        return f"{subject}: {move}: {self._why()}"

    def _why(self) -> str:
        why = _REASONS[self.reason]
        if self.reason in ("loss", "calm") and self.change is not None:
            interval = "" if self.low is None else f" [{self.low:+.3g}, {self.high:+.3g}]"
            why += f": {self.change:+.3g} %{interval}, limit {self.limit_ne:g} %"
        return why


_KINDS = {
    "trip": "trips", "raise": "raised", "lower": "lowered", "warn": "no change", "error": "error",
    "calm": "calm again",
}  # fmt: skip
_REASONS = {
    "loss": "codecs add to the loss of the probe batches",
    "calm": "what codecs add to the loss of the probe batches was low for long",
    "nan": "values are NaN or infinite before they are coded",
    "unencodable": "finite values are NaN or infinite after the codec",
    "pointless": "coded rows take more bytes than float32",
    "snr": "signal to noise is below least_snr_db",
    "drift": "the codec does much worse than it did",
    "no_table_left": "the loss is above the limit, and no table has a finer codec",
    "undecidable": "the loss of a probe batch is NaN or infinite without codecs",
    "resumed": "the checkpoint has no such rung for it; it begins as the configuration says",
}


@dataclass(frozen=True, kw_only=True)
class Decision:
    """All that a guard wants after a reading.

    Args:
        events: what was decided and is to be told, in order.
        attribute: tables whose effect the policy wants to know (`GuardPolicy.attributed`) before it
            can go on; none where it is empty.
        change, low, high: mean change over the readings so far in this state of all rungs, and its
            interval; None where there are too few readings.
    """

    events: tuple[Event, ...] = ()
    attribute: tuple[str, ...] = ()
    change: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def moves(self) -> dict[Key, int]:
        """The new rung of each table and direction that is to be changed."""
        return {
            (event.table, event.direction): event.after
            for event in self.events
            if event.is_move
            and event.table is not None
            and event.direction is not None
            and event.after is not None
        }

    @property
    def errors(self) -> tuple[Event, ...]:
        """The events for which the configuration asks for an error."""
        return tuple(event for event in self.events if event.kind == "error")
