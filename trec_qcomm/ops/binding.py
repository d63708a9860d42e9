"""What every op's binding checks before a kernel runs, and how tensors reach numba.

All of it is in every call, so vectors of one number a segment are checked by compiled loops, which
take less on vectors this short than a single call of numpy, and far less than one of torch.
"""

from typing import Any, Literal

import numpy as np
import torch
from numba import njit
from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import ALIGNMENT, Encoded, Segments

Backend = Literal["reference", "cpu"]


def check_buffers(
    values: Tensor, segments: Segments, payload: Tensor, at: Tensor, nbytes: Tensor
) -> tuple[Any, ...]:
    """Raise ValueError unless kernels may touch exactly what the arguments name.

    Args:    values: float32 rows read or written.  payload: [W] uint8.  at, nbytes: [S] int64.
    Returns: values (flattened), payload, at and nbytes as numpy arrays over the same memory.
    """
    segments.check_fits(values)
    if payload.dtype != torch.uint8 or payload.dim() != 1 or not payload.is_contiguous():
        raise ValueError(f"payload: expected contiguous [W] uint8, got {payload.dtype}")
    if not (values.is_cpu and payload.is_cpu):
        raise ValueError(f"device {values.device}: kernels exist for cpu only")
    expected = segments.start.shape
    if at.shape != expected or nbytes.shape != expected:
        raise ValueError(f"at, nbytes: expected {list(expected)}")
    if at.dtype != torch.int64 or nbytes.dtype != torch.int64:
        raise ValueError(f"at, nbytes: expected int64, got {at.dtype} and {nbytes.dtype}")
    (flat,), memory = arrays(values), payload.numpy()
    places, sizes = at.numpy(), nbytes.numpy()
    wrong = _find_misplaced(places, sizes, memory.size)
    if wrong == _BAD_PLACE:
        raise ValueError(f"at: expected multiples of {ALIGNMENT}")
    if wrong == _BEYOND:
        raise ValueError(f"payload: {memory.size} bytes do not hold the segments")
    return flat, memory, places, sizes


def check_sizes(encoded: Encoded, expected: Tensor) -> None:
    """What every decoder of a fixed-size format checks first.

    Raises: CorruptFrameError: at the first segment whose nbytes are not the [S] expected ones.
    """
    wrong = (encoded.nbytes != expected).nonzero()
    if len(wrong):
        s = int(wrong[0])
        raise CorruptFrameError(
            f"{int(encoded.nbytes[s])} bytes where its format has {int(expected[s])}", segment=s
        )


def arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """The tensors as numpy arrays over the same memory, values flattened."""
    return tuple((t.detach() if t.requires_grad else t).numpy().reshape(-1) for t in tensors)


def first_outside(numbers: Any, low: float, high: float) -> int:
    """Index of the first of [S] float64 not in low..high, which NaN never is; -1: there is none."""
    return int(_find_outside(numbers, low, high))


_FITS, _BAD_PLACE, _BEYOND = range(3)


def _misplaced(places: Any, sizes: Any, num_bytes: int) -> int:
    """Whether segments start where they may, and end within the bytes."""
    bits = np.int64(0)
    for s in range(places.size):
        bits |= places[s]  # keeps every low bit that is set, and a sign
    if bits < 0 or bits % ALIGNMENT:
        return _BAD_PLACE
    for s in range(places.size):
        if places[s] > num_bytes - sizes[s]:
            return _BEYOND
    return _FITS


def _outside(numbers: Any, low: float, high: float) -> int:
    for s in range(numbers.size):
        if not low <= numbers[s] <= high:
            return s
    return -1


_find_misplaced: Any = njit(nogil=True, cache=True)(_misplaced)
_find_outside: Any = njit(nogil=True, cache=True)(_outside)
