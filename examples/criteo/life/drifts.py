"""What may happen to a training: a table's values grow, ids change, a feature dies, and so on.

Knows: a Trainer, rows of a data set. Does not know: codecs, guards, which training it happens to.
A drift happens before a step, and to all trainings alike, those in float32 too. Changed rows stay
changed to the end of the data: the test shows them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from data.dataset import FEATURES, Dataset
from data.tsv import Ints
from trainer import Trainer

SPIKE_FACTOR, SPIKE_STEPS = 10.0, 5
SCALE = 1000.0
SHIFT = 3.0  # of a column, whose values are a few hundredths
OUTLIER_SHARE = 0.01  # of the samples, which have the id whose row grows


@dataclass(frozen=True)
class Drift:
    """A change in the middle of a training.

    Args:
        name: one of DRIFTS.
        feature: name of the feature, or of the table's, that changes; None where none does.
        at_step: number of steps before the change.
        factor: what rows are multiplied with, or divided by; of scale, shrink and outlier.
    """

    name: str
    feature: str | None
    at_step: int
    factor: float = SCALE

    @classmethod
    def from_name(cls, text: str, at_step: int) -> Drift:
        """Return the drift that a word of the command line names, such as `scale:C3`.

        Raises: ValueError: an unknown name or feature, or a feature where none belongs.
        """
        text, _, factor = text.partition("*")
        name, _, feature = text.partition(":")
        if name not in DRIFTS:
            raise ValueError(f"drift {text}: expected one of {', '.join(DRIFTS)}")
        if name not in NEEDS_FEATURE and feature:
            raise ValueError(f"drift {text}: {name} takes no feature")
        if name in NEEDS_FEATURE and feature not in FEATURES:
            raise ValueError(f"drift {text}: expected a feature, such as {name}:C3")
        if at_step < 1:
            raise ValueError(f"at_step {at_step}: must be positive")
        if not factor:
            return cls(name, feature or None, at_step)
        if name not in SCALED or not _is_positive(factor):
            raise ValueError(
                f"drift {text}*{factor}: expected a number > 0, after one of {', '.join(SCALED)}"
            )
        return cls(name, feature or None, at_step, float(factor))

    @property
    def table(self) -> str | None:
        """Name of the table that changes."""
        return None if self.feature is None else f"t_{self.feature}"

    def __str__(self) -> str:
        name = self.name if self.feature is None else f"{self.name}:{self.feature}"
        return name if self.factor == SCALE else f"{name}*{self.factor:g}"

    def change_rows(self, dataset: Dataset, batch_size: int) -> Dataset:
        """Return the data set as it is with this drift; the rows that are given stay as they are.

        Args: batch_size: samples of a step, of all ranks.
        """
        change = _ROW_CHANGES.get(self.name)
        if change is None:
            return dataset
        assert self.feature is not None
        column = FEATURES.index(self.feature)
        ids = np.array(dataset.rows.ids_of(column), np.int64)
        later = ids[self.at_step * batch_size :, 0]
        later[:] = change(later, dataset.num_embeddings[column])
        return replace(dataset, rows=dataset.rows.replaced(column, ids))

    def before_step(self, trainer: Trainer, dataset: Dataset) -> None:
        """Change the model or its optimizer, if it is time. Every rank calls it at every step."""
        step = trainer.step - self.at_step
        if self.name == "spike" and step in (0, SPIKE_STEPS):
            factor = SPIKE_FACTOR if step == 0 else 1 / SPIKE_FACTOR
            for group in trainer.optimizer.param_groups:
                group["lr"] *= factor
        if step != 0 or self.name not in WEIGHT_CHANGES:
            return
        weight = _weight(trainer, self.table)
        if weight is None:
            return  # of another rank
        if self.name == "shift":
            weight[:, 0] += SHIFT
        elif self.name == "outlier":
            column = FEATURES.index(self.feature or "")
            weight[_of_share(dataset.train.ids_of(column)[:, 0], OUTLIER_SHARE)] *= self.factor
        else:
            weight *= self.factor if self.name == "scale" else 1 / self.factor


def _weight(trainer: Trainer, table: str | None) -> torch.Tensor | None:
    """Return the rows of a table; None on the ranks that do not hold it. Plans are table-wise."""
    for name, value in trainer.dmp.state_dict().items():
        if f".{table}." in name:
            shards = [shard.tensor.detach() for shard in value.local_shards()]
            return shards[0] if shards else None
    return None


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def _of_share(ids: Ints, share: float) -> int:
    """Return the id that about so many of the samples have."""
    counts = np.bincount(ids)
    return int(np.abs(counts - share * len(ids)).argmin())


def _new_ids(ids: Ints, num_ids: int) -> Ints:
    """Return other ids in the place of all, so that what was learned holds for other samples."""
    permuted: Ints = np.random.default_rng(0).permutation(num_ids)[ids]
    return permuted


def _dead(ids: Ints, num_ids: int) -> Ints:
    return np.zeros_like(ids)


_ROW_CHANGES: dict[str, Callable[[Ints, int], Ints]] = {"new_ids": _new_ids, "dead": _dead}
SCALED = ("scale", "shrink", "outlier")
WEIGHT_CHANGES = (*SCALED, "shift")
NEEDS_FEATURE = (*WEIGHT_CHANGES, *_ROW_CHANGES)
DRIFTS = ("none", *NEEDS_FEATURE, "spike")
