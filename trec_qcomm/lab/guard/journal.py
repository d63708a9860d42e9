"""Journal: what a guard did and read, told to the log and written as records, once for all ranks.

Knows: events, records. Does not know: how it was decided.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from math import fsum, isfinite
from pathlib import Path
from time import time
from typing import Any

import torch.distributed as dist

from trec_qcomm.config import Config
from trec_qcomm.lab import records
from trec_qcomm.lab.guard.decisions.events import Decision, Event
from trec_qcomm.lab.guard.decisions.policy import GuardPolicy
from trec_qcomm.lab.records import GuardProbeRecord, GuardRecord, Scalar

_log = logging.getLogger("trec_qcomm.guard")
KEPT_RECORDS = 10_000
_LEVELS = {"calm": logging.INFO, "lower": logging.INFO}  # others are warnings


class Journal:
    """Records of a guard, and its lines in the log; of rank 0 alone.

    Args:
        config: the QComm's config.
        file: JSONL file that is appended to; None writes none.
        setup: all that must be equal for two runs to be compared, for the records.
        run: name of the training, for the records.
    Attributes: latest: the latest records, in order.
    """

    def __init__(
        self,
        config: Config,
        *,
        file: str | Path | None,
        setup: Mapping[str, Scalar] | None,
        run: str | None,
    ) -> None:
        self.latest: deque[records.Record] = deque(maxlen=KEPT_RECORDS)
        self._file = None if file is None else Path(file)
        self._shared: dict[str, Any] = {
            "configuration": config.source, "setup": dict(setup or {}), "seed": config.seed,
            "run": run,
        }  # fmt: skip

    def tell(self, events: Sequence[Event]) -> None:
        """Tell the log of events, and write them."""
        if dist.get_rank() != 0:
            return
        for event in events:
            _log.log(_LEVELS.get(event.kind, logging.WARNING), "%s", event.message)
        self._write([self._record(event) for event in events])

    def _record(self, event: Event) -> GuardRecord:
        names = (
            "step",
            "probe",
            "reason",
            "message",
            "table",
            "direction",
            "change",
            "low",
            "high",
        )
        return GuardRecord(
            event=event.kind,
            rung_before=event.before, rung_after=event.after,
            codec_before=event.name_before, codec_after=event.name_after,
            figures=dict(event.figures), time=time(),
            **{name: getattr(event, name) for name in names}, **self._shared,
        )  # fmt: skip

    def read(
        self,
        policy: GuardPolicy,
        decision: Decision,
        *,
        step: int,
        changes: Sequence[float],
        wire_nbytes: float | None,
    ) -> None:
        """Write what a probe has read, with the rungs that it was read with.

        Args: decision: what the policy made of it.  The others: fields of a GuardProbeRecord.
        """
        if dist.get_rank() != 0:
            return
        rungs: dict[Any, Any] = policy.rungs
        moved = {(e.table, e.direction): e.before for e in decision.events if e.is_move}
        before = rungs | {key: moved[key] for key in rungs if key in moved}
        change = fsum(changes) / len(changes) if all(map(isfinite, changes)) else None

        record = GuardProbeRecord(
            step=step, probe=policy.probe, limit_ne=policy.limits.limit_ne,
            change=change, mean=decision.change, low=decision.low, high=decision.high,
            forward={table: rung for (table, d), rung in before.items() if d == "forward"},
            backward={table: rung for (table, d), rung in before.items() if d == "backward"},
            num_rungs={f"{t} {d}": x.top + 1 for (t, d), x in policy.ladders.items()},
            wire_nbytes=wire_nbytes, time=time(), **self._shared,
        )  # fmt: skip
        self._write([record])

    def _write(self, made: Sequence[records.Record]) -> None:
        self.latest.extend(made)
        if self._file is not None and made:
            records.append(self._file, *made)
