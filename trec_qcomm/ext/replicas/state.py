"""State of touched rows as bytes, whose number a checkpoint need not know when it is loaded.

Knows: banks. Does not know: checkpoints.
Shapes: n rows of a bank; K matrices of D values a row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trec_qcomm.ext.replicas.banks import Bank


def rows_to_bytes(rows: Tensor, values: Sequence[Tensor]) -> bytes:
    """Return row numbers and then values. Args: rows: [n] int64.  values: [n, D] of each matrix."""
    parts = (rows, *values)
    return b"".join(part.cpu().contiguous().numpy().tobytes() for part in parts)


def rows_from_bytes(data: object, bank: Bank) -> tuple[Tensor, list[Tensor]]:
    """Return what `rows_to_bytes` was given. Raises ValueError: bytes of another bank."""
    row_nbytes = 8 + 4 * sum(bank.dims)
    if not isinstance(data, bytes) or len(data) % row_nbytes:
        raise ValueError(f"state: sync: touched: not of table {bank.tables[0]!r} as it is now")
    n = len(data) // row_nbytes
    memory = torch.frombuffer(bytearray(data), dtype=torch.uint8) if n else torch.empty(0).byte()
    sizes = [8 * n, *(4 * n * dim for dim in bank.dims)]
    rows, *values = (part.clone() for part in torch.split(memory, sizes))
    device, rows = bank.first.device, rows.view(torch.int64)
    if n and not 0 <= int(rows.min()) <= int(rows.max()) < int(bank.first[-1]):
        raise ValueError(f"state: sync: touched: rows that table {bank.tables[0]!r} does not have")
    pairs = zip(values, bank.dims, strict=True)
    return rows.to(device), [v.view(torch.float32).view(n, d).to(device) for v, d in pairs]
