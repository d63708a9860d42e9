"""Choose, take and add rows of a buffer, in Triton. Same results as reference.py.

`choose` counts the chosen rows of each tile, torch sums up these counts, and a second pass over the
flags numbers the rows. When `choose` returns, the number of rows is on its way to the host. `take`
and `add` are one launch each. `add` goes through the destinations (destinations.py), and at
each place through the groups that have a row for it, in order. So only one program reads and writes
a place, once.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.core.transfer import Download
from trec_qcomm.ops.batch.rank_sum.gpu import plus_in
from trec_qcomm.ops.batch.rows.destinations import Destinations, Rows
from trec_qcomm.ops.device import launch, upload
from trec_qcomm.ops.value_bits import loadable
from trec_qcomm.ops.value_tiles import lists_of_tile, row_and_column, tiling

_FLAGS = 512  # rows that one program of `choose` looks at
_REGISTERS = 128  # that a thread of `add` may use; told no number, the compiler spills in bfloat16


def choose(
    chosen: Tensor, first: Tensor, num_rows: Tensor, start: Tensor, stride: Tensor
) -> tuple[Callable[[], Tensor], Tensor, Tensor]:
    """Return the counts, positions and numbers of the chosen rows.

    Returns: a function that waits for counts, [G] int64 on CPU; position, [sum of num_rows] int64,
        whose first U are those of Rows; and number, [sum of num_rows] int32, as in RowGroups.
    """
    device, rows = chosen.device, exclusive_cumsum(num_rows)
    total = int(rows[-1])
    position = torch.empty(total, dtype=torch.int64, device=device)
    number = torch.empty(total, dtype=torch.int32, device=device)
    if not total:
        return lambda: torch.zeros_like(num_rows), position, number
    flags, programs = chosen.view(torch.uint8), -(-total // _FLAGS)
    groups = (*upload(device, rows, first, start, stride), len(num_rows))
    block = {"STEPS": len(num_rows).bit_length(), "BLOCK": _FLAGS}
    in_tile = torch.empty(programs, dtype=torch.int64, device=device)
    launch(_count, programs, flags, in_tile, *groups, **block)
    up_to = in_tile.cumsum(0)
    ends = torch.zeros(2, len(num_rows), dtype=torch.int64, device=device)
    launch(_number, programs, flags, in_tile, up_to, position, number, ends, *groups, **block)
    coming = Download(ends)
    return lambda: torch.diff(coming.wait(), dim=0)[0], position, number


def take(values: Tensor, rows: Rows, out: Tensor, *, vector: int) -> None:
    """Copy the rows to `out`. vector: 4 or 1, a divisor of all positions and dims."""
    programs, options = tiling(rows.first, vector)
    (source, _), (target, _) = loadable(values), loadable(out)
    launch(_take, programs, source, rows.position, target, *rows.lists, len(rows.dim), **options)


def add(
    packed: Tensor,
    rows: Rows,
    out: Tensor,
    destinations: Destinations,
    number: Tensor,
    *,
    vector: int,
) -> None:
    """Add the packed rows to `out`.

    Args: number: [sum of num_rows] int32 on the device, from `choose`.  vector: 4 or 1, a divisor
        of all positions and dims.
    """
    first = exclusive_cumsum(destinations.num_rows * destinations.dim)
    # Where packed row 0 would be, if all rows had this group's length.
    value, row = (exclusive_cumsum(n)[:-1] for n in (rows.counts * rows.dim, rows.counts))
    origin = (value - row * rows.dim)[destinations.members]
    lists = upload(
        packed.device, first, destinations.dim, destinations.start, destinations.stride,
        destinations.first_member, destinations.member_rows, destinations.member_number, origin,
    )  # fmt: skip
    programs, options = tiling(first, vector)
    (source, kind), (target, _) = loadable(packed), loadable(out)
    sizes = len(destinations.dim)
    options |= {"KIND": kind, "maxnreg": _REGISTERS}
    launch(_add, programs, source, number, target, *lists, sizes, **options)


@triton.jit
def _flags_of_tile(flags, first_row, first, num_groups, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Return for each row of this program: whether there is one, its group, its number in the
    group, and 1 where it is chosen, else 0."""
    live, g, i = lists_of_tile(first_row, num_groups, STEPS, 1, BLOCK)
    flag = tl.load(flags + tl.load(first + g) + i, mask=live, other=0)
    return live, g, i, (flag != 0).to(tl.int64)


