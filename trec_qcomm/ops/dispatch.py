"""Dispatch of ops: choose the backend of a call, check its arguments, and pass tensors to numba.

All of this runs in every call of an op. So vectors with one number a segment are checked by
compiled loops. On vectors this short they take less time than one call of numpy, and far less than
one of torch.
"""

import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.core.devices import is_gpu
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import ALIGNMENT, Encoded, Segments, described
from trec_qcomm.jit import kernel, numba

Backend = Literal["reference", "cpu", "gpu"]  # trec_qcomm/ops/__init__.py says what they are

_default: ContextVar[Backend | None] = ContextVar("default_backend", default=None)


@contextmanager
def default_backend(backend: Backend) -> Iterator[None]:
    """Use this backend in all calls inside the `with` block. This is for tests and benchmarks."""
    token = _default.set(backend)
    try:
        yield
    finally:
        _default.reset(token)


def choose_backend(values: Tensor) -> Backend:
    """Return the backend to use.

    It is that of `default_backend`, else the one for the memory of `values`. On a CPU that is the
    reference where numba is not installed, and a process warns of it once.

    Raises: ValueError: no such backend, or one that cannot read this memory.
    """
    return _without_numba(_named_backend(values))


def _named_backend(values: Tensor) -> Backend:
    """Return what `choose_backend` returns where numba is installed."""
    in_gpu = is_gpu(values.device)
    backend = _default.get()
    if backend == "cpu" and numba is None:
        raise ValueError("backend 'cpu': numba is not installed (pip install numba)")
    backend = backend or ("gpu" if in_gpu else "cpu")
    if backend not in ("reference", "cpu", "gpu"):
        raise ValueError(f"backend: {backend!r} is not one of reference, cpu, gpu")
    on_gpu = backend == "gpu" and os.environ.get("TRITON_INTERPRET") != "1"
    if not (in_gpu if on_gpu else values.device.type == "cpu"):
        raise ValueError(f"device {values.device}: no kernels of backend {backend!r} for it")
    return backend


def _without_numba(backend: Backend) -> Backend:
    if backend != "cpu" or numba is not None:
        return backend
    _warn_of_reference()
    return "reference"


@cache
def _warn_of_reference() -> None:
    warnings.warn(
        "trec_qcomm: numba is not installed, so plain torch codes what is in a CPU's memory. A "
        "step of examples/quickstart.py took 6 times the CPU time with preset int8, 28 times with "
        "best. Install numba",
        RuntimeWarning,
        stacklevel=2,
    )


def gpu_kernels(op: str) -> Any:
    """Import and return the module of an op's Triton kernels.

    The module is imported only when needed, because a machine without a GPU may have no triton.

    Args: op: the op's package, for example "trec_qcomm.ops.cast".
    Raises: ValueError: triton is not installed, or the op has no Triton kernels.
    """
    try:
        return importlib.import_module(f"{op}.gpu")
    except ModuleNotFoundError as error:
        missing = {
            "triton": "triton is not installed (trec-qcomm[gpu])",
            f"{op}.gpu": f"{op} has no kernels for it",
        }
        if error.name not in missing:
            raise
        raise ValueError(f"backend 'gpu': {missing[error.name]}") from None


@cache
def kernels_of(op: str, backend: Backend) -> Any:
    """Import and return the module of an op's kernels. Args: op: the op's package.

    The reference stays out of torch.compile's graphs. Inductor drops roundings to float16, so it
    would write other bytes. Without numba it stands in for "cpu".
    """
    backend = _without_numba(backend)
    if backend == "gpu":
        return gpu_kernels(op)
    kernels = importlib.import_module(f"{op}.{backend}")
    if backend == "reference":
        names = {"encode", "decode", "decode_sum"} & vars(kernels).keys()
        uncompiled: Any = torch.compiler.disable
        return SimpleNamespace(**{name: uncompiled(vars(kernels)[name]) for name in names})
    return kernels


