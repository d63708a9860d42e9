"""Rows of Criteo's shape from a seed: what the example trains on when no --data is given.

Knows: the columns of tsv.ROW and a planted signal. Does not know: splits, vocabularies, torch.
26 Zipf-like columns of 3 to 100,000 categories, 13 integers of log-normal counts, missing values in
both. The logit of a click is a little of each column by itself, the product of two sums over four
columns each, and bumps of five integers. A linear model sees the first part only: on 131,072 rows
logistic regression reaches an AUC of .69, a DLRM .77, the planted logit itself .87.
Shapes: N rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data.tsv import MISSING_CATEGORY, NUM_DENSE, NUM_SPARSE, ROW, Ints, Rows

Floats = NDArray[np.float64]

# About the distinct values of Criteo's C1..C26, none above 100,000.
CARDINALITIES = (
    1500, 600, 100_000, 100_000, 300, 24, 12_000, 600, 3, 50_000, 5000, 100_000, 3000,
    27, 10_000, 100_000, 10, 5000, 2000, 4, 100_000, 18, 15, 50_000, 100, 40_000,
)  # fmt: skip
MISSING_RATES = {5: 0.12, 18: 0.44, 19: 0.44, 21: 0.76, 24: 0.44, 25: 0.44}
POSITIVE_RATE = 0.25
ZIPF_EXPONENT = 1.1
JOINT_COLUMNS = ((1, 4, 7, 13), (5, 16, 21, 22))  # from 0: small ones, so it can be learned
OWN_EFFECT = 0.25
JOINT_EFFECT = 1.8
COUNT_EFFECT = 0.3


def generate(num_rows: int, *, seed: int) -> Rows:
    """Rows [N] as the TSV reader would yield them; equal arguments give equal rows.

    Raises: ValueError: num_rows is not positive.
    """
    if num_rows < 1:
        raise ValueError(f"num_rows {num_rows}: must be positive")
    rng = np.random.default_rng(seed)
    rows = np.zeros(num_rows, ROW)
    drawn = np.stack([_zipf(rng, size, num_rows) for size in CARDINALITIES], axis=1)
    counts = np.floor(np.exp(rng.normal(1.5, 1.3, (num_rows, NUM_DENSE))))
    logit = _category_signal(rng, drawn) + _count_signal(counts)
    clicked = rng.random(num_rows) < sigmoid(logit + offset(logit, POSITIVE_RATE))
    rows["label"] = clicked
    counts[:, 1] -= 2  # Criteo's I2 goes down to -2
    rows["dense"] = np.where(rng.random(counts.shape) < 0.1, np.nan, counts)
    rows["categories"] = _hide_some(rng, _to_categories(drawn))
    return rows


def _zipf(rng: np.random.Generator, size: int, num_rows: int) -> Ints:
    """[N] of 0..size-1, the k-th with a probability in proportion to (k + 1) ** -ZIPF_EXPONENT."""
    weight = np.cumsum(np.arange(1.0, size + 1) ** -ZIPF_EXPONENT)
    drawn: Ints = np.searchsorted(weight, rng.random(num_rows) * weight[-1])
    return drawn


def _category_signal(rng: np.random.Generator, drawn: Ints) -> Floats:
    """[N] of the logit: effects of each column, and a product of two sums of some of them."""
    effects = np.stack([_effect(rng, drawn[:, k], n) for k, n in enumerate(CARDINALITIES)])
    left, right = (effects[list(columns)].sum(axis=0) / 2 for columns in JOINT_COLUMNS)
    signal: Floats = OWN_EFFECT * effects.sum(axis=0) + JOINT_EFFECT * left * right
    return signal


def _effect(rng: np.random.Generator, drawn: Ints, size: int) -> Floats:
    """[N] with mean 0 and variance 1: a random number for each category of a column."""
    effect: Floats = rng.normal(0, 1, size)[drawn]
    effect -= effect.mean()
    effect /= effect.std() + 1e-9
    return effect


def _count_signal(counts: Floats) -> Floats:
    """[N] of the logit: a bump over log(1 + x) of five integers, which no line follows."""
    bumps: Floats = np.cos(2 * np.log1p(counts[:, 2:7])).sum(axis=1)
    return COUNT_EFFECT * bumps


def _to_categories(drawn: Ints) -> Ints:
    """Distinct 32-bit values for the distinct draws of a column: an odd factor is a bijection."""
    categories: Ints = (drawn * 2654435761 + np.arange(1, NUM_SPARSE + 1) * 40503) % (1 << 32)
    return categories


def _hide_some(rng: np.random.Generator, categories: Ints) -> Ints:
    hidden = rng.random(categories.shape) < np.array(
        [MISSING_RATES.get(k, 0.0) for k in range(NUM_SPARSE)]
    )
    return np.where(hidden, MISSING_CATEGORY, categories)


def offset(logit: Floats, rate: float) -> float:
    """Return what to add to the logits so that this share of the rows clicks, by bisection."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        too_many = sigmoid(logit + middle).mean() > rate
        low, high = (low, middle) if too_many else (middle, high)
    return low


def sigmoid(x: Floats) -> Floats:
    """Return the logistic function."""
    return 1 / (1 + np.exp(-x))
