"""Residuals of rows: a codec's error of a row is added when the row is sent again.

Memory is bounded: row i of a table has slot i mod N of the table's N slots. Another row that comes
to a slot takes it, and the residual there is dropped. A table of at most N rows loses no residual.

Knows: banks. Does not know: codecs, messages.
Shapes: T tables of a bank; M slots in all; n rows of D values.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from trec_qcomm.core.segments import exclusive_cumsum, int64_tensor
from trec_qcomm.ext.replicas.banks import Bank

NO_ROW = -1


class Residuals:
    """Residuals of the rows of one matrix of a bank, at one place that encodes.

    Args: bank: the tables.  dim: values of a row.  num_slots: largest number of slots of a table.
    """

    def __init__(self, bank: Bank, dim: int, num_slots: int) -> None:
        device = bank.first.device
        slots = int64_tensor(min(n, num_slots) for n in bank.num_rows)
        self._ends = exclusive_cumsum(slots)
        self._bank, self._slots = bank, slots.to(device)
        self._base = self._ends[:-1].to(device)
        self._rows = torch.full((int(self._ends[-1]),), NO_ROW, dtype=torch.int64, device=device)
        self._values = torch.zeros(int(self._ends[-1]), dim, device=device)

    def of_rows(self, rows: Tensor) -> Tensor:
        """Return the residuals of rows, [n, D] float32; 0 without one. Args: rows: [n] int64."""
        slot = self._slot(rows)
        return torch.where((self._rows[slot] == rows)[:, None], self._values[slot], 0)

    def keep(self, rows: Tensor, values: Tensor) -> None:
        """Keep residuals in place of earlier ones. For rows with NaN or inf, keep 0.

        If several rows have one slot, the last row's residual is kept.

        Args: rows: [n] int64, each once.  values: [n, D] float32.
        """
        slot = self._slot(rows)
        number = torch.arange(len(rows), device=rows.device)
        last = torch.full_like(self._rows, -1).scatter_reduce_(0, slot, number, "amax")
        wins = last[slot] == number
        slot, rows, values = slot[wins], rows[wins], values[wins]
        self._rows[slot] = rows
        is_finite = values.isfinite().all(1, keepdim=True)
        self._values[slot] = torch.where(is_finite, values, 0)

    def _slot(self, rows: Tensor) -> Tensor:
        first = self._bank.first
        table = torch.searchsorted(first[1:], rows, right=True)
        return self._base[table] + (rows - first[table]) % self._slots[table]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the row numbers within tables and the values of all slots, on CPU, by shard."""
        state = {}
        for name, first, begin, end in self._ranges():
            rows = self._rows[begin:end].cpu()
            state[f"{name} rows"] = torch.where(rows == NO_ROW, NO_ROW, rows - first)
            state[f"{name} values"] = self._values[begin:end].cpu().clone()
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a state. Shards that it lacks, or has in other shapes, begin empty."""
        for name, first, begin, end in self._ranges():
            rows, values = state.get(f"{name} rows"), state.get(f"{name} values")
            self._rows[begin:end], self._values[begin:end] = NO_ROW, 0
            if rows is None or values is None or values.shape != self._values[begin:end].shape:
                continue
            rows = torch.where(rows == NO_ROW, NO_ROW, rows + first)
            self._rows[begin:end] = rows.to(self._rows.device)
            self._values[begin:end] = values.to(self._rows.device)

    def _ranges(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield the name of each shard, its first row, and the range of its slots."""
        ends, firsts = self._ends.tolist(), self._bank.first.tolist()
        yield from zip(self._bank.shards, firsts[:-1], ends[:-1], ends[1:], strict=True)
