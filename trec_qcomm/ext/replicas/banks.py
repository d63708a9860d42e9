"""Banks: tables that lie one after the other in memory, and their touched rows.

Knows: tensors. Does not know: replicas, codecs, TorchRec.
Shapes: T tables of a bank, R rows in all; K matrices, of D values a row each; n rows of some.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum, int64_tensor

WEIGHTS = "weights"  # the name of a bank's first matrix


@dataclass(frozen=True, eq=False)
class Bank:
    """T tables whose rows are numbered together, 0..R-1.

    Args:
        tables: T names, for statistics; a table may occur twice, with different columns.
        shards: T distinct names, under which state is kept.
        num_rows: T numbers of rows.
        offsets: T pairs, the row and the column of the whole table where a shard begins.
        matrices: K views [R, D] float32 of the values, by name: first the weights, then the
            optimizer's state of the rows.
    Derived: first: [T + 1] int64 in the memory of the values, the number of each table's first row.
    Raises: ValueError: matrices of other shapes or dtypes.
    """

    tables: Sequence[str]
    shards: Sequence[str]
    num_rows: Sequence[int]
    offsets: Sequence[tuple[int, int]]
    matrices: Mapping[str, Tensor]
    first: Tensor = field(init=False)

    def __post_init__(self) -> None:
        for name, matrix in self.matrices.items():
            expected = (sum(self.num_rows), matrix.shape[-1])
            if matrix.dtype != torch.float32 or matrix.shape != expected:
                raise ValueError(
                    f"{name} of table {self.tables[0]!r}: expected {list(expected)} float32, "
                    f"got {list(matrix.shape)} {matrix.dtype}"
                )
        first = exclusive_cumsum(int64_tensor(self.num_rows))
        object.__setattr__(self, "first", first.to(self.matrices[WEIGHTS].device))

    @property
    def dims(self) -> list[int]:
        """Number of values of a row, for each matrix."""
        return [matrix.shape[1] for matrix in self.matrices.values()]

    def resident(self) -> Mapping[str, Tensor]:
        """Return the matrices. Raises ValueError: the memory of one is freed, as it is stashed."""
        for name, matrix in self.matrices.items():
            if matrix.numel() and not matrix.untyped_storage().size():
                raise ValueError(
                    f"{name} of table {self.tables[0]!r} is stashed; call "
                    "MemoryStashingManager's restore_embedding_weights and restore_optimizer_state"
                )
        return self.matrices

    def take(self, rows: Tensor) -> list[Tensor]:
        """Return [n, D] of each matrix. Args: rows: [n] int64."""
        return [matrix.index_select(0, rows) for matrix in self.resident().values()]

    def counts(self, rows: Tensor) -> Tensor:
        """Return [T] int64, how many rows each table has. Args: rows: [n] int64, ascending."""
        return torch.searchsorted(rows, self.first).diff()


class TouchedRows:
    """Rows of a bank that were touched since `clear`, and their earlier values.

    Memory: 1 byte for each row of the bank, and 8 + 4 * (sum of D) bytes for each touched row.
    """

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        device = bank.first.device
        self._is_touched = torch.zeros(int(bank.first[-1]), dtype=torch.bool, device=device)
        self._rows: list[Tensor] = []
        self._bases: list[list[Tensor]] = []

    def touch(self, rows: Tensor) -> None:
        """Keep the values of the given rows that were not touched before. Waits for a GPU.

        Args: rows: [n] int64, in any order; rows may repeat.
        """
        rows = rows[~self._is_touched[rows]]
        if rows.numel():
            rows = torch.unique(rows)
            self._is_touched[rows] = True
            self._rows.append(rows)
            self._bases.append(self._bank.take(rows))

    def collect(self) -> tuple[Tensor, list[Tensor]]:
        """Return the touched rows, [n] int64 ascending, and their earlier values, [n, D] each."""
        if not self._rows:
            none = torch.zeros(0, dtype=torch.int64, device=self._is_touched.device)
            return none, self._bank.take(none)
        rows, order = torch.cat(self._rows).sort()
        bases = [torch.cat(parts)[order] for parts in zip(*self._bases, strict=True)]
        return rows, bases

    def restore(self, rows: Tensor, bases: Sequence[Tensor]) -> None:
        """Continue from what `collect` returned."""
        self.clear()
        if rows.numel():
            self._is_touched[rows] = True
            self._rows, self._bases = [rows], [list(bases)]

    def clear(self) -> None:
        """Forget all rows."""
        for rows in self._rows:
            self._is_touched[rows] = False
        self._rows, self._bases = [], []