def check_buffers(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    nbytes: Tensor,
    *,
    num_parts: int = 1,
    dtypes: Sequence[torch.dtype] = (torch.float32,),
) -> Backend:
    """Raise ValueError unless kernels may touch exactly what the arguments name.

    Args:
        values: the buffer whose rows are read or written.
        segments: which rows.
        payload: [W] uint8, in the same memory.
        at, nbytes: [P S] int64 on CPU, place and number of the bytes of each segment.
        num_parts: P, number of parts that each have bytes of all segments, one after the other.
        dtypes: allowed dtypes of `values`.
    Returns: the backend to use, for `kernels_of`.
    """
    segments.check_fits(values, dtypes)
    if payload.dtype != torch.uint8 or payload.dim() != 1 or not payload.is_contiguous():
        raise ValueError(f"payload: expected contiguous [W] uint8, got {described(payload)}")
    if payload.device != values.device:
        raise ValueError(f"payload: on {payload.device}, and the values on {values.device}")
    backend = _named_backend(values)
    if backend == "gpu" and payload.data_ptr() % ALIGNMENT:
        raise ValueError(f"payload: must begin at a multiple of {ALIGNMENT} bytes on a GPU")
    expected = (num_parts * segments.num_segments,)
    if at.shape != expected or nbytes.shape != expected:
        raise ValueError(f"at, nbytes: expected {list(expected)} each")
    if at.dtype != torch.int64 or nbytes.dtype != torch.int64:
        raise ValueError(f"at, nbytes: expected int64, got {at.dtype} and {nbytes.dtype}")
    wrong = _find_misplaced(at.numpy(), nbytes.numpy(), payload.numel())
    if wrong == _BAD_PLACE:
        raise ValueError(f"at: expected multiples of {ALIGNMENT}")
    if wrong == _NEGATIVE:
        raise ValueError("nbytes: some are negative")
    if wrong == _BEYOND:
        raise ValueError(f"payload: {payload.numel()} bytes do not hold the segments")
    return backend


def num_parts_of(encoded: Encoded, segments: Segments, held_at: int = -1) -> int:
    """Return the number of parts of a sum. Each part has the bytes of all segments.

    Args: held_at: index, among the terms of the sum, of the rows that `out` holds, or -1.
    Raises: ValueError: no whole number of parts, or a place beyond them.
    """
    num_parts, rest = divmod(len(encoded.at), max(segments.num_segments, 1))
    if rest or (num_parts == 0 and segments.num_segments):
        raise ValueError(
            f"at: {len(encoded.at)} places for {segments.num_segments} segments; "
            "allowed: equally many a part"
        )
    if not -1 <= held_at <= num_parts:
        raise ValueError(f"held_at: {held_at} is not in -1..{num_parts}")
    return num_parts


def check_sizes(encoded: Encoded, expected: Tensor) -> None:
    """Raise CorruptFrameError at the first segment whose nbytes are not as expected.

    Every decoder of a fixed-size format calls this first.

    Args: encoded: bytes to be decoded.  expected: [S] int64.
    """
    if encoded.nbytes is expected:
        return
    sizes = encoded.nbytes.numpy()
    wrong = sizes != expected.numpy()
    if wrong.any():
        s = int(wrong.argmax())
        raise CorruptFrameError(
            f"{int(sizes[s])} bytes where its format has {int(expected[s])}", segment=s
        )


def check_seed(seed: int) -> None:
    """Raise ValueError unless 0 <= seed < 2^63."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed: {seed} is not in 0..2^63 - 1")


def seed_halves(seed: int) -> tuple[Any, Any]:
    """Return the lower and the upper 32 bits of a seed, for kernels of a CPU."""
    return np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32)


def arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """Return the tensors as one-dimensional numpy arrays over the same memory.

    A tensor of float16 or bfloat16 gives an array of its bits, uint16.
    """
    return tuple(_array(t.detach() if t.requires_grad else t) for t in tensors)


def _array(tensor: Tensor) -> Any:
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.view(torch.uint16)
    return tensor.numpy().reshape(-1)


def check_bounds(bounds: Tensor, num_segments: int) -> None:
    """Raise ValueError unless the bounds are [S] float64 on CPU, finite and >= 0."""
    if bounds.dtype != torch.float64 or bounds.shape != (num_segments,) or not bounds.is_cpu:
        raise ValueError(
            f"bounds: expected [{num_segments}] float64 on CPU, got "
            f"{list(bounds.shape)} {bounds.dtype} on {bounds.device}"
        )
    s = first_outside(bounds.numpy(), 0.0, sys.float_info.max)
    if s >= 0:
        raise ValueError(f"bounds: {float(bounds[s])} of segment {s} is not finite and >= 0")


def first_outside(numbers: Any, low: float, high: float) -> int:
    """Return the index of the first of [S] float64 outside low..high, or -1. NaN is outside."""
    return int(_find_outside(numbers, low, high))


_FITS, _BAD_PLACE, _NEGATIVE, _BEYOND = range(4)


def _misplaced(places: Any, sizes: Any, num_bytes: int) -> int:
    """Return whether all segments begin at allowed places and end within the bytes: _FITS,
    or what is wrong."""
    bits = np.int64(0)
    for s in range(places.size):
        bits |= places[s]  # one low bit or sign set in any place is set here, too
    if bits < 0 or bits % ALIGNMENT:
        return _BAD_PLACE
    for s in range(places.size):
        if sizes[s] < 0:
            return _NEGATIVE
        if places[s] > num_bytes - sizes[s]:
            return _BEYOND
    return _FITS


def _outside(numbers: Any, low: float, high: float) -> int:
    for s in range(numbers.size):
        if not low <= numbers[s] <= high:
            return s
    return -1


_find_misplaced: Any = kernel(_misplaced)
_find_outside: Any = kernel(_outside)
