"""What the records of closed studies say: which tables' codecs cost loss, what a guard did.

Knows: single_tables/ and lifespans/ beside this folder. Does not know: how to train. The scripts
that made the records, attribution and lifespan, are in commit a63d3dd.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np

from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, GuardRecord, Record, StudyRecord, TrainingRecord

Effects = Mapping[str, float]  # by table


def read_effects(path: Path) -> dict[str, Effects]:
    """Return what each table's forward codec adds to the loss, the mean over seeds.

    Returns: by how the model was trained, "float32" or "coded", and by table.
    """
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records.read(path):
        assert isinstance(record, BenchRecord)
        of_table = values[str(record.case["trained"])][str(record.case["table"])]
        of_table.append(float(record.figures["added_loss"]))
    return {t: {table: mean(v) for table, v in by.items()} for t, by in values.items()}


def read_truth(path: Path) -> dict[str, list[float]]:
    """Return for each table the change of the test's NE, in percent, one a seed.

    Only that table's forward codec was on in these trainings.
    """
    nes: dict[str, dict[int, float]] = defaultdict(dict)
    for record in records.read(path):
        if isinstance(record, StudyRecord) and record.training is not None:
            nes[record.configuration][record.seed] = record.training.metrics["ne"]
    exact = nes["fp32"]
    return {
        table: [100 * (ne / exact[seed] - 1) for seed, ne in of_seed.items()]
        for table, of_seed in nes.items()
        if table.startswith("t_")
    }


def rank_correlation(one: Effects, other: Effects) -> tuple[float, float, float]:
    """Return Spearman's correlation over the tables of both, and its 95 % interval (Fisher's z)."""
    names = [table for table in one if table in other]
    ranks = [np.argsort(np.argsort([effects[t] for t in names])) for effects in (one, other)]
    rho = float(np.corrcoef(*ranks)[0, 1])
    z, half = np.arctanh(np.clip(rho, -0.999999, 0.999999)), 1.96 / max(len(names) - 3, 1) ** 0.5
    return rho, float(np.tanh(z - half)), float(np.tanh(z + half))


@dataclass
class Lives:
    """Records of trainings in which something happened, with a guard and without.

    Args:
        trainings: the whole training, by drift, name and seed.
        events: what guards did, by name of the training.
    """

    trainings: dict[tuple[str, str, int], TrainingRecord] = field(default_factory=dict)
    events: dict[str, list[GuardRecord]] = field(default_factory=lambda: defaultdict(list))

    def add(self, made: Iterable[Record]) -> None:
        """Add records; those of progress and of probes are passed over."""
        for record in made:
            if isinstance(record, TrainingRecord):
                key = str(record.setup["drift"]), record.configuration, record.seed
                self.trainings[key] = record
            elif isinstance(record, GuardRecord):
                self.events[record.run or ""].append(record)

    @property
    def drifts(self) -> list[str]:
        """The drifts that there are trainings of."""
        return list(dict.fromkeys(drift for drift, _, _ in self.trainings))

    def of_drift(self, drift: str, name: str) -> dict[int, TrainingRecord]:
        """Return the trainings of one name by seed."""
        chosen = (drift, name)
        return {seed: r for (*its, seed), r in self.trainings.items() if tuple(its) == chosen}


class Reaction(NamedTuple):
    """What a guard did in one training."""

    false_trips: int  # alarms before the drift, or in a training without one
    tables: tuple[str, ...]  # that were moved to a finer codec after the drift, in order


def reactions_to(lives: Lives, drift: str) -> dict[int, Reaction]:
    """Return what the guard did by seed."""
    reactions = {}
    for seed, training in lives.of_drift(drift, "guard").items():
        at_step = np.inf if drift == "none" else int(training.setup["at_step"])
        alarms = [e for e in lives.events[training.run or ""] if e.event in _ALARMS]
        late = [event for event in alarms if event.step > at_step]
        raised = [event.table for event in late if event.event == "raise" and event.table]
        reactions[seed] = Reaction(len(alarms) - len(late), tuple(dict.fromkeys(raised)))
    return reactions


_ALARMS = ("trip", "raise", "warn")
