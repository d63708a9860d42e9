"""What every op's binding checks before a kernel runs, and how tensors reach numba."""

from typing import Any, Literal

import torch
from torch import Tensor

from trec_qcomm.core.segments import ALIGNMENT, Segments

Backend = Literal["reference", "cpu"]


def check_buffers(
    values: Tensor, segments: Segments, payload: Tensor, at: Tensor, nbytes: Tensor
) -> None:
    """Raise ValueError unless kernels may touch exactly what the arguments name.

    Args: values: float32 rows read or written.  payload: [W] uint8.  at, nbytes: [S] int64.
    """
    segments.check_fits(values)
    if payload.dtype != torch.uint8 or payload.dim() != 1 or not payload.is_contiguous():
        raise ValueError(f"payload: expected contiguous [W] uint8, got {payload.dtype}")
    if values.device.type != "cpu" or payload.device.type != "cpu":
        raise ValueError(f"device {values.device}: kernels exist for cpu only")
    expected = (segments.num_segments,)
    if at.shape != expected or nbytes.shape != expected:
        raise ValueError(f"at, nbytes: expected {list(expected)}")
    if at.dtype != torch.int64 or nbytes.dtype != torch.int64:
        raise ValueError(f"at, nbytes: expected int64, got {at.dtype} and {nbytes.dtype}")
    if not segments.num_segments:
        return
    # numpy: a tenth of the time of torch on vectors this short, and this is in every call.
    places, sizes = at.numpy(), nbytes.numpy()
    if (places % ALIGNMENT).any() or places.min() < 0:
        raise ValueError(f"at: expected multiples of {ALIGNMENT}")
    if (places > payload.numel() - sizes).any():
        raise ValueError(f"payload: {payload.numel()} bytes do not hold the segments")


def arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """The tensors as numpy arrays over the same memory, values flattened."""
    return tuple((t.detach() if t.requires_grad else t).numpy().reshape(-1) for t in tensors)
