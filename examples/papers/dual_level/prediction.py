"""Whether predicting a value from its neighbours makes quantized rows smaller: entropies.

An entropy coder needs about the entropy of what it codes. Prediction pays where the differences to
a neighbour have less of it than the integers themselves. Independent integers of one spread have
more: the variance of a difference is twice theirs, half a bit a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from examples.papers.dual_level.ratio import codes

PREDICTIONS = ("none", "columns", "rows", "both")


def bits(tables: Sequence[Sequence[Tensor]], bound: float) -> Mapping[str, float]:
    """Return the entropy in bits a value, the mean over tables, by prediction.

    columns: each value from the one before it in its row; rows: from the value above it, of the
    sample before; both: the Lorenzo predictor of the two. The first ones stay as they are.

    Args: tables: batches [n, D] float32 of each table.  bound: relative, of each batch's range.
    """
    totals = dict.fromkeys(PREDICTIONS, 0.0)
    for batches in tables:
        integers = [codes(rows, bound) for rows in batches]
        for name in PREDICTIONS:
            totals[name] += entropy([differences(block, name) for block in integers])
    return {name: total / len(tables) for name, total in totals.items()}


def differences(integers: np.ndarray, prediction: str) -> np.ndarray:
    """Return [n, D], the integers less what is predicted. Args: prediction: one of PREDICTIONS."""
    left = integers
    if prediction in ("columns", "both"):
        left = np.diff(left, axis=1, prepend=0)
    if prediction in ("rows", "both"):
        left = np.diff(left, axis=0, prepend=0)
    return left


def entropy(blocks: Sequence[np.ndarray]) -> float:
    """Return the entropy of all integers together, bits a value."""
    _, counts = np.unique(np.concatenate([block.ravel() for block in blocks]), return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())
