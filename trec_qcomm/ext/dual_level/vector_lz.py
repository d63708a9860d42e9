"""Vector-LZ: a row of indices that equals one of the 255 rows before it is sent as its distance.

An encoder of quantization indices for ops.error_bound, which calls it for one segment at a time.
All other rows are literals, bit-packed (ops.bitpack). Copies are sent only where that is shorter,
so a segment without equal rows costs one byte more than bit-packing alone.

Wire: FORMAT.md, "vector_lz". In numpy, on a CPU: torch.unique sorts rows far more slowly.
Shapes: n rows of dim indices, N = n dim, W bytes.
Source: Feng et al., SC 2024 (a row as LZ's symbol, a window of 32 to 255 rows); literals packed
per 32 indices and the layout are ours.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.jit import numba
from trec_qcomm.ops.bitpack import cpu as bitpack

if numba is None:
    raise ImportError("error_bounded.encoder: vector_lz needs numba; pip install numba")
WINDOW = 255


def encode_segment(q: Tensor, dim: int) -> Tensor:
    """Encode indices [N] int32, N a multiple of dim, to [W] uint8."""
    if not len(q):
        return torch.empty(0, dtype=torch.uint8)
    rows = q.numpy().reshape(-1, dim)
    data = np.concatenate([np.zeros(1, np.uint8), _pack(rows)])
    distances = _distances(rows)
    copied = distances > 0
    if copied.any():
        bitmap = np.packbits(copied, bitorder="little")
        parts = np.ones(1, np.uint8), bitmap, distances[copied], _pack(rows[~copied])
        data = min(np.concatenate(parts), data, key=len)
    return torch.from_numpy(data)


def decode_segment(data: Tensor, dim: int, num_values: int) -> Tensor:
    """Decode [W] uint8 to [num_values] int32. Raise ValueError for bytes that no encoder writes."""
    if not num_values or not len(data):
        _require(num_values == len(data))
        return torch.empty(0, dtype=torch.int32)
    num_rows, flag = num_values // dim, int(data[0])
    bitmap, rest = np.split(data.numpy()[1:], [(num_rows + 7) // 8 * flag])
    _require(flag <= 1 and len(bitmap) == (num_rows + 7) // 8 * flag)
    bits = np.unpackbits(bitmap, bitorder="little")
    copies = bits.nonzero()[0]
    distances, literals = np.split(rest, [len(copies)])
    _require(not bits[num_rows:].any() and len(distances) == len(copies))
    _require(bool(((distances >= 1) & (distances <= copies)).all()))
    is_literal, source = np.ones(num_rows, bool), np.arange(num_rows)
    is_literal[copies] = False
    source[copies] -= distances
    while not is_literal[source].all():  # a copy of a copy has that copy's source
        source = source[source]
    rows = _unpack(literals, num_values - len(copies) * dim).reshape(-1, dim)
    return torch.from_numpy(rows[(is_literal.cumsum() - 1)[source]].reshape(-1))


def _distances(rows: Any) -> Any:
    """Return [n] uint8, each row's distance to the nearest equal row before it; 0: not in reach."""
    row = np.dtype((np.void, rows[0].nbytes))
    order = np.argsort(rows.view(row).reshape(-1), kind="stable")  # equal rows by their numbers
    steps = np.diff(order)
    near = ((steps > 0) & (steps <= WINDOW)).nonzero()[0]
    near = near[(rows[order[near + 1]] == rows[order[near]]).all(1)]
    distances = np.zeros(len(rows), np.uint8)
    distances[order[near + 1]] = steps[near]
    return distances


def _pack(rows: Any) -> Any:
    """Return the bitpack stream of rows, [W] uint8."""
    out = np.empty(4 * rows.size + 64, np.uint8)  # an index takes 4 bytes or less
    return out[: bitpack.encode_segment(rows.reshape(-1), 1, out)]


def _unpack(data: Any, num_values: int) -> Any:
    """Invert `_pack`, to [num_values] int32."""
    q = np.empty(num_values, np.int32)
    _require(bitpack.decode_segment(data, 1, q))
    return q


def _require(valid: bool) -> None:
    if not valid:
        raise ValueError("invalid indices")
