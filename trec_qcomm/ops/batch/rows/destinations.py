"""Destinations of rows that are added to a buffer on a GPU, and the groups that share them.

Several groups may have rows for the same places, for example one group a rank. To sum place by
place, in order and without atomics, a kernel must know which groups share a destination.
Shapes: G groups; L destinations; M groups that have rows: the members, destination by destination.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.core.transfer import upload


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Groups of rows on a GPU, from which some rows were chosen.

    Args:
        num_rows, start, stride, dim: [G] int64 on CPU, as ops.batch.rows.choose takes them.
        number: [sum of num_rows] int32 on the device, for each row, group by group: its index among
            all chosen rows, or -1 if it was not chosen.
    """

    num_rows: Tensor
    start: Tensor
    stride: Tensor
    dim: Tensor
    number: Tensor

    @cached_property
    def span(self) -> tuple[int, int]:
        """Place of the groups' lowest value in a buffer, and the end of their highest value."""
        used = self.num_rows > 0
        lasts = self.start + (self.num_rows - 1) * self.stride
        if not bool(used.any()):
            return 0, 0
        return int(self.start[used].min()), int((lasts + self.dim)[used].max())


@dataclass(frozen=True, eq=False)
class Rows:
    """U chosen rows in S segments.

    Args:
        counts: [S] int64 on CPU, rows in each segment.
        dim: [S] int64 on CPU, values of a row.
        position: [U] int64 in the memory of the rows, where each row begins in its buffer.
        groups: groups from which the rows were chosen; `add` needs them on a GPU.
    """

    counts: Tensor
    dim: Tensor
    position: Tensor
    groups: RowGroups | None = None

    @cached_property
    def num_values(self) -> int:
        """Number of values of all rows, packed."""
        return int(self.counts.numpy() @ self.dim.numpy())

    @cached_property
    def vector(self) -> int:
        """4 where every row is known to begin at a multiple of 4 values, packed and in its buffer;
        else 1."""
        groups = self.groups
        known = groups is not None and not bool(((groups.start | groups.stride) % 4).any())
        return 4 if known and not bool((self.dim % 4).any()) else 1

    @cached_property
    def first(self) -> Tensor:
        """[S + 1] int64 on CPU, where each segment's values begin, packed, and the end."""
        return exclusive_cumsum(self.counts * self.dim)

    @cached_property
    def first_row(self) -> Tensor:
        """[S + 1] int64 on CPU, the number of each segment's first row, and the end."""
        return exclusive_cumsum(self.counts)

    @cached_property
    def lists(self) -> tuple[Tensor, ...]:
        """`first`, `first_row` and `dim` in the memory of the positions."""
        return upload(self.position.device, self.first, self.first_row, self.dim)


def single_rows(begin: Tensor, dim: Tensor, device: torch.device) -> Rows:
    """Return rows for any number of calls, each row a segment of its own.

    Args: begin, dim: [U] int64 on CPU, place and size of each row.  device: device of the values.
    """
    once = torch.ones_like(dim)
    (position,) = upload(device, begin)
    number = torch.arange(len(dim), dtype=torch.int32, device=device)
    return Rows(once, dim, position, RowGroups(once, begin, dim, dim, number))


@dataclass(frozen=True, eq=False)
class Destinations:
    """Places in a buffer to which rows are added. No two destinations have a place in common.

    Args:
        num_rows, start, stride, dim: [L] int64, the rows of each destination.
        first_member: [L + 1] int64, the first member of each destination, and the end.
        members: [M] int64, the groups whose rows are added there, in order for each destination.
        member_rows: [M] int64, how many rows each member has.
        member_number: [M] int64, where each member's rows begin in `RowGroups.number`.
    """

    num_rows: Tensor
    start: Tensor
    stride: Tensor
    dim: Tensor
    first_member: Tensor
    members: Tensor
    member_rows: Tensor
    member_number: Tensor

    @classmethod
    def from_groups(cls, groups: RowGroups) -> "Destinations":
        """Find the destinations of groups.

        The caller promises that groups which begin at the same value have the same places, and that
        other groups have no place in common.

        Raises: ValueError: groups that begin at the same value, but differ in dim or stride.
        """
        used = groups.num_rows.nonzero().view(-1)
        members = used[torch.argsort(groups.start[used], stable=True)]
        start, dim = groups.start[members], groups.dim[members]
        num_rows, stride = groups.num_rows[members], groups.stride[members]
        stride = torch.where(num_rows > 1, stride, 0)  # a single row has no stride
        begins = torch.ones_like(start, dtype=torch.bool)
        begins[1:] = start[1:] != start[:-1]
        first = begins.nonzero().view(-1)
        lists = begins.cumsum(0) - 1
        rows, step = (_largest(lists, len(first), values) for values in (num_rows, stride))
        wrong = (dim != dim[first][lists]) | ((stride != step[lists]) & (num_rows > 1))
        if bool(wrong.any()):
            raise ValueError(
                f"rows: on a GPU groups that begin at value {int(start[wrong][0])} must have "
                "equal dim and stride"
            )
        return cls(
            num_rows=rows,
            start=start[first],
            stride=step,
            dim=dim[first],
            first_member=torch.cat([first, torch.tensor([len(members)])]),
            members=members,
            member_rows=num_rows,
            member_number=exclusive_cumsum(groups.num_rows)[:-1][members],
        )


def _largest(lists: Tensor, num_lists: int, values: Tensor) -> Tensor:
    """Return [L] int64, the largest value of each list; all values are >= 0."""
    zeros = torch.zeros(num_lists, dtype=torch.int64)
    return zeros.scatter_reduce(0, lists, values, "amax")
