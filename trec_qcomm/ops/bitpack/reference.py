"""Bitpack in plain torch: the definition. Shapes: N indices, W bytes."""

import torch
from torch import Tensor

from trec_qcomm.ops.bits import from_bytes, to_bytes

BLOCK, GROUP_BLOCKS = 32, 32
MAX_WIDTH, MAX_CODE_BITS = 24, 5


def encode_segment(q: Tensor, dim: int) -> Tensor:
    """Encode the indices of one segment.

    Args:    q: [N] int32, |q| <= 2^22.
             dim: not used, because blocks cross rows; encoders share one signature.
    Returns: [W] uint8.
    """
    words = zigzag(q)
    blocks = torch.split(words, BLOCK)
    data: list[Tensor] = []
    for first in range(0, len(blocks), GROUP_BLOCKS):
        group = [block for block in blocks[first : first + GROUP_BLOCKS] if len(block)]
        if group:
            data += _encode_group(group)
    return torch.cat(data) if data else torch.empty(0, dtype=torch.uint8)


def _encode_group(blocks: list[Tensor]) -> list[Tensor]:
    """Return a header byte, the codes of the widths and the blocks, as uint8 tensors."""
    widths = [int(block.max()).bit_length() for block in blocks]
    min_width = min(widths)
    code_bits = (max(widths) - min_width).bit_length()
    codes = torch.tensor([width - min_width for width in widths])
    header = torch.tensor([min_width | code_bits << 5], dtype=torch.uint8)
    packed = [to_bytes(block, width) for block, width in zip(blocks, widths, strict=True)]
    return [header, to_bytes(codes, code_bits), *packed]


def decode_segment(data: Tensor, dim: int, num_values: int) -> Tensor:
    """Decode all of `data`, [W] uint8, into [num_values] int32.

    Raises: ValueError: the widths imply another W, or no encoder writes such a width.
    """
    at, words = 0, []
    while num_values > 0:
        sizes = [min(BLOCK, num_values - BLOCK * b) for b in range(GROUP_BLOCKS)]
        sizes = [size for size in sizes if size > 0]
        header = int(_take(data, at, 1)[0])
        min_width, code_bits = header & 31, header >> 5
        if code_bits > MAX_CODE_BITS:
            raise ValueError("invalid indices")
        codes_nbytes = -(-len(sizes) * code_bits // 8)
        codes = from_bytes(_take(data, at + 1, codes_nbytes), code_bits, len(sizes))
        at += 1 + codes_nbytes
        for size, code in zip(sizes, codes.tolist(), strict=True):
            width = min_width + code
            if width > MAX_WIDTH:
                raise ValueError("invalid indices")
            nbytes = -(-size * width // 8)
            words.append(from_bytes(_take(data, at, nbytes), width, size))
            at += nbytes
        num_values -= sum(sizes)
    if at != len(data):
        raise ValueError("invalid indices")
    return unzigzag(torch.cat(words)) if words else torch.empty(0, dtype=torch.int32)


def _take(data: Tensor, at: int, nbytes: int) -> Tensor:
    """Return data[at : at + nbytes]. Raise ValueError where data ends before that."""
    if at + nbytes > len(data):
        raise ValueError("invalid indices")
    return data[at : at + nbytes]


def zigzag(q: Tensor) -> Tensor:
    """Map 0, -1, 1, -2, 2 ... to 0, 1, 2, 3, 4 ..., as int64."""
    wide = q.to(torch.int64)
    return torch.where(wide < 0, -2 * wide - 1, 2 * wide)


def unzigzag(words: Tensor) -> Tensor:
    """Invert `zigzag`; int32."""
    return torch.where(words % 2 == 1, -(words + 1) // 2, words // 2).to(torch.int32)
