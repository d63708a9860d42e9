"""Search with damaged frames of every codec: a decoder gives rows or a CorruptFrameError.

Three of four damaged frames get a new checksum, so that the damage reaches the decoders.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from trec_qcomm import (
    Cast,
    CorruptFrameError,
    ErrorBounded,
    Float6,
    Identity,
    Rowwise,
    Threshold,
    TopK,
)
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.segments import Segments
from trec_qcomm.testing import frame_of, open_frame, reseal

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
)
SHAPES = (([5], 16), ([3, 0, 40], 7), ([200], 8))


def subjects() -> list[tuple[Codec, Tensor, Segments]]:
    """Return valid frames: plain rows, repeated rows, and some values that are sent verbatim."""
    frames = []
    for codec in CODECS:
        for num_rows, dim in SHAPES:
            generator = torch.Generator().manual_seed(dim)
            rows = torch.randn(sum(num_rows), dim, generator=generator)
            rows[len(rows) // 2 :] = rows[: len(rows) - len(rows) // 2].round()
            rows[-1, 0] = torch.nan
            frames.append((codec, *frame_of(codec, rows, num_rows)))
    return frames


def mutant(frame: Tensor, generator: torch.Generator) -> Tensor:
    """Return a damaged copy: one to four bytes changed, words swapped, cut, or longer."""

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


def search(num_frames: int, seed: int, progress: Callable[[int], object] = lambda _: None) -> int:
    """Open `num_frames` damaged frames; return how many were refused.

    Args: progress: called with the number of frames done since the last call.
    Raises: whatever a decoder raises that is no CorruptFrameError.
    """
    generator = torch.Generator().manual_seed(seed)
    frames = subjects()
    refused = 0
    for n in range(num_frames):
        codec, frame, segments = frames[n % len(frames)]
        try:
            open_frame(codec, mutant(frame, generator), segments)
        except CorruptFrameError:
            refused += 1
        if n % 1000 == 999:
            progress(1000)
    return refused