@triton.jit
def _count(
    flags, in_tile, first_row, first, start, stride, num_groups,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write to `in_tile` how many rows of each tile are chosen."""
    _, _, _, flag = _flags_of_tile(flags, first_row, first, num_groups, STEPS, BLOCK)
    tl.store(in_tile + tl.program_id(0), tl.sum(flag, 0))


@triton.jit
def _number(
    flags, in_tile, up_to, position, number, ends, first_row, first, start, stride, num_groups,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the positions and numbers of the chosen rows.

    Args: up_to: running sums of in_tile.  ends: [2, G], written: how many rows are chosen before
        each group, and up to its end.
    """
    tile = tl.program_id(0)
    live, g, i, flag = _flags_of_tile(flags, first_row, first, num_groups, STEPS, BLOCK)
    before = tl.load(up_to + tile) - tl.load(in_tile + tile) + tl.cumsum(flag, 0) - flag
    at = tl.load(start + g) + i * tl.load(stride + g)
    tl.store(position + before, at, mask=flag > 0)
    row, end = tl.load(first_row + g) + i, tl.load(first_row + g + 1)
    tl.store(number + row, tl.where(flag > 0, before, -1).to(tl.int32), mask=live)
    tl.store(ends + g, before, mask=live & (i == 0))
    tl.store(ends + num_groups + g, before + flag, mask=live & (row == end - 1))


@triton.jit
def _take(
    values, position, out, first, first_row, dims, num_lists,
    STEPS: tl.constexpr, WIDE: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    live, s, number = lists_of_tile(first, num_lists, STEPS, VECTOR, BLOCK)
    row, column = row_and_column(number, tl.load(dims + s), WIDE)
    at = tl.load(position + tl.load(first_row + s) + row, mask=live, other=0) + column
    at = tl.multiple_of(at, VECTOR)[:, None] + tl.arange(0, VECTOR)[None, :]
    x = tl.load(values + at, mask=live[:, None])
    to = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK // VECTOR) * VECTOR
    to = to[:, None] + tl.arange(0, VECTOR)[None, :]
    tl.store(out + to, x, mask=live[:, None])


@triton.jit
def _add(
    packed, number, out, first, dims, start, stride,
    first_member, member_rows, member_number, member_origin, num_places,
    KIND: tl.constexpr, STEPS: tl.constexpr, WIDE: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Add to each value of the destinations what their member groups have for it, in order."""
    live, j, value = lists_of_tile(first, num_places, STEPS, VECTOR, BLOCK)
    dim = tl.load(dims + j)
    row, column = row_and_column(value, dim, WIDE)
    to = tl.multiple_of(tl.load(start + j) + row * tl.load(stride + j) + column, VECTOR)
    to = to[:, None] + tl.arange(0, VECTOR)[None, :]
    total = tl.load(out + to, mask=live[:, None], other=0)
    touched, m, end = row < 0, tl.load(first_member + j), tl.load(first_member + j + 1)
    while tl.max(end - m, 0) > 0:
        has = live & (m < end)
        has = has & (row < tl.load(member_rows + m, mask=has, other=0))
        at = tl.load(member_number + m, mask=has, other=0) + row
        k = tl.load(number + at, mask=has, other=-1).to(tl.int64)
        here = k >= 0
        at = tl.load(member_origin + m, mask=here, other=0) + k * dim + column
        at = tl.multiple_of(at, VECTOR)[:, None] + tl.arange(0, VECTOR)[None, :]
        x = tl.load(packed + at, mask=here[:, None], other=0)
        total = tl.where(here[:, None], plus_in(total, x, KIND), total)
        touched = touched | here
        m += 1
    tl.store(out + to, total, mask=touched[:, None])
