"""Choose, take and add rows of a buffer, in plain torch: the definition."""

import torch
from torch import Tensor

from trec_qcomm.ops.batch.rank_sum.reference import rank_sum
from trec_qcomm.ops.batch.rows.destinations import Rows


def choose(
    chosen: Tensor, first: Tensor, num_rows: Tensor, start: Tensor, stride: Tensor
) -> tuple[Tensor, Tensor]:
    """Return counts and position (see Rows) of the chosen rows."""
    groups = zip(first.tolist(), num_rows.tolist(), start.tolist(), stride.tolist(), strict=True)
    parts = [begin + step * chosen[at : at + n].nonzero().view(-1) for at, n, begin, step in groups]
    counts = torch.tensor([len(part) for part in parts], dtype=torch.int64)
    return counts, torch.cat([torch.empty(0, dtype=torch.int64), *parts])


def index(rows: Rows) -> Tensor:
    """Return [num_values] int64, the place of every packed value in the buffer."""
    dims = torch.repeat_interleave(rows.dim, rows.counts)
    ends = dims.cumsum(0)
    within = torch.arange(rows.num_values) - torch.repeat_interleave(ends - dims, dims)
    return torch.repeat_interleave(rows.position, dims) + within


def take(values: Tensor, rows: Rows, out: Tensor) -> None:
    """Copy the rows to `out`, one after the other."""
    out.copy_(values.reshape(-1)[index(rows)].view_as(out))


def add(packed: Tensor, rows: Rows, out: Tensor) -> None:
    """Add the packed rows to `out`, row by row, because equal positions are added in order."""
    flat, at = out.view(-1), 0
    dims = torch.repeat_interleave(rows.dim, rows.counts)
    for position, dim in zip(rows.position.tolist(), dims.tolist(), strict=True):
        place = flat[position : position + dim]
        rank_sum(torch.stack([place, packed.view(-1)[at : at + dim]]), place)
        at += dim
