"""Indices, and forged bytes, that every encoder of quantization indices must pass."""

from collections.abc import Iterator

import numpy as np

MAX_INDEX = 2**22


def forgeries(data: np.ndarray, number: int, seed: int) -> Iterator[np.ndarray]:
    """Yield copies of data with a flipped bit, a changed header, random bytes, or only such."""
    generator = np.random.default_rng(seed)
    for k in range(number):
        forged = data.copy()
        at = generator.integers(data.size)
        if k % 4 == 0:
            forged[at] ^= np.uint8(1 << generator.integers(8))
        elif k % 4 == 1:  # the header and the table
            forged[at % min(data.size, 40)] = generator.integers(256)
        elif k % 4 == 2:
            forged[at : at + 8] = generator.integers(0, 256, forged[at : at + 8].size)
        else:
            forged = generator.integers(0, 256, generator.integers(data.size + 20), np.uint8)
        yield forged


def as_indices(x: np.ndarray) -> np.ndarray:
    return np.rint(x).clip(-MAX_INDEX, MAX_INDEX).astype(np.int32).ravel()


def normal(sigma: float, num_values: int, seed: int = 0) -> np.ndarray:
    return as_indices(np.random.default_rng(seed).normal(0, sigma, num_values))


def rows_with_copies(sigma: float, num_rows: int, dim: int, seed: int = 0) -> np.ndarray:
    """Return rows of which about two of three equal an earlier one."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(0, sigma, (num_rows, dim))
    return as_indices(rows[generator.integers(0, np.arange(num_rows) // 3 + 1)])


def with_outliers(sigma: float, num_values: int, share: float = 0.02) -> np.ndarray:
    q = normal(sigma, num_values)
    q[np.random.default_rng(1).random(num_values) < share] = MAX_INDEX
    return q


def awkward(dim: int) -> Iterator[np.ndarray]:
    """Yield [N] int32, N a multiple of dim: from nothing to what no encoder can make smaller."""
    generator = np.random.default_rng(dim)
    for num_rows in (0, 1, 2, 33, 300):
        n = num_rows * dim
        yield from (np.full(n, v, np.int32) for v in (0, -7, MAX_INDEX, -MAX_INDEX))
        yield generator.choice(np.array([-MAX_INDEX, MAX_INDEX], np.int32), n)
        yield generator.choice(np.array([5, 6], np.int32), n)
        yield generator.integers(-MAX_INDEX, MAX_INDEX + 1, n).astype(np.int32)
        yield from (normal(sigma, n) for sigma in (0.3, 4, 64, 1e5))
        yield as_indices(generator.laplace(1e6, 30, n))
        yield with_outliers(2, n)
        yield rows_with_copies(9, num_rows, dim) if num_rows else normal(1, 0)
        yield as_indices(1e5 * generator.standard_cauchy(n))
        yield as_indices(np.arange(n) % 16 * 1000.0)  # a period that samples may fall in with
