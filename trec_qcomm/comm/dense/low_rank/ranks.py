"""The rank of each matrix, chosen while training from the energy that its factors keep.

The energy of a matrix is the sum of its squares, and what is to be sent is the gradient with its
residual, summed over ranks: M. In each step all ranks know, with equal bits,

- the squares of each row of the right factor C: row k is what column k of the basis adds, so the
  first k rows are exactly what rank k would have kept with the same beginning;
- an estimate of what was left out, E = M - L'C, made by `probes`: (g' E h)^2 has the mean |E|^2
  where g and h are signs that have nothing to do with E. The ranks' shares of g' E h add up, so
  they travel with C, NUM_PROBES float32 a matrix. One step's estimate is off by its own size; over
  50 steps of four probes it is off by 10 to 20 %.

Both are added up over the steps since the last choice. So no message is added, and ranks cannot
disagree. What the codec changes counts as little as it is: it is in C and not in E.

Knows: energies, signs. Does not know: gradients, messages.
Source: ours; the estimate is Hutchinson's (1989) for |E|^2 = tr E'E, with both sides probed.
Shapes: r rows, m columns.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trec_qcomm.comm.dense.low_rank.exact import power_of_two, to_fixed_point
from trec_qcomm.wire import frame

NUM_PROBES = 4
_MANTISSA = 53  # bits of an integer that float64 holds
_SHRINKS_BY = 8  # a rank falls only by an eighth of itself or more, as sizes change with it


class RankChoice(NamedTuple):
    """Rule by which ranks are chosen.

    Args:
        keep: share of the energy that factors are to keep, over 0 and below 1.
        every: number of steps after which ranks may change.
    """

    keep: float
    every: int


def next_rank(rank: int, energies: Sequence[float], choice: RankChoice, largest: int) -> int:
    """Return the rank that follows from the energies since the last choice.

    It falls to the least rank that would have kept `keep` of the energy. It grows by as many
    columns as are missing if each keeps as much as the weakest one that there is, which is the
    most that can be expected, and at most to twice itself. So it may take a few choices.

    Args:
        rank: the rank that the energies were seen with.
        energies: rank + 1 sums over steps: of each row of the right factor, and of what was left
            out.
        choice: the rule.
        largest: the largest rank of this matrix.
    """
    rows = energies[:rank]
    total = math.fsum(energies)
    if not 0 < total < math.inf:
        return rank
    wanted = choice.keep * total
    kept = 0.0
    for number, energy in enumerate(rows, start=1):
        kept += energy
        if kept >= wanted:
            return number if rank - number >= max(1, rank // _SHRINKS_BY) else rank
    weakest = min(rows)
    missing = rank if weakest * rank <= wanted - kept else math.ceil((wanted - kept) / weakest)
    return max(rank, min(rank + max(1, missing), largest))


def energies_of(right: Tensor, probes: Tensor) -> Tensor:
    """Return [B, r + 1] float64: squares of each row, and of what was left out. Equal bits.

    Args:
        right: [B, r, m] float32, the sum over ranks.
        probes: [B, s] float32, the sum over ranks of what `probe` returns.
    """
    bits = (_MANTISSA - (right.shape[2] - 1).bit_length()) // 2
    fixed = to_fixed_point(right, bits, by_row=True)  # sums of its squares are exact
    rows = fixed.integers.square().sum(dim=2) * power_of_two(2 * fixed.exponents[:, :, 0])
    squares = probes.double().square().unbind(1)
    left_out = squares[0]
    for square in squares[1:]:  # one by one: a sum of floats may be in any order
        left_out = left_out + square
    return torch.cat([rows, (left_out / len(squares))[:, None]], dim=1)


def probe(products: Tensor, left: Tensor, signs: Tensor) -> Tensor:
    """Return [B, s], this rank's share of g' (M - L'L M) h for each of s pairs of g and h.

    Args:
        products: [B, s, n], the rows h'M'.
        left: [B, r, n], the basis L.
        signs: [s, n], the rows g'.
    """
    if len(products) > 1 and not frame.is_on_gpu(products):  # see low_rank.products
        pairs = zip(torch.split(products, 1), torch.split(left, 1), strict=True)
        return torch.cat([probe(*pair, signs) for pair in pairs])
    of_signs = torch.bmm(left, signs.T.expand(len(left), -1, -1))  # [B, r, s]
    inside = of_signs * torch.bmm(left, products.mT)
    return (products * signs).sum(dim=2) - inside.sum(dim=1)


def signs(step: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return two matrices [NUM_PROBES, length] float32 of random signs, other ones in each step.

    They are made of whole numbers alone, so they are equal on all machines. Those of a column do
    not depend on the number of columns.

    Args: step: number of the step.  length: number of columns, at most 2^28.
    """
    columns = torch.arange(length, dtype=torch.int64, device=device)
    numbers = torch.cat([columns + (row << 28) for row in range(2 * NUM_PROBES)])
    for factor, shift in ((0x7FEB352D, 15), (0x31848BAB, 14)):
        numbers = ((numbers + step) & 0xFFFFFFFF) * factor & 0xFFFFFFFF
        numbers ^= numbers >> shift
    drawn = ((numbers >> 7) & 1).mul_(2).sub_(1).float().view(2, NUM_PROBES, length)
    return drawn[0], drawn[1]
