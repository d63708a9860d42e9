"""Error-bounded quantization of whole segments. Wire: FORMAT.md, "error_bounded".

There is no predictor. The *quantizer* turns values into indices, q = round(x / step) with
step = 2 * bound, one step a segment, and an *encoder* packs the indices: bitpack, rans or
vector_lz. Each value is checked against what the receiver will
decode. A value outside the bound, NaN and infinities are sent *verbatim*, as float32. A segment
without a range or without a usable step is lossless.

`reference` is the definition. `cpu` quantizes and bit-packs group by group; `rans_segments`
collects all indices of a segment first. `gpu` has the kernels. `quantizer` is the first half on
both devices. vector_lz is an extension, whose module is imported when it is asked for.

Source: SZ3 (a quantizer that checks each value); Feng et al., SC'24 (no predictor, one bound a
table).
"""

import importlib
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.core.checks import raise_first
from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.jit import kernel
from trec_qcomm.ops.dispatch import Backend, arrays, check_buffers, first_outside, gpu_kernels
from trec_qcomm.ops.error_bound import cpu, rans_segments, reference

ENCODERS = {"bitpack": cpu.BITPACK, "vector_lz": cpu.VECTOR_LZ, "rans": cpu.RANS}
GPU_ENCODERS = ("bitpack", "rans")
_VECTOR_LZ = "trec_qcomm.ext.dual_level.vector_lz.segments"

_REASONS = {
    cpu.BAD_SIZE: "nbytes, padding and number of verbatim values do not fit the rows",
    cpu.BAD_ENCODER: "unknown encoder of indices",
    cpu.BAD_STEP: "the step is not a normal number > 0",
    cpu.BAD_INDICES: "invalid indices",
    cpu.BAD_VERBATIM: "positions of verbatim values do not increase or are out of range",
    cpu.OTHER_ENCODER: "its encoder of indices, vector_lz, is none that a GPU decodes",
}


def max_nbytes(segments: Segments) -> Tensor:
    """Return [S] int64: the size of each segment with its rows sent raw; 0 for one without rows."""
    sizes = np.empty(segments.start.numel(), np.int64)
    _fill_max_nbytes(segments.num_rows.numpy(), segments.dim, sizes)
    return torch.from_numpy(sizes)


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    bounds: Tensor,
    relative: bool,
    encoder: str = "bitpack",
    backend: Backend | None = None,
) -> Encoded:
    """Write the rows.

    Args:     bounds: [S] float64 on CPU, finite, >= 0; 0 is lossless.
              relative: whether bounds are fractions of max - min of each segment's finite values.
              encoder: a key of ENCODERS; on a GPU one of GPU_ENCODERS.
              The others: arguments of core.codec.Codec.encode.
    Numerics: |x - decoded| <= bound in exact arithmetic, no slack, for every finite x; NaN (with
              its payload) and infinities survive; -0.0 may become 0.0.
    Raises:   ValueError: a shape, dtype, device, bound or encoder out of range.
    """
    _check_bounds(bounds, segments)
    if encoder not in ENCODERS:
        raise ValueError(f"encoder: {encoder!r} is not one of {tuple(ENCODERS)}")
    max_sizes = max_nbytes(segments)
    backend = check_buffers(values, segments, payload, at, max_sizes, backend)
    if backend == "gpu":
        if encoder not in GPU_ENCODERS:
            raise ValueError(f"encoder: {encoder!r} is not one of {GPU_ENCODERS} on a GPU")
        kernels = gpu_kernels(__name__)
        nbytes = kernels.encode(values, segments, payload, at, bounds, relative, encoder)
        return Encoded(payload, at, nbytes)
    sizes = np.zeros(max_sizes.numel(), np.int64)
    nbytes = torch.from_numpy(sizes)
    if backend == "reference":
        for s in range(segments.num_segments):
            rows, bound = segments.block(values, s), float(bounds[s])
            data = reference.encode_segment(rows, bound, relative=relative, encoder=encoder)
            nbytes[s] = len(data)
            payload[int(at[s]) : int(at[s]) + len(data)] = data
        return Encoded(payload, at, nbytes)
    x, memory, places = arrays(values, payload, at)
    layout = segments.arrays
    arguments = (
        x,
        *layout,
        segments.dim,
        memory,
        places,
        max_sizes.numpy(),
        bounds.numpy(),
        relative,
    )
    flushed = np.empty_like(sizes)
    kernels = {"bitpack": cpu, "rans": rans_segments}.get(encoder) or _vector_lz()
    kernels.encode(*arguments, sizes, flushed)
    return Encoded(payload, at, nbytes, torch.from_numpy(flushed) if flushed.any() else None)


