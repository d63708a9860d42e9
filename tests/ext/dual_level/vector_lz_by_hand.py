"""Vector-LZ of a segment's indices in plain Python: what the kernels are held against.

Bytes: FORMAT.md, "vector_lz". Shapes: n rows of dim indices, N = n dim, W bytes.
"""

import torch
from torch import Tensor

from trec_qcomm.ops.bitpack import reference as bitpack

WINDOW = 255


def find_copies(rows: list[list[int]]) -> list[int]:
    """Return each row's distance to the nearest equal row before it; 0: none in the window."""
    last: dict[tuple[int, ...], int] = {}
    distances = []
    for i, row in enumerate(rows):
        distance = i - last.get(tuple(row), i)
        distances.append(distance if distance <= WINDOW else 0)
        last[tuple(row)] = i
    return distances


def to_bitmap(bits: list[bool]) -> list[int]:
    """Pack eight bits a byte, lowest bit first; the last byte is padded with 0."""
    return [sum(b << k for k, b in enumerate(bits[i : i + 8])) for i in range(0, len(bits), 8)]


def encode_segment(q: Tensor, dim: int) -> Tensor:
    """Encode indices [N] int32, N a multiple of dim, to [W] uint8."""
    if q.numel() == 0:
        return torch.empty(0, dtype=torch.uint8)
    rows = q.view(-1, dim)
    distances = torch.tensor(find_copies(rows.tolist()), dtype=torch.uint8)
    literal = distances == 0
    literals_only = torch.cat([_bytes([0]), bitpack.encode_segment(q, dim)])
    if bool(literal.all()):
        return literals_only
    bitmap = _bytes([1, *to_bitmap((~literal).tolist())])
    packed = bitpack.encode_segment(rows[literal].reshape(-1), dim)
    with_copies = torch.cat([bitmap, distances[~literal], packed])
    return with_copies if with_copies.numel() <= literals_only.numel() else literals_only


def decode_segment(data: Tensor, dim: int, num_values: int) -> Tensor:
    """Decode [W] uint8 to [num_values] int32, num_values a multiple of dim.

    Raises: ValueError: bytes that no encoder writes.
    """
    if num_values == 0 or data.numel() == 0:
        _require(num_values == data.numel(), "wrong size")
        return torch.empty(0, dtype=torch.int32)
    _require(int(data[0]) <= 1, "unknown flag")
    num_rows = num_values // dim
    distances, at = [0] * num_rows, 1
    if int(data[0]) == 1:
        distances, at = _read_distances(data.tolist(), num_rows)
    num_literals = distances.count(0)
    literals = iter(bitpack.decode_segment(data[at:], dim, num_literals * dim).view(-1, dim))
    rows: list[Tensor] = []
    for i, distance in enumerate(distances):
        rows.append(rows[i - distance] if distance else next(literals))
    return torch.cat(rows)


def _read_distances(data: list[int], num_rows: int) -> tuple[list[int], int]:
    """Return each row's distance, 0 for a literal, and the place where the literals begin."""
    at = 1 + (num_rows + 7) // 8
    _require(at <= len(data), "wrong size")
    bits = [byte >> k & 1 for byte in data[1:at] for k in range(8)]
    _require(not any(bits[num_rows:]), "padding is not 0")
    _require(at + sum(bits) <= len(data), "wrong size")
    distances = []
    for i, is_copy in enumerate(bits[:num_rows]):
        distances.append(data[at] if is_copy else 0)
        _require(not is_copy or 1 <= data[at] <= i, "distance out of range")
        at += is_copy
    return distances, at


def _bytes(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise ValueError(f"vector_lz: {reason}")
