"""The CUDA stream on which rows are coded, beside the one that computes. Nothing on a CPU.

Tensors are allocated on the stream that writes them; where another one reads them the allocator is
told (record_stream), so that the memory is not given away before that has happened.
Source: torch's notes on CUDA semantics. Not run on a GPU so far.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor


@contextmanager
def side_stream(device: torch.device, *given: Tensor) -> Iterator[None]:
    """What is launched within runs beside the current stream, after all it was given to do so far
    if there are `given` tensors, which are the current stream's and read or written within."""
    if device.type != "cuda":
        yield
        return
    side = _coding(device)
    if given:
        side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield
    for tensor in given:
        tensor.record_stream(side)


def join(device: torch.device, *made: Tensor) -> None:
    """From here on the current stream may use `made`, which was allocated in `side_stream`."""
    if device.type != "cuda":
        return
    current = torch.cuda.current_stream(device)
    current.wait_stream(_coding(device))
    for tensor in made:
        tensor.record_stream(current)


@contextmanager
def sizes_stream(device: torch.device) -> Iterator[None]:
    """For what the host waits for, and needs nothing that is under way on another stream."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.stream(_sizes(device)):
        yield


@cache
def _coding(device: torch.device) -> torch.cuda.Stream:
    # Ahead of the dense part's kernels: what is coded late is sent late, and all ranks wait for it.
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


@cache
def _sizes(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