def decode(
    encoded: Encoded, segments: Segments, out: Tensor, *, backend: Backend | None = None
) -> None:
    """Write the rows to `out`; each segment says its encoder and step.

    Raises: ValueError: a shape, dtype or device out of range.
            CorruptFrameError: bytes that no encoder writes and, on a GPU, encoders that are not in
            GPU_ENCODERS. On a GPU it is raised when core.checks says.
    """
    sizes = encoded.nbytes
    backend = check_buffers(out, segments, encoded.payload, encoded.at, sizes, backend)
    if len(sizes) and int(sizes.min()) < 0:
        raise ValueError("nbytes: negative")
    if backend == "reference":
        for s in range(segments.num_segments):
            begin, rows = int(encoded.at[s]), segments.block(out, s)
            data = encoded.payload[begin : begin + int(encoded.nbytes[s])]
            try:
                rows.copy_(reference.decode_segment(data, *rows.shape))
            except ValueError as error:
                raise CorruptFrameError(str(error), segment=s) from error
        return
    if backend == "gpu":
        raise_first(gpu_kernels(__name__).decode(encoded, segments, out), _corrupt_frame)
        return
    y, *encoded_arrays = arrays(out, encoded.payload, encoded.at, sizes)
    layout = segments.arrays
    bad_segment, reason = cpu.decode(*encoded_arrays, *layout, segments.dim, y)
    if reason == cpu.OTHER_ENCODER:
        bad_segment, reason = rans_segments.decode(*encoded_arrays, *layout, segments.dim, y)
    if reason == cpu.OTHER_ENCODER:
        bad_segment, reason = _vector_lz().decode(*encoded_arrays, *layout, segments.dim, y)
    if bad_segment >= 0:
        raise CorruptFrameError(_REASONS[reason], segment=int(bad_segment))


def _vector_lz() -> Any:
    """Return the module with the kernels of vector_lz."""
    return importlib.import_module(_VECTOR_LZ)


def _corrupt_frame(code: int) -> CorruptFrameError:
    """Return the error for a result of gpu.decode.

    Args: code: NUM_REASONS times the segment, plus the reason; >= 0.
    """
    segment, reason = divmod(code, gpu_kernels(__name__).NUM_REASONS)
    return CorruptFrameError(_REASONS[reason], segment=segment)


def _check_bounds(bounds: Tensor, segments: Segments) -> None:
    if bounds.dtype != torch.float64 or bounds.shape != segments.start.shape or not bounds.is_cpu:
        raise ValueError(
            f"bounds: expected [{segments.num_segments}] float64 on CPU, got "
            f"{list(bounds.shape)} {bounds.dtype} on {bounds.device}"
        )
    s = first_outside(bounds.numpy(), 0.0, sys.float_info.max)
    if s >= 0:
        raise ValueError(f"bounds: {float(bounds[s])} of segment {s} is not finite and >= 0")


def _max_nbytes(num_rows: Any, dim: int, out: Any) -> None:
    for s in range(out.size):
        num_values = num_rows[s] * dim
        out[s] = cpu.HEADER_NBYTES + (4 * num_values + 7) // 8 * 8 if num_values else 0


# Compiled, because torch and numpy take longer on vectors this short: see dispatch.py.
_fill_max_nbytes: Any = kernel(_max_nbytes)

__all__ = ["ENCODERS", "GPU_ENCODERS", "decode", "encode", "max_nbytes"]
