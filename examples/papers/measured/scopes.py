"""One threshold for each layer or one for all: what 1 % of the gradients keeps of their power.

Knows: gradients of a DLRM. Does not know: papers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from examples.papers.measured.gradients import backward_of_batches
from examples.papers.measurements import Values
from trec_qcomm.control.threshold import ThresholdRefresh, quantile

DENSITY = 0.01
REFRESH = ThresholdRefresh(every=1, density=DENSITY, sample="all")


def cases(num_seeds: int) -> Mapping[str, Callable[[], Values]]:
    """Return the measurements by scope: share of the power that is kept, by seed."""
    return {
        scope: lambda scope=scope: {f"seed {s}": kept(scope, s) for s in range(num_seeds)}
        for scope in ("layer", "global")
    }


def kept(scope: str, seed: int) -> float:
    """Return the share of the squared gradients that reaches the threshold of its scope."""
    (made,) = backward_of_batches(1, seed)
    layers = [gradient.reshape(-1) for gradient in made.dense.values()]
    groups = layers if scope == "layer" else [torch.cat(layers)]
    power = 0.0
    for group in groups:
        threshold = quantile(group, REFRESH, step=0)
        if threshold is not None:
            power += float(group[group.abs() >= threshold].square().sum())
    return power / float(torch.cat(layers).square().sum())
