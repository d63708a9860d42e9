"""Distinct bags in plain torch and dicts: the definition."""

from dataclasses import dataclass

import torch
from torch import Tensor

from trec_qcomm.ops.batch.rank_sum.reference import rank_sum


@dataclass(frozen=True, eq=False)
class UniqueBags:
    """Distinct bags of every group, in order of first occurrence, or of ids (`sort_by_id`).

    Args:
        first: [U] int64, the index (among all B bags) of each distinct bag's first occurrence.
        counts: [G] int64 on CPU, how many bags of each group are distinct; they sum to U.
        inverse: [B] int64, the distinct bag that each bag equals, by its index in the group.
        num_ids: [G] int64 on CPU, how many ids the distinct bags of each group have; None unless
            a GPU found them.
    `first` and `inverse` are in the memory of the ids.
    """

    first: Tensor
    counts: Tensor
    inverse: Tensor
    num_ids: Tensor | None = None


@dataclass(frozen=True, eq=False)
class BagBlocks:
    """Places of the rows of S blocks.

    A block is the rows of one feature's (or column shard's) bags. Its rows lie in two buffers. The
    packed one has a row for each distinct bag. The other one is a matrix with a row for each
    sample, in which block s has the columns column[s] : column[s] + dim[s].

    Args:
        start: [S] int64 on CPU, where the packed rows begin in their buffer, in values.
        num_rows: [S] int64 on CPU, distinct bags.
        dim: [S] int64 on CPU, values of a row.
        column: [S] int64 on CPU, the first column in the matrix.
        group: [S] int64 on CPU, the row of `inverse` for these bags.
    """

    start: Tensor
    num_rows: Tensor
    dim: Tensor
    column: Tensor
    group: Tensor

    @property
    def vectors(self) -> tuple[Tensor, ...]:
        """All five vectors, in the order of the fields."""
        return self.start, self.num_rows, self.dim, self.column, self.group


def unique_bags(
    values: Tensor, lengths: Tensor, num_bags: Tensor, max_share: Tensor, weight_bits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return first, counts and inverse (see UniqueBags).

    Args: weight_bits: [N] int32, or [0] without weights.
    """
    ids = torch.split(values, lengths.tolist())
    bits = torch.split(weight_bits, lengths.tolist()) if len(weight_bits) else ids
    bags = [(tuple(i.tolist()), tuple(w.tolist())) for i, w in zip(ids, bits, strict=True)]
    first, counts, inverse, begin = [], [], [], 0
    for size, share in zip(num_bags.tolist(), max_share.tolist(), strict=True):
        number: dict[object, int] = {}
        group = range(begin, begin + size)
        group_inverse = [number.setdefault(bags[b], len(number)) for b in group]
        group_first = [begin + group_inverse.index(n) for n in range(len(number))]
        if len(number) > share * size:
            group_first, group_inverse = list(group), list(range(size))
        first += group_first
        inverse += group_inverse
        counts.append(len(group_first))
        begin += size
    as_tensor = [torch.tensor(x, dtype=torch.int64) for x in (first, counts, inverse)]
    return as_tensor[0], as_tensor[1], as_tensor[2]


def sort_by_id(
    bags: UniqueBags, values: Tensor, lengths: Tensor, num_bags: Tensor
) -> tuple[Tensor, Tensor]:
    """Return first and inverse of the bags in the order of their ids (`sort_by_id`)."""
    ids = [part.tolist() for part in torch.split(values, lengths.tolist())]
    firsts = torch.split(bags.first, bags.counts.tolist())
    inverses = torch.split(bags.inverse, num_bags.tolist())
    new_first, new_inverse, begin = [], [], 0
    for first, inverse in zip(firsts, inverses, strict=True):
        group, begin = ids[begin : begin + len(inverse)], begin + len(inverse)
        order = list(range(len(first)))
        if max(map(len, group), default=0) <= 1:
            order = [number for _, number in sorted((ids[b], n) for n, b in enumerate(first))]
        new_first.append(first[order])
        rank = torch.empty(len(order), dtype=torch.int64)
        rank[order] = torch.arange(len(order))
        new_inverse.append(rank[inverse])
    return torch.cat(new_first), torch.cat(new_inverse)


def positions(lengths: Tensor, bags: Tensor) -> Tensor:
    """Return [M] int64, where the ids of these bags are."""
    ends = lengths.to(torch.int64).cumsum(0)
    parts = [torch.arange(int(ends[b] - lengths[b]), int(ends[b])) for b in bags.tolist()]
    return torch.cat([torch.empty(0, dtype=torch.int64), *parts])


def expand(rows: Tensor, blocks: BagBlocks, inverse: Tensor, out: Tensor) -> None:
    """Write the row of each sample's bag (ops.batch.unique.expand)."""
    for s, (n, dim, column) in enumerate(_shapes(blocks)):
        start = int(blocks.start[s])
        packed = rows[start : start + n * dim].view(n, dim)
        out[:, column : column + dim] = packed[inverse[int(blocks.group[s])]]


def sum_by_bag(matrix: Tensor, blocks: BagBlocks, inverse: Tensor, out: Tensor) -> None:
    """Sum the rows of the samples of each bag (ops.batch.unique.sum_by_bag)."""
    for s, (n, dim, column) in enumerate(_shapes(blocks)):
        start = int(blocks.start[s])
        packed = out[start : start + n * dim].view(n, dim)
        packed.zero_()
        for b, bag in enumerate(inverse[int(blocks.group[s])].tolist()):
            rank_sum(torch.stack([packed[bag], matrix[b, column : column + dim]]), packed[bag])


def _shapes(blocks: BagBlocks) -> list[tuple[int, int, int]]:
    shapes = torch.stack([blocks.num_rows, blocks.dim, blocks.column], 1).tolist()
    return [tuple(shape) for shape in shapes]
