"""Bounds: how far a codec may move outputs and weights of a Case.

Derived from the codecs' documented numerics:
    bf16     |x - decoded| <= 2^-8 |x|
    bounded  its bound; of each of P partial sums a P-th of it
    rowwise  half a step of the row (a whole one if stochastic), see `codec_error`
Errors of partial sums add up; a second hop codes values that the first has moved.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.integration.sharded_models.cases import (
    CW,
    DP,
    GRID,
    LEARNING_RATE,
    RW,
    TW,
    TWCW,
    TWRW,
    Case,
    Table,
    full_table,
    shards,
)
from tests.integration.sharded_models.expected import U, block_of, uses_of
from trec_qcomm import Cast, Codec, ErrorBounded, Identity, Rowwise

WHOLE_COLUMNS = (TW, CW, TWCW)
TWO_LEVEL = (TWRW, GRID)


@dataclass(frozen=True)
class Hops:
    """Codecs of one direction of one table. main: the only hop, or the hop between nodes."""

    main: Codec = field(default=Identity())
    intra: Codec = field(default=Identity())

    def changes(self, kind: str) -> bool:
        """Return whether rows of a table of that sharding may come out different."""
        codecs = {DP: (), TWRW: (self.main, self.intra), GRID: (self.main, self.intra)}
        return any(codec != Identity() for codec in codecs.get(kind, (self.main,)))


def codec_error(
    codec: Codec, rows: Tensor, moved: Tensor | float = 0.0, *, num_summands: int = 1
) -> Tensor:
    """Return [n, D] float64: the most by which coding can change a value of a row.

    The coded row is within `moved` of `rows`.

    Rowwise: scale <= (max - min + 2^-10 max|x|) / (2^bits - 1) * (1 + 2^-7), or 2^-(13 + bits) of
    the row's largest magnitude, or that of a row of 2^-101.
    ErrorBounded: the bound, divided by `num_summands` where the rows are partial sums.
    """
    moved = torch.as_tensor(moved, dtype=torch.float64).expand_as(rows)
    if rows.numel() == 0 or codec == Identity():
        return torch.zeros_like(rows)
    if isinstance(codec, Cast):
        assert codec.dtype == "bf16"
        return 2.0**-8 * (rows.abs() + moved)
    if isinstance(codec, ErrorBounded):
        assert codec.mode == "abs"
        return torch.full_like(rows, codec.bound / num_summands, dtype=torch.float64)
    assert isinstance(codec, Rowwise)
    low, high, most = rows.amin(1, True), rows.amax(1, True), moved.amax(1, True)
    largest = (rows.abs().amax(1, True) + most).clamp(min=2.0**-101)
    width = high - low + 2 * most + 2.0**-10 * largest
    step = width / (2**codec.bits - 1) * (1 + 2.0**-7)
    step = step.maximum(2.0 ** -(13 + codec.bits) * largest)
    return (step if codec.rounding == "stochastic" else step / 2).expand_as(rows)


def forward_error(case: Case, table: Table, matrix: Tensor, hops: Hops, world_size: int) -> Tensor:
    """Return [rows out, dim] float64, a bound of |output - output with the identity codec|.

    Args: matrix: [rows out, num_rows], the feature's `expected.incidence`
    """
    weights = full_table(table).double()
    kind, parts = case.kind(table), shards(case, table, world_size)
    error = torch.zeros(matrix.shape[0], table.dim, dtype=torch.float64)
    for first in {shard.col: shard for shard in parts}.values():
        blocks = [block_of(shard) for shard in parts if shard.col == first.col]
        partial = [matrix[:, rows] @ weights[rows, columns] for rows, columns in blocks]
        whole, columns = sum(partial), blocks[0][1]
        if kind in WHOLE_COLUMNS or case.sequence:
            error[:, columns] = codec_error(hops.main, whole)
        elif kind == RW:
            error[:, columns] = sum(
                codec_error(hops.main, part, num_summands=len(partial)) for part in partial
            )
        else:
            inside = sum(
                codec_error(hops.intra, part, num_summands=len(partial)) for part in partial
            )
            error[:, columns] = inside + codec_error(hops.main, whole, inside)
    return error + _rounding(matrix, weights, len(parts))


def _rounding(matrix: Tensor, weights: Tensor, num_parts: int) -> Tensor:
    """Return the rounding of float32 in lookups (a bag's ids) and their sums, in both runs.

    Coding adds 3 operations to find a code and 2 to decode it, with errors relative to the row's
    largest value.
    """
    ids = float((matrix != 0).sum(1).max()) if matrix.numel() else 0.0
    terms = 2 * (ids + num_parts) + 5
    magnitude = (matrix.abs() @ weights.abs()).amax(1, True)
    return terms * U / (1 - terms * U) * magnitude.expand(-1, weights.shape[1])


def backward_error(
    case: Case, table: Table, batches: Sequence[KeyedJaggedTensor], hops: Hops
) -> Tensor:
    """Return [num_rows, dim] float64, a bound of |weights - weights with identity| after a step."""
    world_size, kind = len(batches), case.kind(table)
    num_nodes = world_size // (case.node_size or world_size)
    blocks = {s.col: block_of(s)[1] for s in shards(case, table, world_size)}
    moved = torch.zeros(table.num_rows, table.dim, dtype=torch.float64)
    magnitude = full_table(table).double().abs().amax(1, True)
    uses = torch.zeros(table.num_rows)
    for _, matrix, gradient in uses_of(case, table, batches, 0):
        for columns in blocks.values():
            error = codec_error(hops.main, gradient[:, columns])
            if kind in TWO_LEVEL:  # what the second hop codes has been divided by the nodes
                divided, moved_by = gradient[:, columns] / num_nodes, error / num_nodes
                error = error + num_nodes * codec_error(hops.intra, divided, moved_by)
            moved[:, columns] += LEARNING_RATE / world_size * matrix.T @ error
        magnitude += LEARNING_RATE / world_size * matrix.T @ gradient.abs().amax(1, True)
        uses += matrix.sum(0)
    terms = 2 * (float(uses.max()) + 2) + 5
    return moved + terms * U / (1 - terms * U) * magnitude
