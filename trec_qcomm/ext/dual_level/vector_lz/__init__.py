"""Vector-LZ: a row of indices that equals one of the 255 rows before it is sent as its distance.

An encoder of quantization indices for ops.error_bound, which calls it for one segment at a time.
All other rows are literals, bit-packed (ops.bitpack). Copies are sent only where that is shorter,
so a segment without equal rows costs one byte more than bit-packing alone.

Wire: FORMAT.md, "vector_lz". `cpu` writes and reads it. The reference of error_bound calls `cpu`,
too, by the functions here. Tests have it in plain Python.
Source: Feng et al., SC 2024 (a row as LZ's symbol, a window of 32 to 255 rows); literals packed
per 32 indices and the layout are ours.
"""

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.ext.dual_level.vector_lz import cpu


def encode_segment(q: Tensor, dim: int) -> Tensor:
    """Encode indices [N] int32, N a multiple of dim, to [W] uint8."""
    out = np.empty(5 * q.numel() + 64, np.uint8)  # literals take 4 bytes each or less
    return torch.from_numpy(out[: cpu.encode_segment(q.numpy(), dim, out)])


def decode_segment(data: Tensor, dim: int, num_values: int) -> Tensor:
    """Decode [W] uint8 to [num_values] int32. Raise ValueError for bytes that no encoder writes."""
    q = torch.empty(num_values, dtype=torch.int32)
    if not cpu.decode_segment(data.numpy(), dim, q.numpy()):
        raise ValueError("invalid indices")
    return q
