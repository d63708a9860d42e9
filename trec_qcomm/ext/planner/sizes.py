"""Expected bytes of a segment: n rows of one table, coded by one codec.

A codec of fixed size tells its size. Any other codec is run on rows of the table, in segments of 1,
4, 16, .. rows. The bytes of a row depend on how many rows share a segment: a segment has a head,
its bound is relative to the range of its rows, and an entropy coder learns the distribution from
the rows. Between two measured sizes, and beyond the largest, bytes are a power of the rows.

Knows: any Codec. Does not know: tables' names, shardings, frames.
Shapes: blocks of [n, D] float32, each what one rank sent one peer; segments of n rows.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from trec_qcomm.core.codec import Codec, Contract
from trec_qcomm.core.segments import Segments, exclusive_cumsum

STEP = 4  # from one number of rows that is measured to the next
NUM_BLOCKS = 6  # that are encoded, spread evenly over those there are
MOST_DRAWS = 4  # segments of one size from one block
_MEASURED_TERMS = 1, 2, 4, 8  # numbers of summands that are recorded


class Sizes(Protocol):
    """Expected size of segments of one table in one direction."""

    def nbytes(self, num_rows: float, dim: int, *, num_terms: int = 1) -> float:
        """Return the payload bytes of a segment.

        Args:
            num_rows: expected number of the segment's rows.
            dim: number of its columns.
            num_terms: number of decoded values that are added up, and share an error bound.
        """


@dataclass(frozen=True)
class SizeCurve:
    """Bytes as a function of rows, by a power of the rows from one point to the next.

    Args: num_rows: ascending, above 0.  nbytes: bytes of so many rows, above 0.
    Raises: ValueError: no points, rows that do not ascend, or bytes that are not above 0.
    """

    num_rows: tuple[float, ...]
    nbytes: tuple[float, ...]

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in pairwise((0.0, *self.num_rows)))
        if not self.num_rows or not ascending:
            raise ValueError("num_rows: expected one or more, ascending, from above 0")
        if len(self.nbytes) != len(self.num_rows) or not all(n > 0 for n in self.nbytes):
            raise ValueError("nbytes: expected a number above 0 for each of num_rows")

    def at(self, num_rows: float) -> float:
        """Return the bytes of so many rows, in proportion below the first point."""
        k = bisect_left(self.num_rows, num_rows)
        if k == 0 or len(self.num_rows) == 1:
            return self.nbytes[0] * num_rows / self.num_rows[0]
        k = min(k, len(self.num_rows) - 1)
        (x0, x1), (y0, y1) = self.num_rows[k - 1 : k + 1], self.nbytes[k - 1 : k + 1]
        power = math.log(y1 / y0) / math.log(x1 / x0)
        return y0 * float((num_rows / x0) ** power)


@dataclass(frozen=True)
class FixedSizes:
    """Sizes of a codec that tells them without rows; upper bounds if they are not fixed."""

    codec: Codec

    def nbytes(self, num_rows: float, dim: int, *, num_terms: int = 1) -> float:
        """Return the mean over numbers of rows that differ by one."""
        low, high = math.floor(num_rows), math.ceil(num_rows)
        sizes = self.codec.max_nbytes(Segments.packed((low, high), dim)).tolist()
        return float(sizes[0] + (sizes[1] - sizes[0]) * (num_rows - low))


@dataclass(frozen=True)
class RecordedSizes:
    """Sizes that were measured before, for some numbers of columns and of summands.

    Other numbers are computed from the nearest measurement: in proportion to the columns, and by
    the logarithm of the summands, because a bound of 1/P takes log2 P bits more a value.

    Args: curves: {(columns, summands): curve}, with summands 1 for all columns.
    """

    curves: Mapping[tuple[int, int], SizeCurve]

    def nbytes(self, num_rows: float, dim: int, *, num_terms: int = 1) -> float:
        """Return the payload bytes of a segment. The arguments are those of Sizes.nbytes."""
        dims = {d for d, _ in self.curves}
        nearest = min(dims, key=lambda d: abs(math.log(d / dim)))
        terms = sorted(t for d, t in self.curves if d == nearest)
        low, high = self._around(terms, num_terms)
        one = self.curves[nearest, low].at(num_rows)
        if high != low:
            other, share = self.curves[nearest, high].at(num_rows), math.log(num_terms / low)
            one += (other - one) * share / math.log(high / low)
        return one * dim / nearest

    @staticmethod
    def _around(terms: Sequence[int], num_terms: int) -> tuple[int, int]:
        """Return the two numbers to draw a line through, or twice the only one that fits."""
        if num_terms in terms or len(terms) == 1:
            return (num_terms, num_terms) if num_terms in terms else (terms[0], terms[0])
        above = next((k for k, t in enumerate(terms) if t > num_terms), len(terms) - 1)
        return terms[max(above - 1, 0)], terms[max(above, 1)]


@dataclass(frozen=True)
class SampledSizes:
    """Sizes that are measured when first asked for, by encoding rows.

    Args: codec: a codec that reads no masks.  blocks: one or more of [n, D] float32, n > 0.
    Raises: ValueError: no rows, or a codec that reads masks.
    """

    codec: Codec
    blocks: Sequence[Tensor]
    _curves: dict[tuple[int, int], SizeCurve] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not self.blocks or not all(len(block) for block in self.blocks):
            raise ValueError("blocks: expected one or more of [n > 0, D] float32")
        if self.codec.follows_forward:
            raise ValueError(f"codec: {self.codec.name} reads masks, which rows do not have")

    def nbytes(self, num_rows: float, dim: int, *, num_terms: int = 1) -> float:
        """Return the payload bytes, in proportion for more columns than the rows have."""
        columns = min(dim, self.blocks[0].shape[1])
        return self.curve(columns, num_terms).at(num_rows) * dim / columns

    def curve(self, dim: int, num_terms: int = 1) -> SizeCurve:
        """Return the measured curve of segments of `dim` columns."""
        terms = num_terms if self.codec.contract is Contract.BOUNDED else 1
        if (dim, terms) not in self._curves:
            self._curves[dim, terms] = measure_curve(self.codec, self.blocks, dim, terms)
        return self._curves[dim, terms]

    def recorded(self) -> dict[tuple[int, int], SizeCurve]:
        """Return the curves that a record keeps, for all, a half and a quarter of the columns."""
        whole = self.blocks[0].shape[1]
        dims = [d for d in (whole, whole // 2, whole // 4) if d > 0]
        terms = _MEASURED_TERMS if self.codec.contract is Contract.BOUNDED else (1,)
        keys = [(whole, t) for t in terms] + [(d, 1) for d in dims[1:]]
        return {key: self.curve(*key) for key in keys}


def measure_curve(
    codec: Codec, blocks: Sequence[Tensor], dim: int, num_terms: int = 1
) -> SizeCurve:
    """Return the mean bytes of segments of 1, 4, 16, .. rows, and of whole blocks, of some blocks.

    The rows of a segment are drawn with a fixed seed; their order stays. Arguments as in
    SampledSizes.
    """
    draw = torch.Generator().manual_seed(0)
    chosen = blocks[:: max(len(blocks) // NUM_BLOCKS, 1)][:NUM_BLOCKS]
    sizes = _sizes(sum(map(len, chosen)) / len(chosen))
    values, counts, points = [], [], []
    for block in chosen:
        order = torch.randperm(len(block), generator=draw)
        for point, size in enumerate([*sizes, len(block)]):
            for begin in list(range(0, len(block) - size + 1, size))[:MOST_DRAWS]:
                rows = block[order[begin : begin + size].sort().values]
                parts = [rows[:, at : at + dim] for at in range(0, rows.shape[1] - dim + 1, dim)]
                values += [part.reshape(-1) for part in parts]
                counts += [size] * len(parts)
                points += [point] * len(parts)
    segments = Segments.packed(counts, dim)
    encoded = _encoded_nbytes(codec, torch.cat(values), segments, num_terms)
    at, num_rows = torch.tensor(points), segments.num_rows
    means = [
        (float(num_rows[at == p].double().mean()), float(encoded[at == p].double().mean()))
        for p in sorted(set(points))
    ]
    return SizeCurve(*zip(*means, strict=True))


def _sizes(num_rows: float) -> list[int]:
    """Return 1, 4, 16, .. as long as they are well below the mean size of a block."""
    return [STEP**k for k in range(int(num_rows).bit_length()) if STEP**k < 0.75 * num_rows]


def _encoded_nbytes(codec: Codec, values: Tensor, segments: Segments, num_terms: int) -> Tensor:
    """Return [S] int64, the bytes that each segment really takes."""
    room = codec.max_nbytes(segments)
    payload = torch.empty(int(room.sum()), dtype=torch.uint8)
    tolerances = None
    if num_terms > 1 and codec.tolerance is not None:
        bound = codec.tolerance / num_terms
        tolerances = torch.full((segments.num_segments,), bound, dtype=torch.float64)
    at = exclusive_cumsum(room)[:-1]
    return codec.encode(values, segments, payload, at, tolerances=tolerances).nbytes
