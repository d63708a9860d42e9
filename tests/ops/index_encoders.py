"""What every encoder of quantization indices must pass; a test is data and calls of these.

An encoder is `cpu` (kernels encode_segment and decode_segment on arrays) and `reference`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import numpy as np
import torch

MAX_INDEX = 2**22


@dataclass(frozen=True)
class IndexEncoder:
    """An encoder under test: indices [N] int32, N a multiple of dim, <-> bytes [W] uint8."""

    cpu: ModuleType | SimpleNamespace
    reference: ModuleType
    dim: int

    def encode(self, q: np.ndarray) -> np.ndarray:
        """Return the bytes that cpu writes into a buffer of exactly their size."""
        out = np.full(6 * q.size + 2000, 0xA5, np.uint8)
        nbytes = self.cpu.encode_segment(q, self.dim, out)
        exact = np.full(nbytes + 16, 0x5A, np.uint8)
        assert self.cpu.encode_segment(q, self.dim, exact[:nbytes]) == nbytes
        assert (exact[nbytes:] == 0x5A).all()
        assert (exact[:nbytes] == out[:nbytes]).all()
        return exact[:nbytes].copy()

    def decode(self, data: np.ndarray, num_values: int) -> np.ndarray | None:
        q = np.full(num_values, 77, np.int32)
        return q if self.cpu.decode_segment(data, self.dim, q) else None

    def decode_reference(self, data: np.ndarray, num_values: int) -> np.ndarray | None:
        try:
            q = self.reference.decode_segment(torch.from_numpy(data), self.dim, num_values)
        except ValueError:
            return None
        return q.numpy()

    def check(self, q: np.ndarray) -> np.ndarray:
        """Check that cpu and reference write the same bytes and read them back. Return them."""
        data = self.encode(q)
        expected = self.reference.encode_segment(torch.from_numpy(q), self.dim)
        assert expected.dtype == torch.uint8
        assert np.array_equal(expected.numpy(), data)
        assert np.array_equal(self.decode(data, q.size), q)
        assert np.array_equal(self.decode_reference(data, q.size), q)
        return data

    def check_room(self, q: np.ndarray) -> None:
        """Check that every smaller buffer is refused, and that nothing is written behind it."""
        nbytes = self.encode(q).size
        for room in [*range(0, nbytes, 1 + nbytes // 200), nbytes - 1]:
            out = np.full(nbytes + 8, 0x5A, np.uint8)
            assert self.cpu.encode_segment(q, self.dim, out[:room]) == -1
            assert (out[room:] == 0x5A).all()

    def check_lengths(self, q: np.ndarray) -> None:
        """Check that both backends refuse every prefix, and every longer version."""
        data = self.encode(q)
        for n in range(data.size):
            assert self.decode(data[:n].copy(), q.size) is None
            if n % (1 + data.size // 40) == 0:
                assert self.decode_reference(data[:n].copy(), q.size) is None
        for extra in range(1, 5):
            longer = np.append(data, np.zeros(extra, np.uint8))
            assert self.decode(longer, q.size) is None
            assert self.decode_reference(longer, q.size) is None

    def check_forged(self, q: np.ndarray, num_forged: int, seed: int = 0) -> None:
        """Check that both backends decode forged bytes to the same indices, or both refuse them."""
        data, accepted, compared = self.encode(q), 0, 0
        for k, forged in enumerate(forgeries(data, num_forged, seed)):
            ours = self.decode(forged, q.size)
            accepted += ours is not None
            if k % (1 + num_forged // 40) == 0:
                theirs = self.decode_reference(forged, q.size)
                assert (ours is None) == (theirs is None)
                assert ours is None or np.array_equal(ours, theirs)
                compared += 1
        assert accepted < num_forged
        assert compared >= 20


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
