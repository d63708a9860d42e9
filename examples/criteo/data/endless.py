"""Rows without end, in the image of Criteo's: what long trainings train on.

  python examples/criteo/train.py --config stock --data endless --rows 10000000

Nothing is stored: a block of rows depends on the seed and its number alone. Categories occur as
often as in the real rows (`SHARES`), and a seventh of them is replaced by new ones in PERIOD rows.
A click's logit is the sum of an effect of each category, products of the effects of two features,
and bumps of the integers; the weights of the terms drift. Noise is the draw of the click itself.

Knows: frequencies that were measured, a planted model. Does not know: files, torch, ranks.
Shapes: N rows of a block; F = 26 features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.dataset import Array, Columns, Dataset, Samples, splitmix64
from data.synthetic import offset, sigmoid
from data.tsv import NUM_DENSE, NUM_SPARSE

ENDLESS = Path("endless")  # --data of these rows

Floats = NDArray[np.float64]
Keys = NDArray[np.uint64]

# Measured on 137,139 rows of the Kaggle data: for C1 to C26, the share of rows whose category is
# among the 1, 3, 10, ... RANKS most frequent, and a number of categories. Behind the last rank each
# factor of frequency has as many rows as the next, and the number is such that as many different
# categories come in 137,139 rows as in the real ones.
RANKS = (1, 3, 10, 30, 100, 300, 1000)
SHARES = (
    ((0.5004, 0.7522, 0.9096, 0.9682, 0.9907, 0.9975, 1), 616),
    ((0.1135, 0.1944, 0.4021, 0.6324, 0.8636, 0.9832, 1), 528),
    ((0.0345, 0.0703, 0.1299, 0.2070, 0.2962, 0.3824, 0.4672), 23_631_401),
    ((0.0358, 0.0926, 0.1933, 0.2906, 0.4092, 0.5200, 0.6348), 168_271),
    ((0.6742, 0.8914, 0.9787, 0.9960, 0.9996, 1), 154),
    ((0.3962, 0.8008, 0.9999, 1), 12),
    ((0.0212, 0.0433, 0.0876, 0.1583, 0.2765, 0.4388, 0.6668), 8839),
    ((0.5949, 0.8345, 0.9559, 0.9884, 0.9976, 1), 292),
    ((0.9000, 1), 3),
    ((0.2221, 0.2445, 0.2773, 0.3319, 0.4232, 0.5470, 0.7129), 17_658),
    ((0.0320, 0.0686, 0.1324, 0.2354, 0.3916, 0.5828, 0.8243), 4097),
    ((0.0345, 0.0821, 0.1450, 0.2269, 0.3244, 0.4141, 0.5022), 9_266_181),
    ((0.0320, 0.0724, 0.1504, 0.2651, 0.4387, 0.6430, 0.8779), 2946),
    ((0.3491, 0.8456, 0.9840, 1), 26),
    ((0.0155, 0.0355, 0.0913, 0.2082, 0.4044, 0.6222, 0.8464), 6168),
    ((0.0345, 0.0821, 0.1461, 0.2433, 0.3584, 0.4596, 0.5576), 1_375_150),
    ((0.4602, 0.7049, 1), 10),
    ((0.0320, 0.0871, 0.2153, 0.3722, 0.6007, 0.8137, 0.9585), 2982),
    ((0.4418, 0.8053, 0.8437, 0.8806, 0.9286, 0.9677, 0.9971), 2425),
    ((0.4418, 1), 4),
    ((0.0345, 0.0821, 0.1459, 0.2358, 0.3398, 0.4361, 0.5273), 4_297_800),
    ((0.7613, 0.9826, 1), 13),
    ((0.4374, 0.7582, 0.9948, 1), 14),
    ((0.0529, 0.1467, 0.3188, 0.4526, 0.5782, 0.6833, 0.7977), 26_873),
    ((0.4418, 0.6918, 0.9545, 0.9981, 1), 55),
    ((0.4418, 0.5016, 0.5811, 0.6381, 0.7122, 0.7837, 0.8642), 21_997),
)
# The share of I1 to I13 that is missing there, and mean and standard deviation of log(1 + x).
INTEGERS = (
    (0.451, 0.87, 0.98), (0.0, 2.10, 2.11), (0.213, 2.15, 1.19), (0.214, 1.70, 0.91),
    (0.026, 7.28, 2.93), (0.223, 3.40, 1.75), (0.043, 1.64, 1.38), (0.001, 2.04, 1.16),
    (0.043, 3.54, 1.63), (0.451, 0.40, 0.40), (0.043, 0.93, 0.78), (0.765, 0.29, 0.62),
    (0.214, 1.73, 0.97),
)  # fmt: skip
POSITIVE_RATE = 0.2568
PERIOD = 10_000_000  # rows in which REPLACED of the categories make room for new ones
REPLACED = 1 / 7
TABLE_ROWS = 1 << 16  # of the largest tables, whose categories are hashed
BLOCK_ROWS = 1 << 14
TEST_ROWS = 1 << 16

# Standard deviations of the terms of the logit. Who knows the products has 2.7 % less loss. At 1.2
# it is 18 %, and equal trainings are up to .2 % apart on the way, which hides what codecs do.
CATEGORY_EFFECT, PAIR_EFFECT, COUNT_EFFECT, TREND_EFFECT = 1.2, 0.4, 0.3, 0.4
PAIRED = (1, 3, 6, 10, 12, 14, 17, 18, 23, 25)  # features, from 0, of which two make a product
NUM_FACTORS = 4
BUMPS = (1, 2, 3, 4, 8)  # integers, from 0, of which the logit is a wave
# Integers of which it is a line, and its slope.
TRENDS = {0: 0.4, 2: -0.2, 4: -0.15, 5: -0.3, 6: 0.3, 10: 0.4, 12: -0.3}
DRIFT = 0.3  # of a weight, about 1


def endless(num_rows: int, *, seed: int) -> Dataset:
    """Return the first rows of a stream; the last TEST_ROWS of them, or a seventh, are the test."""
    rows = Samples(EndlessRows(seed), 0, num_rows)
    return Dataset(rows, num_rows - min(TEST_ROWS, num_rows // 7), table_sizes())


def table_sizes() -> list[int]:
    """Return [F] rows of each table: two for a category, which may be replaced, or TABLE_ROWS."""
    return [min(2 * size, TABLE_ROWS) for _, size in SHARES]


class _Drawn(NamedTuple):
    """What is drawn of a block: [N] numbers of rows, [F][N] ranks of frequency of categories,
    [N, 13] integers, and [N] chances, below which that of a click must lie."""

    row: Array
    ranks: list[Array]
    dense: Floats
    chance: Floats


@dataclass(frozen=True)
class EndlessRows:
    """Samples in time order, made when they are asked for. Args: seed: seed of all of them."""

    seed: int

    def cuts(self, start: int, stop: int) -> list[Columns]:
        """Return samples `start` to `stop` - 1, in pieces."""
        numbers = range(start // BLOCK_ROWS, max(start, stop - 1) // BLOCK_ROWS + 1)
        bounds = [(number, number * BLOCK_ROWS) for number in numbers]
        return [_block(self, n).cut(max(start - at, 0), stop - at) for n, at in bounds]

    def make(self, number: int) -> Columns:
        """Return one block of rows."""
        drawn = self._draw(number)
        clicks = drawn.chance < sigmoid(self._logit(drawn) + self._offset)
        ids = tuple(self._ids(k, rank, drawn.row)[:, None] for k, rank in enumerate(drawn.ranks))
        return Columns(clicks.astype(np.uint8), drawn.dense.astype(np.float32), ids)

    def logit_of(self, number: int) -> Floats:
        """Return [N] logits of the chance of a click, of one block of rows."""
        return self._logit(self._draw(number)) + self._offset

    def keys_of(self, feature: int, rank: Array, row: Array) -> Keys:
        """Return [N] numbers that name categories: those of a rank of frequency, at a row."""
        turn = self._turn(feature, rank, row)
        return splitmix64((rank + (turn << 32)).astype(np.uint64) ^ self._salt(feature))

    def _turn(self, feature: int, rank: Array, row: Array) -> Array:
        """Return [N], how often the categories of a rank were replaced."""
        phase = splitmix64(rank.astype(np.uint64) ^ self._salt(feature)) / 2.0**64
        turn: Array = (phase + row * (REPLACED / PERIOD)).astype(np.int64)
        return turn

    def _salt(self, feature: int) -> np.uint64:
        return np.uint64((self.seed * NUM_SPARSE + feature) << 44)

    def _ids(self, feature: int, rank: Array, row: Array) -> Array:
        size = SHARES[feature][1]
        if 2 * size <= TABLE_ROWS:
            ids = rank + size * (self._turn(feature, rank, row) % 2)
        else:
            ids = self.keys_of(feature, rank, row) % np.uint64(TABLE_ROWS)
        return ids.astype(np.int32)

    def _draw(self, number: int) -> _Drawn:
        rng = np.random.default_rng((self.seed, number))
        row = np.arange(number * BLOCK_ROWS, (number + 1) * BLOCK_ROWS)
        ranks = [_draw_ranks(rng, feature) for feature in range(NUM_SPARSE)]
        return _Drawn(row, ranks, _draw_integers(rng), rng.random(BLOCK_ROWS))

    def _logit(self, drawn: _Drawn) -> Floats:
        """Return [N], without the constant that sets the rate of clicks."""
        row, ranks, dense, _ = drawn
        keys = [self.keys_of(k, rank, row) for k, rank in enumerate(ranks)]
        angle = row * (2 * np.pi / PERIOD)
        logit = np.zeros(len(row))
        for feature, key in enumerate(keys):
            weight = 1 + DRIFT * np.sin(angle + feature)
            logit += CATEGORY_EFFECT / np.sqrt(NUM_SPARSE) * weight * _normal(key)
        pairs = NUM_FACTORS * len(PAIRED) * (len(PAIRED) - 1) / 2
        for factor in range(1, NUM_FACTORS + 1):
            effects = [_normal(keys[feature] + np.uint64(factor)) for feature in PAIRED]
            products = (sum(effects) ** 2 - sum(effect**2 for effect in effects)) / 2
            weight = 1 + DRIFT * np.cos(angle + factor)
            logit += PAIR_EFFECT / np.sqrt(pairs) * weight * products
        logit += COUNT_EFFECT * np.cos(2 * dense[:, BUMPS]).sum(1)
        logit += TREND_EFFECT * (dense[:, list(TRENDS)] * list(TRENDS.values())).sum(1)
        return logit

    @cached_property
    def _offset(self) -> float:
        return offset(self._logit(self._draw(0)), POSITIVE_RATE)


def _draw_ranks(rng: np.random.Generator, feature: int) -> Array:
    """Return [N], how many categories are more frequent than that of each row."""
    shares, size = SHARES[feature]
    bounds = sorted({1, size + 1, *(rank + 1 for rank in RANKS if rank < size)})
    below = [0.0, *shares[: len(bounds) - 2], 1.0]
    place = np.exp(np.interp(rng.random(BLOCK_ROWS), below, np.log(bounds)))
    ranks: Array = np.minimum(place.astype(np.int64), size) - 1
    return ranks


def _draw_integers(rng: np.random.Generator) -> Floats:
    """Return [N, 13], log(1 + x) of integers x; 0 where one is missing."""
    missing, mean, deviation = np.array(INTEGERS).T
    drawn = np.maximum(rng.normal(mean, deviation, (BLOCK_ROWS, NUM_DENSE)), 0)
    counts = np.floor(np.expm1(drawn) + 0.5)
    return np.where(rng.random(counts.shape) < missing, 0.0, np.log1p(counts))


def _normal(keys: Keys) -> Floats:
    """Return [N] of mean 0 and variance 1, about normal, the same for the same key."""
    bits = splitmix64(keys)
    total = sum((bits >> np.uint64(16 * n)) & np.uint64(0xFFFF) for n in range(4))
    return (total.astype(np.float64) / 65536 - 2) * np.sqrt(3)


@lru_cache(maxsize=4)
def _block(rows: EndlessRows, number: int) -> Columns:
    return rows.make(number)
