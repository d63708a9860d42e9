"""How the values of a table's rows are distributed, as counts by bin, and its homogenization index.

Knows: rows of a training. Does not know: codecs, figures. Only counts are kept, no value of a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

NUM_BINS = 41  # of equal width, from -1 to 1; odd, so that 0 is in the middle of one
_BIN = "bin "  # and the bin's number


def distribution(batches: Sequence[Tensor]) -> dict[str, float]:
    """Return how values lie between minus and plus the largest magnitude of all.

    largest: that magnitude; mean, deviation: of the values as shares of it; `bin 0` to `bin 40`:
    numbers of values, those without any left out.

    Args: batches: [n, D] float32 each.  Raises: ValueError: values that are not finite.
    """
    values = np.concatenate([rows.double().numpy().ravel() for rows in batches])
    if not np.isfinite(values).all():
        raise ValueError("rows: expected finite values")
    largest = float(np.abs(values).max())
    shares = values / largest if largest else values
    counts, _ = np.histogram(shares, bins=NUM_BINS, range=(-1, 1))
    bins = {f"{_BIN}{number}": int(count) for number, count in enumerate(counts) if count}
    moments = {"mean": float(shares.mean()), "deviation": float(shares.std())}
    return {"largest": largest, **moments, **bins}


def shares_of(values: Mapping[str, float]) -> np.ndarray:
    """Return [NUM_BINS], the share of the values in each bin.

    Args: values: what `distribution` returns.
    """
    counts = np.array([values.get(f"{_BIN}{number}", 0) for number in range(NUM_BINS)], dtype=float)
    return counts / counts.sum()


def distances(values: Mapping[str, float]) -> tuple[float, float]:
    """Return the total variation distance from a Gaussian and from uniform values.

    The Gaussian has the values' mean and deviation, what lies beyond +-1 counts in the last bins.
    0: equally distributed, 1: no bin in common.

    Args: values: what `distribution` returns.
    """
    shares = shares_of(values)
    deviation = max(values["deviation"], 1e-12)
    edges = (np.linspace(-1, 1, NUM_BINS + 1) - values["mean"]) / (deviation * math.sqrt(2))
    below = np.array([0, *((1 + math.erf(edge)) / 2 for edge in edges[1:-1]), 1])
    others = np.diff(below), np.full(NUM_BINS, 1 / NUM_BINS)
    gaussian, uniform = (float(np.abs(shares - other).sum()) / 2 for other in others)
    return gaussian, uniform
