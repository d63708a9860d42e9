"""A training on one rank, with a drift on its way, and what is noted of it.

Knows: a Trainer, a drift, the guard of a QComm. Does not know: seeds, records, configurations.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from data.dataset import Batches, Dataset
from trainer import Trainer

from life.drifts import Drift
from trec_qcomm.core.stats import Stats


@dataclass
class Course:
    """A training with a drift: the program of `EmulatedTrainer.run`, which every rank calls.

    Args:
        drift: what happens, and when.
        num_probes: number of global batches for the guard, the last ones of the training part.
            They are not trained on, without a guard either.
        log_every: number of steps from one note of the bytes to the next.
        guard_file: file of the guard's records.
        run: name of the training.
        is_tested: whether the test is scored in the end.
        stats: statistics of each rank since the start, by step.
    """

    drift: Drift
    num_probes: int
    log_every: int
    guard_file: Path
    run: str
    is_tested: bool = True
    stats: dict[int, list[Stats]] = field(default_factory=lambda: defaultdict(list))
    _dataset: Dataset | None = None

    def __call__(self, trainer: Trainer, rows: Batches, num_steps: int) -> None:
        """Train, let it drift, and call the guard after each step."""
        assert self._dataset is not None
        last = len(rows) - self.num_probes
        guard = None
        if trainer.qcomm.config.guard is not None:
            guard = trainer.qcomm.guard(
                lambda batch: trainer.dmp(batch)[0],
                [rows[number] for number in range(last, len(rows))],
                file=self.guard_file,
                run=self.run,
            )
        for _ in range(trainer.step, min(num_steps, last)):
            self.drift.before_step(trainer, self._dataset)
            trainer.train_step(rows)
            if guard is not None:
                guard.step()
            if trainer.step % self.log_every == 0:
                self.stats[trainer.step].append(trainer.qcomm.stats())

    def change_rows(self, dataset: Dataset, batch_size: int) -> Dataset:
        """Return the rows as this training sees them. Args: batch_size: of all ranks."""
        self._dataset = self.drift.change_rows(dataset, batch_size)
        return self._dataset
