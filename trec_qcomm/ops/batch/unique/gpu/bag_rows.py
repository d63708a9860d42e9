"""Rows of distinct bags, and their gradients, in Triton.

`expand` and `sum_by_bag` are one launch each. Before `sum_by_bag`, torch sorts the samples by bag.
`sum_by_bag` adds the samples of a bag in order, so a bag with many samples needs as many additions,
one after the other. Their loads are issued _DEEP at a time.
"""
# mypy: ignore-errors

import torch
import triton
import triton.language as tl
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum
from trec_qcomm.ops.batch.rank_sum.gpu import plus
from trec_qcomm.ops.batch.unique.reference import BagBlocks
from trec_qcomm.ops.device import launch, upload
from trec_qcomm.ops.value_tiles import lists_of_tile, row_and_column, tiling, vector_of

_SUMS = 512  # sums that one program computes
_DEEP = tl.constexpr(16)  # samples that it loads at once, where a bag has more than two


def expand(rows: Tensor, blocks: BagBlocks, inverse: Tensor, out: Tensor) -> None:
    """Write the row of each sample's bag (ops.batch.unique.expand)."""
    num_samples, width = out.shape
    first = exclusive_cumsum(num_samples * blocks.dim)
    programs, options = tiling(first, _vector(blocks, width))
    lists = upload(rows.device, first, *blocks.vectors)
    launch(
        _expand, programs, rows, inverse, out, *lists, len(blocks.dim), num_samples, width,
        **options,
    )  # fmt: skip


def sum_by_bag(matrix: Tensor, blocks: BagBlocks, inverse: Tensor, out: Tensor) -> None:
    """Sum the rows of the samples of each bag (ops.batch.unique.sum_by_bag)."""
    num_samples, width = matrix.shape
    most = torch.zeros(len(inverse), dtype=torch.int64)
    most = most.scatter_reduce(0, blocks.group, blocks.num_rows, "amax")
    bags, values = exclusive_cumsum(most), exclusive_cumsum(blocks.num_rows * blocks.dim)
    *lists, first_bag, limit = upload(
        out.device, values, *blocks.vectors, bags[:-1][blocks.group], bags[:-1], most
    )
    total = int(bags[-1])
    known = (inverse >= 0) & (inverse < limit[:, None])
    bag = torch.where(known, inverse + first_bag[:, None], total).view(-1).to(torch.int32)
    bag, order = torch.sort(bag, stable=True)  # by bag, and the samples of each in their order
    every = torch.arange(total + 1, dtype=torch.int32, device=out.device)
    programs, options = tiling(values, _vector(blocks, width), _SUMS)
    launch(
        _sum, programs, matrix, order, torch.searchsorted(bag, every), out, *lists,
        len(blocks.dim), num_samples, width, **options,
    )  # fmt: skip


def _vector(blocks: BagBlocks, width: int) -> int:
    return vector_of(blocks.start, blocks.dim, blocks.column, torch.tensor(width))


@triton.jit(do_not_specialize=["num_samples"])
def _expand(
    rows, inverse, out, first, start, num_rows, dims, columns, groups,
    num_blocks, num_samples, width,
    STEPS: tl.constexpr, WIDE: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the row of each sample's bag; nothing for a bag that the block does not have."""
    live, s, number = lists_of_tile(first, num_blocks, STEPS, VECTOR, BLOCK)
    dim = tl.load(dims + s)
    sample, column = row_and_column(number, dim, WIDE)
    bag = tl.load(inverse + tl.load(groups + s) * num_samples + sample, mask=live, other=0)
    live = live & (bag >= 0) & (bag < tl.load(num_rows + s))
    at = tl.multiple_of(tl.load(start + s) + bag * dim + column, VECTOR)
    at = at[:, None] + tl.arange(0, VECTOR)[None, :]
    x = tl.load(rows + at, mask=live[:, None])
    to = tl.multiple_of(sample * width + tl.load(columns + s) + column, VECTOR)
    to = to[:, None] + tl.arange(0, VECTOR)[None, :]
    tl.store(out + to, x, mask=live[:, None])


@triton.jit
def _add_samples(
    total, matrix, order, k, end, skip, column, width, MANY: tl.constexpr, VECTOR: tl.constexpr
):
    """Add to `total`, [Q, VECTOR], the rows of up to MANY samples: order[k], order[k + 1], ...,
    each less skip."""
    samples, rows = (), ()
    for t in tl.static_range(MANY):
        samples += (tl.load(order + k + t, mask=k + t < end, other=0),)
    for t in tl.static_range(MANY):
        at = tl.multiple_of((samples[t] - skip) * width + column, VECTOR)
        at = at[:, None] + tl.arange(0, VECTOR)[None, :]
        rows += (tl.load(matrix + at, mask=(k + t < end)[:, None], other=0.0),)
    # The square of an integer never ends in the bits 10, so this changes nothing. ptxas does not
    # know that, so it must load all rows before the first addition. Without this it loads each row
    # just before adding it.
    word = rows[0].to(tl.int32, bitcast=True)
    for t in tl.static_range(1, MANY):
        word ^= rows[t].to(tl.int32, bitcast=True)
    total = tl.where(word * word == 2, 0.0, total)
    # The zeros of samples that do not exist change no sum: all sums began with a zero.
    for t in tl.static_range(MANY):
        total = plus(total, rows[t])
    return total


@triton.jit(do_not_specialize=["num_samples"])
def _sum(
    matrix, order, begins, out, first, start, num_rows, dims, columns, groups, first_bag,
    num_blocks, num_samples, width,
    STEPS: tl.constexpr, WIDE: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum the rows of the samples of each bag.

    Args: order: group times num_samples plus sample, sorted by bag.  begins: where in `order` each
        bag begins.
    """
    live, s, number = lists_of_tile(first, num_blocks, STEPS, VECTOR, BLOCK)
    dim = tl.load(dims + s)
    row, packed_column = row_and_column(number, dim, WIDE)
    bag = begins + tl.load(first_bag + s) + row
    k, end = tl.load(bag, mask=live, other=0), tl.load(bag + 1, mask=live, other=0)
    skip, column = tl.load(groups + s) * num_samples, tl.load(columns + s) + packed_column
    total = tl.zeros([BLOCK // VECTOR, VECTOR], tl.float32)
    total = _add_samples(total, matrix, order, k, end, skip, column, width, 2, VECTOR)
    k += 2
    while tl.max(end - k, 0) > 0:
        total = _add_samples(total, matrix, order, k, end, skip, column, width, _DEEP, VECTOR)
        k += _DEEP
    to = tl.multiple_of(tl.load(start + s) + row * dim + packed_column, VECTOR)
    to = to[:, None] + tl.arange(0, VECTOR)[None, :]
    tl.store(out + to, total, mask=live[:, None])
