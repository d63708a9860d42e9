"""Linear algebra that gives equal bits on every machine: orthonormal rows, products of factors.

All ranks of an all-reduce must end with equal bits, and a matrix product in floating point depends
on the order in which it adds, which differs between machines, numbers of threads and devices. Here
every factor of a product is first rounded to integers that are so small that all products and
partial sums are integers below 2^53, which float64 adds without rounding: any order gives the same
bits, with fused multiply-adds and without. What is left is element by element (+, -, *, /,
rounding, largest magnitude), which IEEE 754 defines to the bit. It defines roots, too, but torch's
are others on a CPU, so they are computed here. Powers of two are made from their bits, as the
functions that compute them may round.

Knows: matrices. Does not know: gradients, ranks, messages.
Source: ours; that sums of small enough integers are exact is what Ozaki et al. 2012 build on.
Shapes: B matrices of r rows (the rank) and n columns, r <= n in what follows from gradients.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.wire import frame

_MANTISSA = 53  # bits of an integer that float64 holds
_GRID = 20  # rows of an orthonormal matrix are multiples of 2^-20, in magnitude at most 1
# A row of which less than 2^-12 is left beside the rows before it counts as their sum. What is
# left of it is known to 2^-8 of itself then, as rows are rounded to 2^-20 of their largest value.
_DEPENDENT = 2.0**-24
_NEWTON_STEPS = 6


class FixedPoint(NamedTuple):
    """Rows of integers, times a power of two each.

    Args:
        integers: [B, r, n] float64, whole numbers.
        exponents: [B, r, 1] or [B, 1, 1] int64; a value is its integer times 2 to this.
    """

    integers: Tensor
    exponents: Tensor

    def values(self) -> Tensor:
        """Return [B, r, n] float64."""
        return self.integers * power_of_two(self.exponents)


def power_of_two(exponents: Tensor) -> Tensor:
    """Return float64 powers of two, made from their bits. Args: exponents: int64, any shape."""
    return ((exponents.clamp(-1022, 1023) + 1023) << 52).view(torch.float64)


def to_fixed_point(values: Tensor, bits: int, *, by_row: bool) -> FixedPoint:
    """Round values to integers of at most 2^bits in magnitude.

    NaN and inf stay as they are.

    Args:
        values: [B, r, n] float32 or float64.
        bits: 1 to 52.
        by_row: whether each row has an exponent of its own, or each matrix.
    """
    wide = values.double()
    largest = wide.abs().amax(dim=(2,) if by_row else (1, 2), keepdim=True)
    exponents = torch.frexp(largest).exponent.long() - bits
    return FixedPoint((wide * power_of_two(-exponents)).round_(), exponents)


def bits_for(others: int, num_summands: int) -> int:
    """Return how many bits a factor may have so that sums of its products are exact.

    Args: others: bits of the other factor.  num_summands: number of products that are added up.
    """
    return _MANTISSA - others - (num_summands - 1).bit_length()


def orthonormal_rows(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return matrices with the same row spaces whose rows are orthonormal, or zero.

    A row that is the sum of rows before it, but for a share of 2^-12, becomes zero. Rows are
    orthonormal up to some 2^-20 where they were not nearly dependent, and 2^-8 in the worst case.

    Gram matrices are computed exactly, G = A A'. Elimination gives a unit lower triangular T with
    T G T' = D, and the result is D^-1/2 T A.

    Args:    matrices: [B_i, r, n_i] float32 each, with one r for all.
    Returns: [B_i, r, n_i] float32 each: multiples of 2^-20, so a float32 holds them exactly. All
             values of a matrix in which something is NaN or inf are NaN.
    """
    rank = matrices[0].shape[1]
    rows, grams = [], []
    for matrix in matrices:
        wide = matrix.double()
        broken = ~wide.isfinite().all(dim=2).all(dim=1)
        wide = torch.where(broken[:, None, None], torch.nan, wide)
        num_columns = matrix.shape[2]
        bits = min(_GRID, (_MANTISSA - (num_columns - 1).bit_length()) // 2)
        fixed = to_fixed_point(wide, bits, by_row=True)
        rows.append((fixed.integers, bits))
        # In units in which a row's largest value is 1; a power of two, so this is exact.
        grams.append(torch.bmm(fixed.integers, fixed.integers.mT) * 2.0 ** (-2 * bits))
    inverse = _inverse_factor(torch.cat(grams))
    results = []
    parts = torch.split(inverse, [len(gram) for gram in grams])
    for (integers, bits), to_apply in zip(rows, parts, strict=True):
        factor = to_fixed_point(to_apply, bits_for(bits, rank), by_row=True)
        product = torch.bmm(factor.integers, integers)
        scale = power_of_two(factor.exponents - bits + _GRID)
        results.append(((product * scale).round_() * 2.0**-_GRID).float())
    return results


def _inverse_factor(grams: Tensor) -> Tensor:
    """Return [B, r, r] lower triangular W with W G W' = 1 but for rows that are zero.

    Args: grams: [B, r, r] float64, symmetric.
    """
    rank = grams.shape[1]
    identity = torch.eye(rank, dtype=grams.dtype, device=grams.device).expand_as(grams)
    both = torch.cat([grams, identity], dim=2)
    least = grams.diagonal(dim1=1, dim2=2) * _DEPENDENT
    pivots = torch.empty_like(least)
    if frame.is_on_gpu(grams):
        _eliminate(both, least, pivots, torch.where)
    else:  # numpy takes a fraction of torch's time for many small operations
        with np.errstate(all="ignore"):
            _eliminate(both.numpy(), least.numpy(), pivots.numpy(), np.where)
    scales = torch.where(pivots <= least, 0.0, reciprocal_roots(pivots))
    return both[:, :, rank:] * scales[:, :, None]


def _eliminate(both: Any, least: Any, pivots: Any, where: Callable[..., Any]) -> None:
    """Subtract multiples of rows from the rows below them, in place; of torch, or of numpy.

    Args:
        both: [B, r, 2 r], G and the identity.
        least: [B, r], the least pivots that count.
        pivots: [B, r], to be written.
        where: torch.where or numpy.where.
    """
    rank = both.shape[1]
    for k in range(rank):
        pivots[:, k] = both[:, k, k]
        if k + 1 < rank:
            pivot = pivots[:, k]
            reciprocal = where(pivot <= least[:, k], 0.0, 1.0 / pivot)  # not 0 where it is NaN
            factors = both[:, k + 1 :, k] * reciprocal[:, None]
            both[:, k + 1 :] -= factors[:, :, None] * both[:, k, None]


def reciprocal_roots(values: Tensor) -> Tensor:
    """Return 1 / sqrt(values), off by a few units in the last place, with equal bits everywhere.

    torch.sqrt is rounded correctly on a GPU, but on a CPU it is what the vector library has.

    Args: values: float64, positive; the result for others has no meaning, but for NaN.
    """
    mantissas, exponents = torch.frexp(values)
    half = exponents.long() >> 1
    inside = mantissas * power_of_two(exponents.long() - 2 * half)  # .5 to 2
    roots = 1.6 - 0.5 * inside  # within 16 %; each step of Newton squares the error
    for _ in range(_NEWTON_STEPS):
        roots = roots * (1.5 - 0.5 * inside * roots * roots)
    return roots * power_of_two(-half)


def write_products(
    left: Tensor, right: Tensor, results: Iterable[Tensor], wide: Tensor | None = None
) -> None:
    """Write the products of two factors, with equal bits on every machine.

    Each value is within 2^-24 r of the largest magnitude in `right`, and the rounding to float32.

    Args:
        left: [B, r, n] float32, of orthonormal rows; transposed.
        right: [B, r, m] float32.
        results: B matrices [n, m] float32, in any memory.
        wide: [n m or more] float64, memory to work in on a CPU; None: new memory.
    """
    integers = left.double() * 2.0**_GRID
    # A bit more, as what is orthonormal only nearly may have values a little above 1.
    fixed = to_fixed_point(right, bits_for(_GRID + 1, left.shape[1]), by_row=False)
    scales = power_of_two(fixed.exponents - _GRID)
    shape = left.shape[2], right.shape[2]
    if frame.is_on_gpu(left):
        for product, scale, result in zip(
            torch.bmm(integers.mT, fixed.integers), scales, results, strict=True
        ):
            torch.mul(product, scale, out=result)
        return
    if wide is None:
        wide = integers.new_empty(shape[0] * shape[1])
    product = wide[: shape[0] * shape[1]].view(shape)
    for one, other, scale, result in zip(integers, fixed.integers, scales, results, strict=True):
        torch.mm(one.T, other, out=product)
        result.copy_(product.mul_(scale))  # faster than one product with another type
