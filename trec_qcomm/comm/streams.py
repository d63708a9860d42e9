"""The CUDA streams on which rows and gradients are coded, beside the one that computes; on a CPU
nothing.

Tensors are allocated on the stream that writes them; where another one reads them the allocator is
told (record_stream), so that the memory is not given away before that has happened.
Source: torch's notes on CUDA semantics. Not run on a GPU so far.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal

import torch
from torch import Tensor

Use = Literal["rows", "sizes", "gradients"]


@contextmanager
def side_stream(device: torch.device, *given: Tensor, use: Use = "rows") -> Iterator[None]:
    """What is launched within runs beside the current stream, after all it was given to do so far
    if there are `given` tensors, which are the current stream's and read or written within."""
    if device.type != "cuda":
        yield
        return
    side = _stream(device, use)
    if given:
        side.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(side):
            yield
    finally:  # what was launched before an error runs, too
        for tensor in given:
            tensor.record_stream(side)


def join(device: torch.device, *made: Tensor) -> None:
    """From here on the current stream may use `made`, which was allocated in `side_stream`."""
    if device.type != "cuda":
        return
    current = torch.cuda.current_stream(device)
    current.wait_stream(_stream(device, "rows"))
    for tensor in made:
        tensor.record_stream(current)


@contextmanager
def sizes_stream(device: torch.device) -> Iterator[None]:
    """For what the host waits for, and needs nothing that is under way on another stream."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.stream(_stream(device, "sizes")):
        yield


@cache
def _stream(device: torch.device, _use: Use) -> torch.cuda.Stream:
    # Ahead of the dense part's kernels: what is coded late is sent late, and all ranks wait for it.
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
