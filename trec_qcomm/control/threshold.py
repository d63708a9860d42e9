"""Thresholds: quantiles of magnitudes, exact or of a sample, updated every so many steps.

Knows: magnitudes. Does not know: rows, codecs, ranks. Each sender has a threshold of its own.
Source: Gupta et al. 2021 (DCT): a threshold that is updated once in many iterations, so that
choosing values costs one comparison each. To take the quantile of a sample is ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

_LEAST = 2.0**-126  # the threshold where the quantile is 0, so that zeros are never sent


@dataclass(frozen=True, kw_only=True)
class ThresholdRefresh:
    """Rule that updates the threshold of a table or of gradients.

    Args:
        every: steps between two updates, >= 1.
        density: share of the values that reach the threshold, 0 < density < 1.
        sample: number of values that an update looks at, >= 1, evenly spread; or `all`.
    """

    every: int
    density: float
    sample: int | Literal["all"] = 4096

    def __post_init__(self) -> None:
        if type(self.every) is not int or self.every < 1:
            raise ValueError(f"every: {self.every!r} is not an integer >= 1")
        if self.sample != "all" and (type(self.sample) is not int or self.sample < 1):
            raise ValueError(f"sample: {self.sample!r} is not an integer >= 1 or all")
        if type(self.density) is not float or not 0 < self.density < 1:
            raise ValueError(f"density: {self.density!r} is not a number between 0 and 1")


def quantile(values: Tensor, refresh: ThresholdRefresh) -> float | None:
    """Return the magnitude that a share `density` of the sample reaches.

    It is None where no value of the sample is finite and other than zero.

    Args: values: float32, any shape.  refresh: density and size of the sample.
    """
    flat = values.reshape(-1)
    if refresh.sample != "all":
        step = max(1, len(flat) // refresh.sample)
        flat = flat[::step][: refresh.sample]
    sample = flat.abs()
    sample = sample[sample.isfinite()]
    if not bool(sample.any()):
        return None
    k = math.ceil(refresh.density * len(sample))
    return max(float(sample.topk(k).values[-1]), _LEAST)


class SampledThreshold:
    """Threshold of one table while training."""

    def __init__(self, refresh: ThresholdRefresh) -> None:
        self.refresh = refresh
        self.threshold: float | None = None  # None before the first update

    def is_due(self, step: int) -> bool:
        """Return whether to update the threshold in this step: 0, every, 2 every, ..."""
        return step % self.refresh.every == 0

    def observe(self, values: Tensor) -> None:
        """Update the threshold. If no value is finite and other than zero, it stays."""
        threshold = quantile(values, self.refresh)
        self.threshold = self.threshold if threshold is None else threshold

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
