"""What a Case must give, in float64 from unsharded weights, and how far float32 may be from it.

A feature's batch is an incidence matrix A [rows out, rows of the table]: A[b, i] is the weight with
which bag b uses row i. Then outputs are A @ W and gradients A^T @ G.

Rounding: a float32 sum of m terms in ANY order differs from the exact one by at most
(m - 1) u sum|x| / (1 - m u), u = 2^-24. So it does not matter which partial sums a sharding adds
up, nor in which order. One more u for each product or division before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.integration.sharded_models.cases import (
    GRID,
    LEARNING_RATE,
    RW,
    TWRW,
    Case,
    Shard,
    Table,
    coefficients,
    output_keys,
)

U = 2.0**-24


@dataclass(frozen=True)
class Expected:
    """values and the largest error of each, float64."""

    values: Tensor
    tolerance: Tensor

    def holds(self, found: Tensor) -> bool:
        """Whether all of `found` is within the tolerance."""
        same_shape = found.shape == self.values.shape
        return same_shape and bool(((found.double() - self.values).abs() <= self.tolerance).all())


def rounding(num_terms: float, magnitude: Tensor) -> Tensor:
    """Bound of a sum of that many terms whose absolute values add up to `magnitude`."""
    return num_terms * U / (1 - num_terms * U) * magnitude


def incidence(case: Case, table: Table, feature: str, features: KeyedJaggedTensor) -> Tensor:
    """[rows out, num_rows] float64. Rows out are samples, or ids where there is no pooling."""
    of = features[feature]
    ids, lengths = of.values(), of.lengths()
    if case.sequence:
        return torch.nn.functional.one_hot(ids, table.num_rows).double()
    bags = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    weights = of.weights().double() if case.weighted else torch.ones(len(ids)).double()
    found = torch.zeros(len(lengths), table.num_rows, dtype=torch.float64)
    found.index_put_((bags, ids), weights, accumulate=True)
    if table.pooling == "mean":
        found /= _divisors(case, table, lengths)[:, None]
    inverse = features.inverse_indices_or_none()
    return found if inverse is None else found[inverse[1][case.features.index(feature)]]


def _divisors(case: Case, table: Table, lengths: Tensor) -> Tensor:
    """What TorchRec divides sums of that many ids by: row-wise shardings do it after the exchange,
    with a float32 epsilon against 0."""
    if case.kind(table) in (RW, TWRW, GRID):
        return (lengths + 1e-6).double()
    return lengths.clamp(min=1).double()


def outputs(
    case: Case, weights: dict[str, Tensor], features: KeyedJaggedTensor
) -> dict[str, Expected]:
    """One rank's outputs. Terms: the ids of a bag; one rounding for its weights, two for a mean."""
    found = {}
    for key, table, feature in output_keys(case):
        matrix, rows = incidence(case, table, feature, features), weights[table.name].double()
        most = 1 if case.sequence else case.max_length
        extra = case.weighted + 2 * (table.pooling == "mean")
        found[key] = Expected(matrix @ rows, rounding(most - 1 + extra, matrix.abs() @ rows.abs()))
    return found


def updated(
    case: Case,
    weights: dict[str, Tensor],
    batches: Sequence[KeyedJaggedTensor],
    *,
    step: int = 0,
    divisor: float | None = None,
) -> dict[str, Expected]:
    """Weights after one step of SGD on the linear loss, whose gradients are `coefficients`.

    Args: batches: by rank.  divisor: of gradients; the number of ranks if not given.
    Terms: a row's uses, each rounded when weighted or divided; the step; the difference.
    """
    divisor = divisor or len(batches)
    found = {}
    for table in case.tables:
        rows = weights[table.name].double()
        gradient, magnitude, uses = torch.zeros_like(rows), rows.abs(), torch.zeros(len(rows))
        for _, matrix, coefficient in uses_of(case, table, batches, step):
            gradient += matrix.T @ coefficient
            magnitude = magnitude + LEARNING_RATE / divisor * matrix.T.abs() @ coefficient.abs()
            uses += (matrix != 0).sum(0) * case.max_length
        terms = float(uses.max()) + 4
        found[table.name] = Expected(
            rows - LEARNING_RATE * gradient / divisor, rounding(terms, magnitude)
        )
    return found


def uses_of(
    case: Case, table: Table, batches: Sequence[KeyedJaggedTensor], step: int
) -> list[tuple[str, Tensor, Tensor]]:
    """For each feature of the table on each rank: output key, incidence, gradient (float64)."""
    found = []
    for key, owner, feature in output_keys(case):
        if owner != table:
            continue
        for rank, features in enumerate(batches):
            matrix = incidence(case, table, feature, features)
            shape = (matrix.shape[0], table.dim)
            found.append((key, matrix, coefficients(case, step, rank, key, shape).double()))
    return found


def block_of(shard: Shard) -> tuple[slice, slice]:
    """Rows and columns of the table."""
    rows = slice(shard.row, shard.row + shard.num_rows)
    return rows, slice(shard.col, shard.col + shard.num_cols)


def assembled(table: Table, parts: Sequence[tuple[int, int, Tensor]]) -> Tensor:
    """The whole table out of all ranks' blocks. Raises AssertionError: blocks that differ where
    they overlap (DATA_PARALLEL), or that leave something out."""
    whole = torch.full((table.num_rows, table.dim), torch.nan)
    for row, col, tensor in parts:
        there = whole[row : row + tensor.shape[0], col : col + tensor.shape[1]]
        assert bool((there.isnan() | (there == tensor)).all()), f"{table.name}: ranks differ"
        there.copy_(tensor)
    assert not bool(whole.isnan().any()), f"{table.name}: incomplete"
    return whole
