"""Which groups of rows have the same places in a buffer, so that sums can be taken place by place.

Shapes: G groups; L lists of places; M groups that have rows, their members, list by list.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum


@dataclass(frozen=True, eq=False)
class Groups:
    """The rows that some were chosen from, on a GPU.

    Args: num_rows, start, stride, dim: [G] int64 on CPU, see ops.rows.choose.
        number: [sum of num_rows] int32 on the device: of each row of the first group, of the
            second, ..., which of all the chosen ones it is, or -1.
    """

    num_rows: Tensor
    start: Tensor
    stride: Tensor
    dim: Tensor
    number: Tensor

    @property
    def span(self) -> tuple[int, int]:
        """The lowest of their values in a buffer, and the end of the highest."""
        used = self.num_rows > 0
        lasts = self.start + (self.num_rows - 1) * self.stride
        if not bool(used.any()):
            return 0, 0
        return int(self.start[used].min()), int((lasts + self.dim)[used].max())


@dataclass(frozen=True, eq=False)
class Places:
    """Rows of a buffer, which no two lists share.

    Args: num_rows, start, stride, dim: [L] int64.  first_member: [L + 1] int64.
        members: [M] int64, the groups whose rows these are, in their order for each list.
        member_rows, member_number: [M] int64, how many rows each has, and where their numbers are.
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
    def of(cls, groups: Groups) -> "Places":
        """Groups that begin at the same value have the same places, those that do not have none
        in common: that is the caller's word.

        Raises: ValueError: groups that begin at the same value, but differ in dim or stride.
        """
        used = groups.num_rows.nonzero().view(-1)
        members = used[torch.argsort(groups.start[used], stable=True)]
        start, dim = groups.start[members], groups.dim[members]
        num_rows, stride = groups.num_rows[members], groups.stride[members]
        stride = torch.where(num_rows > 1, stride, 0)  # of one row it means nothing
        begins = torch.ones_like(start, dtype=torch.bool)
        begins[1:] = start[1:] != start[:-1]
        first = begins.nonzero().view(-1)
        lists = begins.cumsum(0) - 1
        most, step = (_largest(lists, len(first), values) for values in (num_rows, stride))
        wrong = (dim != dim[first][lists]) | ((stride != step[lists]) & (num_rows > 1))
        if bool(wrong.any()):
            raise ValueError(
                f"rows: on a GPU groups that begin at value {int(start[wrong][0])} must have "
                "equal dim and stride"
            )
        return cls(
            num_rows=most,
            start=start[first],
            stride=step,
            dim=dim[first],
            first_member=torch.cat([first, torch.tensor([len(members)])]),
            members=members,
            member_rows=num_rows,
            member_number=exclusive_cumsum(groups.num_rows)[:-1][members],
        )


def _largest(lists: Tensor, num_lists: int, values: Tensor) -> Tensor:
    """[L] int64: the largest of each list's values >= 0."""
    zeros = torch.zeros(num_lists, dtype=torch.int64)
    return zeros.scatter_reduce(0, lists, values, "amax")
