"""Lives: the records of lifespan.py, by training, and what they say of each.

Knows: records. Does not know: how to train, how anything is shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trec_qcomm.lab import records
from trec_qcomm.lab.records import (
    GuardProbeRecord,
    GuardRecord,
    ProgressRecord,
    Record,
    Scalar,
    TrainingRecord,
)

Key = tuple[str, str, int]  # drift, name of the training, seed
EMBEDDING = ("embedding_forward", "embedding_backward")


@dataclass
class Lives:
    """Records of trainings with drifts.

    Args:
        trainings: the whole training, by drift, name and seed.
        progress, probes, events: the other records, by name of the training.
    """

    trainings: dict[Key, TrainingRecord] = field(default_factory=dict)
    progress: dict[str, list[ProgressRecord]] = field(default_factory=lambda: defaultdict(list))
    probes: dict[str, list[GuardProbeRecord]] = field(default_factory=lambda: defaultdict(list))
    events: dict[str, list[GuardRecord]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def read(cls, path: Path, setup: Mapping[str, Scalar], configs: Mapping[str, str]) -> Lives:
        """Return what a file has; nothing where there is none.

        Args: setup: what all trainings must agree in.  configs: YAML text by name of a training.
        Raises: ValueError: another setup or config, or records of something else.
        """
        lives = cls()
        lives.add(records.read(path) if path.exists() else [])
        for (_, name, _), training in lives.trainings.items():
            theirs = {key: value for key, value in training.setup.items() if key != "drift"}
            changed = [key for key in setup | theirs if setup.get(key) != theirs.get(key)]
            changed += ["config"] * (training.config != configs[name])
            if changed:
                raise ValueError(f"{path}: trainings of another {', '.join(changed)}; give --out")
        return lives

    def add(self, made: Iterable[Record]) -> None:
        """Add records. Raises ValueError: one of another kind."""
        for record in made:
            match record:
                case TrainingRecord():
                    key = str(record.setup["drift"]), record.configuration, record.seed
                    self.trainings[key] = record
                case ProgressRecord():
                    self.progress[record.run or ""].append(record)
                case GuardProbeRecord():
                    self.probes[record.run or ""].append(record)
                case GuardRecord():
                    self.events[record.run or ""].append(record)
                case _:
                    raise ValueError(f"{record.origin}: no record of lifespan.py")

    @property
    def drifts(self) -> list[str]:
        """The drifts that there are trainings of."""
        return list(dict.fromkeys(drift for drift, _, _ in self.trainings))

    def of_drift(self, drift: str, name: str) -> dict[int, TrainingRecord]:
        """Return the trainings of one name by seed."""
        return {
            seed: record
            for (its_drift, its_name, seed), record in self.trainings.items()
            if (its_drift, its_name) == (drift, name)
        }

    def nbytes(self, run: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return steps, and bytes of rows and gradients that a rank sent in a step before each."""
        notes = self.progress[run]
        first = [t.setup.get("exact_steps", 0) for t in self.trainings.values() if t.run == run]
        steps = np.array([*(first or [0]), *(note.step for note in notes)])
        sent = [sum(note.traffic[k].wire_nbytes for k in EMBEDDING) for note in notes]
        return steps[1:], np.diff(np.array([0.0, *sent])) / np.diff(steps)


@dataclass(frozen=True)
class Reaction:
    """What a guard did in one training.

    Args:
        false_trips: number of episodes that began before the drift, or in a training without one.
        probes_until_trip: number of probes from the drift to the first event after it, the first
            one counted; None where there was none.
        tables: tables that were moved to a finer codec after the drift, in order.
        num_moves: number of moves after the drift.
    """

    false_trips: int
    probes_until_trip: int | None
    tables: tuple[str, ...]
    num_moves: int

    @classmethod
    def from_records(
        cls,
        events: Iterable[GuardRecord],
        probes: Iterable[GuardProbeRecord],
        at_step: int | None,
    ) -> Reaction:
        """Return the reaction. Args: at_step: step of the drift; None: there is none."""
        alarms = [event for event in events if event.event in ("trip", "raise", "warn")]
        early = [e for e in alarms if at_step is None or e.step <= at_step]
        late = [event for event in alarms if event not in early]
        raised = [event.table for event in late if event.event == "raise" and event.table]
        steps = [probe.step for probe in probes if at_step is not None and probe.step > at_step]
        until = sum(step <= late[0].step for step in steps) if late else None
        return cls(len(early), until, tuple(dict.fromkeys(raised)), len(raised))
