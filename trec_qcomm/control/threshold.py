"""Thresholds: quantiles of magnitudes, exact or of a sample, updated every so many steps.

A schedule may let a larger share of the values through in the first steps of a training.

Knows: magnitudes. Does not know: rows, codecs, ranks. Each sender has a threshold of its own.
Source: Gupta et al. 2021 (DCT): a threshold that is updated once in many iterations, so that
choosing values costs one comparison each. To take the quantile of a sample is ours. A density that
falls at first: Lin et al. 2018 (Deep Gradient Compression), from 25 % exponentially.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from trec_qcomm.codecs import Threshold, TopK
from trec_qcomm.config.gradients import GradientRule
from trec_qcomm.config.section import Section
from trec_qcomm.ext.dual_level.schedule import Schedule
from trec_qcomm.integration.tolerances import TableTolerance

_LEAST = 2.0**-126  # the threshold where the quantile is 0, so that zeros are never sent


@dataclass(frozen=True, kw_only=True)
class ThresholdRefresh(Section):
    """Rule that updates the threshold of a table or of gradients.

    Args:
        every: steps between two updates, >= 1.
        density: share of the values that reach the threshold, 0 < density < 1.
        sample: number of values that an update looks at, >= 1, evenly spread; or `all`.
        schedule: factor of the density by the step of an update; None: 1. `density` holds from the
            first update at its `end_step` or later.
    """

    every: int
    density: float
    sample: int | Literal["all"] = 4096
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if type(self.every) is not int or self.every < 1:
            raise ValueError(f"every: {self.every!r} is not an integer >= 1")
        if self.sample != "all" and (type(self.sample) is not int or self.sample < 1):
            raise ValueError(f"sample: {self.sample!r} is not an integer >= 1 or all")
        if type(self.density) is not float or not 0 < self.density < 1:
            raise ValueError(f"density: {self.density!r} is not a number between 0 and 1")
        if self.schedule is not None:
            self._check_schedule(self.schedule)

    def _check_schedule(self, schedule: Schedule) -> None:
        """Raise ValueError at a schedule that lets all through, or ends too early to be seen."""
        if not isinstance(schedule, Schedule):
            raise ValueError(f"schedule: expected a Schedule, got {schedule!r}")
        if self.density_at(0) >= 1:
            raise ValueError(
                f"schedule.start: {schedule.multiplier(0)!r} times the density, {self.density!r}, "
                f"is not below 1; allowed: 1 <= start < {1 / self.density:g}"
            )
        if schedule.multiplier(0) > 1 and schedule.multiplier(self.every - 1) == 1:
            raise ValueError(
                f"every: {self.every}: the schedule has ended before the second update, at step "
                f"{self.every}; allowed: every <= end_step"
            )

    def check(self, owner: Any) -> None:
        if isinstance(owner, GradientRule):
            if not (isinstance(owner.codec, Threshold | TopK) and owner.codec.threshold):
                raise ValueError("refresh: only for codecs threshold and topk with a threshold > 0")
        elif not isinstance(owner.forward, TopK) or owner.forward.threshold is None:
            raise ValueError("refresh: only for forward {codec: topk, threshold: ...}")

    def table_tolerance(self) -> "SampledThreshold":
        return SampledThreshold(self)

    def density_at(self, step: int) -> float:
        """Return the share of the values that reach a threshold that is found at a step."""
        factor = 1.0 if self.schedule is None else self.schedule.multiplier(step)
        return self.density * factor


def quantile(values: Tensor, refresh: ThresholdRefresh, *, step: int) -> float | None:
    """Return the magnitude that the step's density, a share of the sample, reaches.

    It is None where no value of the sample is finite and other than zero.

    Args: values: float32, any shape.  refresh: density and size of the sample.  step: number of
        the step, from 0.
    """
    flat = values.reshape(-1)
    if refresh.sample != "all":
        stride = max(1, len(flat) // refresh.sample)
        flat = flat[::stride][: refresh.sample]
    sample = flat.abs()
    sample = sample[sample.isfinite()]
    if not bool(sample.any()):
        return None
    k = math.ceil(refresh.density_at(step) * len(sample))
    return max(float(sample.topk(k).values[-1]), _LEAST)


class SampledThreshold(TableTolerance):
    """Threshold of one table while training: the codec's own until the first update."""

    def __init__(self, refresh: ThresholdRefresh) -> None:
        self.refresh = refresh
        self.threshold: float | None = None  # None before the first update

    def is_due(self, step: int) -> bool:
        """Return whether to update the threshold in this step: 0, every, 2 every, ..."""
        return step % self.refresh.every == 0

    def observe(self, rows: Tensor, step: int) -> None:
        """Update the threshold. If no value is finite and other than zero, it stays."""
        threshold = quantile(rows, self.refresh, step=step)
        self.threshold = self.threshold if threshold is None else threshold

    def tolerance(self, given: float, step: int) -> float:
        return given if self.threshold is None else self.threshold

    def state_dict(self) -> dict[str, Tensor]:
        """Return {"threshold": [] float64}, NaN before the first update."""
        value = math.nan if self.threshold is None else self.threshold
        return {"threshold": torch.tensor(value, dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`. Raises ValueError: its number is not a threshold > 0."""
        value = float(state["threshold"])
        if value <= 0 or math.isinf(value):
            raise ValueError(f"threshold: {value!r} is not a number > 0")
        self.threshold = None if math.isnan(value) else value
