"""Codecs whose frames are damaged, and damage to a message."""

import torch
from torch import Tensor

from trec_qcomm import Cast, ErrorBounded, Float6, Float8, Identity, Rowwise, Threshold, TopK
from trec_qcomm.core.codec import Codec
from trec_qcomm.testing import reseal

CODECS: tuple[Codec, ...] = (
    Identity(),
    Cast("bf16"),
    Rowwise(8),
    Rowwise(4),
    Rowwise(2),
    *(ErrorBounded(0.05, encoder=e) for e in ("bitpack", "vector_lz", "rans")),
    ErrorBounded(1e-5, mode="abs"),
    TopK(density=0.3, values="fp16"),
    TopK(threshold=0.8, values="int8"),
    Threshold(0.8, values="int8"),
    Float6(),
    Float8(),
)


def mutant(frame: Tensor, generator: torch.Generator) -> Tensor:
    """Return a damaged copy: one to four bytes changed, words swapped, cut, or longer.

    Three of four get a new checksum, so that the damage reaches the decoders.
    """

    def below(limit: int) -> int:
        return int(torch.randint(limit, (1,), generator=generator))

    data, size = frame.clone(), frame.numel()
    kind = below(10)
    if kind == 0:
        return data[: 8 * below(size // 8)].clone()
    if kind == 1:
        more = torch.randint(256, (8 * (1 + below(4)),), generator=generator)
        data = torch.cat([data, more.to(torch.uint8)])
        data[16:24].view(torch.int64)[0] = data.numel()
    elif kind == 2:
        words = data.view(torch.int64)
        a, b = below(len(words)), below(len(words))
        words[[a, b]] = words[[b, a]].clone()
    else:
        for _ in range(1 + below(4)):
            data[below(size)] = below(256)
    if below(4):
        reseal(data)
    return data
