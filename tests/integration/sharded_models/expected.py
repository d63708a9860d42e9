"""Outputs and weights that a Case must give, and how far float32 may be from them.

They are computed in float64 from unsharded weights.

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

from tests.integration.sharded_models.batches import coefficients
from tests.integration.sharded_models.cases import (
    GRID,
    LEARNING_RATE,
    RW,
    TWRW,
    Case,
    Shard,
    Table,
    output_keys,
)

U = 2.0**-24


@dataclass(frozen=True)
class Expected:
    """Values and the largest error of each, float64."""

    values: Tensor
    tolerance: Tensor

    def holds(self, values: Tensor) -> bool:
        """Return whether all values are within the tolerance."""
        same_shape = values.shape == self.values.shape
        return same_shape and bool(((values.double() - self.values).abs() <= self.tolerance).all())


def rounding(num_terms: float, magnitude: Tensor) -> Tensor:
    """Return the bound of a sum of so many terms whose absolute values add up to `magnitude`."""
    return num_terms * U / (1 - num_terms * U) * magnitude


def incidence(case: Case, table: Table, feature: str, features: KeyedJaggedTensor) -> Tensor:
    """Return [rows out, num_rows] float64. Rows out are samples, or ids without pooling."""
    jagged = features[feature]
    ids, lengths = jagged.values(), jagged.lengths()
    if case.sequence:
        return torch.nn.functional.one_hot(ids, table.num_rows).double()
    bags = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    weights = jagged.weights().double() if case.weighted else torch.ones(len(ids)).double()
    matrix = torch.zeros(len(lengths), table.num_rows, dtype=torch.float64)
    matrix.index_put_((bags, ids), weights, accumulate=True)
    if table.pooling == "mean":
        matrix /= _divisors(case, table, lengths)[:, None]
    inverse = features.inverse_indices_or_none()
    return matrix if inverse is None else matrix[inverse[1][case.features.index(feature)]]


def _divisors(case: Case, table: Table, lengths: Tensor) -> Tensor:
    """What TorchRec divides sums of that many ids by: row-wise shardings do it after the exchange,
    with a float32 epsilon against 0."""
    if case.kind(table) in (RW, TWRW, GRID):
        return (lengths + 1e-6).double()
    return lengths.clamp(min=1).double()


def outputs(
    case: Case, weights: dict[str, Tensor], features: KeyedJaggedTensor
) -> dict[str, Expected]:
    """Return one rank's outputs.

    Terms: the ids of a bag; one rounding for its weights, two for a mean.
    """
    expected = {}
    for key, table, feature in output_keys(case):
        matrix, rows = incidence(case, table, feature, features), weights[table.name].double()
        most = 1 if case.sequence else case.max_length
        extra = case.weighted + 2 * (table.pooling == "mean")
        expected[key] = Expected(
            matrix @ rows, rounding(most - 1 + extra, matrix.abs() @ rows.abs())
        )
    return expected


def updated(
    case: Case,
    weights: dict[str, Tensor],
    batches: Sequence[KeyedJaggedTensor],
    *,
    step: int = 0,
    divisor: float | None = None,
) -> dict[str, Expected]:
    """Return the weights after a step of SGD on the linear loss, with gradients `coefficients`.

    Args: batches: one of each rank.  divisor: divides gradients; None: the number of ranks
    Terms: a row's uses, each rounded when weighted or divided; the step; the difference.
    """
    divisor = divisor or len(batches)
    expected = {}
    for table in case.tables:
        rows = weights[table.name].double()
        gradient, magnitude, uses = torch.zeros_like(rows), rows.abs(), torch.zeros(len(rows))
        for _, matrix, coefficient in uses_of(case, table, batches, step):
            gradient += matrix.T @ coefficient
            magnitude = magnitude + LEARNING_RATE / divisor * matrix.T.abs() @ coefficient.abs()
            uses += (matrix != 0).sum(0) * case.max_length
        terms = float(uses.max()) + 4
        expected[table.name] = Expected(
            rows - LEARNING_RATE * gradient / divisor, rounding(terms, magnitude)
        )
    return expected


def uses_of(
    case: Case, table: Table, batches: Sequence[KeyedJaggedTensor], step: int
) -> list[tuple[str, Tensor, Tensor]]:
    """Return output key, incidence and float64 gradient of each feature of a table on each rank."""
    uses = []
    for key, owner, feature in output_keys(case):
        if owner != table:
            continue
        for rank, features in enumerate(batches):
            matrix = incidence(case, table, feature, features)
            shape = (matrix.shape[0], table.dim)
            uses.append((key, matrix, coefficients(case, step, rank, key, shape).double()))
    return uses


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
