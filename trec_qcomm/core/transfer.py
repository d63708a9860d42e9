"""Copies of small vectors between the host and a device, through pinned memory."""

from itertools import chain

import torch
from torch import Tensor

_PADDING = tuple(torch.zeros(n, dtype=torch.int64) for n in range(2))


def upload(device: torch.device, *vectors: Tensor) -> tuple[Tensor, ...]:
    """Copy [n_i] int64 vectors from the CPU to the device, in one copy that nobody waits for.

    On the device each vector begins at a multiple of 16 bytes. For other places Triton would
    compile a kernel anew.
    """
    if device.type == "cpu":
        return vectors
    pairs = [(vector, _PADDING[vector.numel() % 2]) for vector in vectors]
    on_device = _sent(device, tuple(chain.from_iterable(pairs)))
    sizes = chain.from_iterable((vector.numel(), padding.numel()) for vector, padding in pairs)
    return torch.split(on_device, list(sizes))[::2]


class Download:
    """Copy of a vector on its way to the CPU, after the work that the current stream has so far.

    Args: vector: tensor on any device. A tensor on CPU is there at once, and is not copied.
    """

    def __init__(self, vector: Tensor) -> None:
        self._host = vector
        self._copied: torch.cuda.Event | None = None
        if vector.device.type != "cpu":
            self._host, self._copied = _fetched(vector)

    def is_here(self) -> bool:
        """Return whether `wait` would return at once."""
        return self._copied is None or self._copied.query()  # type: ignore[no-untyped-call]

    def wait(self) -> Tensor:
        """Wait for the vector, and return it on CPU."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host


def download(vector: Tensor) -> Tensor:
    """Return the vector on CPU, after waiting for the work that the current stream has so far."""
    return Download(vector).wait()


def _sent(device: torch.device, vectors: tuple[Tensor, ...]) -> Tensor:
    """Return int64 vectors from the CPU in the device's memory, one behind the other."""
    staged = torch.empty(sum(v.numel() for v in vectors), dtype=torch.int64, pin_memory=True)
    torch.cat(vectors, out=staged)
    # torch's allocator does not reuse the pinned memory before the copy is over.
    return staged.to(device, non_blocking=True)


def _fetched(vector: Tensor) -> tuple[Tensor, torch.cuda.Event]:
    """Return a vector's copy on CPU, which is there once the event is over."""
    host = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
    host.copy_(vector, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()
    return host, copied
