"""Pack numbers of a few bits without gaps, lowest bits first: the definition, in torch.

Formats pack each row by itself and pad its last byte with 0.
Shapes: rows of n numbers of `width` bits, W = ceil(n * width / 8) bytes each.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad


def to_bytes(numbers: Tensor, width: int) -> Tensor:
    """Pack numbers, [.., n] of an integer dtype, each below 2^width, to [.., W] uint8."""
    places = torch.arange(width, device=numbers.device)
    bits = ((numbers[..., None].to(torch.int64) >> places) & 1).flatten(-2)
    nbytes = (bits.shape[-1] + 7) // 8
    bits = pad(bits, (0, -bits.shape[-1] % 8)).reshape(*numbers.shape[:-1], nbytes, 8)
    return (bits << torch.arange(8, device=numbers.device)).sum(-1).to(torch.uint8)


def from_bytes(data: Tensor, width: int, count: int) -> Tensor:
    """Return [.., count] int64, the numbers that `to_bytes` packed to [.., W] uint8.

    Bits after the last number are ignored.
    """
    places = torch.arange(8, device=data.device)
    bits = ((data[..., None].to(torch.int64) >> places) & 1).flatten(-2)
    bits = bits[..., : count * width].reshape(*data.shape[:-1], count, width)
    return (bits << torch.arange(width, device=data.device)).sum(-1)
