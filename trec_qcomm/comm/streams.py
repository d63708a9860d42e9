"""CUDA streams on which rows and gradients are coded, beside the stream that computes.

On a CPU these functions do nothing. Tensors are allocated on the stream that writes them. If
another stream reads them, the allocator is told (record_stream), so that it does not reuse the
memory before the read is over.
Source: torch's notes on CUDA semantics. Not run on a GPU so far.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from trec_qcomm.core.devices import is_gpu

Use = Literal["rows", "gradients"]


@contextmanager
def side_stream(device: torch.device, *given: Tensor, use: Use = "rows") -> Iterator[None]:
    """Launch the kernels of this context on a stream beside the current one.

    Args:
        device: the device; on a CPU the context does nothing.
        given: tensors of the current stream that the context reads or writes. If there are any, the
            side stream first waits for the work that the current stream has so far.
        use: name of the side stream.
    """
    if not is_gpu(device):
        yield
        return
    side = _stream(device, use)
    if given:
        side.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(side):
            yield
    finally:  # also after an error: what was launched before it still runs
        for tensor in given:
            tensor.record_stream(side)


def join(device: torch.device, *made: Tensor) -> None:
    """Let the current stream use `made`, tensors that were allocated in `side_stream`."""
    if not is_gpu(device):
        return
    torch.cuda.current_stream(device).wait_stream(_stream(device, "rows"))
    use_here(*made)


def use_here(*tensors: Tensor) -> None:
    """Tell the allocator that the current stream uses tensors that another one allocated.

    A pipeline makes a batch's ids on a stream of its own. Tensors derived from the ids are read on
    the stream that computes. The streams wait for one another in any case. Without this call the
    memory could be given to the next batch while it is still read.
    """
    for tensor in tensors:
        if is_gpu(tensor.device):
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


@cache
def _stream(device: torch.device, _use: Use) -> torch.cuda.Stream:
    # High priority, ahead of the dense part's kernels: what is coded late is sent late, and all
    # ranks wait for it.
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
