"""Rows as fp32 (a copy of the bits), fp16 or bf16. Wire: FORMAT.md, "fp32, fp16, bf16".

The rows are float32. For messages of fp16 and bf16 they may also be float16 or bfloat16: those of
the message's own dtype are copied bit for bit, the others converted without a float32 copy.

Numerics: rounding to nearest even; finite values beyond the format become inf; NaN keeps its sign,
and its payload where bits are copied.
"""

import torch
from torch import Tensor

from trec_qcomm.core.segments import VALUE_DTYPES, Encoded, Segments
from trec_qcomm.ops.cast import cpu, cpu_16_bit, cpu_sum, reference
from trec_qcomm.ops.dispatch import Backend, arrays, check_buffers, gpu_kernels, num_parts_of

DTYPES = reference.DTYPES
_KINDS = {"fp32": cpu.FP32, "fp16": cpu.FP16, "bf16": cpu.BF16}
_16_BIT_KINDS = {torch.float16: cpu.FP16, torch.bfloat16: cpu.BF16}


def nbytes(segments: Segments, dtype: str) -> Tensor:
    """Return [S] int64, the exact size of each segment in bytes. dtype: fp32, fp16 or bf16."""
    return segments.nbytes_of_rows(segments.dim * reference.DTYPES[dtype].itemsize)


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    dtype: str,
    backend: Backend | None = None,
) -> tuple[Encoded, int | Tensor]:
    """Encode the rows. Arguments: core.codec.Codec.encode, and dtype: fp32, fp16 or bf16.

    Returns: the bytes, and the first segment in which a finite value became inf, or -1. On a GPU
        the second is [1] int32, which nothing has waited for.
    Raises: ValueError: a shape, dtype or device that the kernels do not take.
    """
    sizes = nbytes(segments, dtype)
    backend = check_buffers(
        values, segments, payload, at, sizes, backend, dtypes=_dtypes_beside(dtype)
    )
    if backend != "cpu":
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        overflow = kernels.encode(values, segments, payload, at, dtype=dtype)
        return Encoded(payload, at, sizes), overflow
    rows, places = arrays(values, payload)
    layout = segments.arrays
    if values.dtype != torch.float32:
        kinds = _16_BIT_KINDS[values.dtype], _KINDS[dtype]
        overflow = cpu_16_bit.encode(
            rows, kinds[0], *layout, segments.dim, places, at.numpy(), kinds[1]
        )
        return Encoded(payload, at, sizes), int(overflow)
    overflow = cpu.encode(rows, *layout, segments.dim, places, at.numpy(), _KINDS[dtype])
    return Encoded(payload, at, sizes), int(overflow)


def decode(
    encoded: Encoded, segments: Segments, out: Tensor, *, dtype: str, backend: Backend | None = None
) -> None:
    """Decode the rows into `out`. The caller has checked that nbytes fit.

    Raises: ValueError: a shape, dtype or device that the kernels do not take.
    """
    sizes = nbytes(segments, dtype)
    buffers = out, segments, encoded.payload, encoded.at, sizes
    backend = check_buffers(*buffers, backend, dtypes=_dtypes_beside(dtype))
    if backend != "cpu":
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        kernels.decode(encoded, segments, out, dtype=dtype)
        return
    payload, at, rows = arrays(encoded.payload, encoded.at, out)
    layout = segments.arrays
    if out.dtype != torch.float32:
        kinds = _KINDS[dtype], _16_BIT_KINDS[out.dtype]
        cpu_16_bit.decode(payload, at, kinds[0], *layout, segments.dim, rows, kinds[1])
        return
    cpu.decode(payload, at, *layout, segments.dim, rows, _KINDS[dtype])


def _dtypes_beside(dtype: str) -> tuple[torch.dtype, ...]:
    """Return the dtypes that rows may have beside a message of this dtype."""
    return VALUE_DTYPES[:1] if dtype == "fp32" else VALUE_DTYPES


def decode_sum(
    encoded: Encoded,
    segments: Segments,
    out: Tensor,
    *,
    dtype: str,
    held_at: int = -1,
    backend: Backend | None = None,
) -> None:
    """Write to `out` the sum of the rows of several parts: as `decode` and then ops.rank_sum.

    Args:
        encoded: for each part, for each segment, its bytes; the caller has checked that they fit.
        segments: the rows of one part, and their places in `out`.
        held_at: the place among the terms of what `out` holds: before this part. -1: it is none.
    Raises: ValueError: a shape, dtype or device that the kernels do not take.
    """
    num_parts = num_parts_of(encoded, segments, held_at)
    sizes = nbytes(segments, dtype)
    buffers = out, segments, encoded.payload, encoded.at, sizes
    backend = check_buffers(*buffers, backend, num_parts=num_parts)
    if num_parts == 1 and held_at < 0:
        decode(encoded, segments, out, dtype=dtype, backend=backend)
    elif backend == "cpu":
        payload, at, sums = arrays(encoded.payload, encoded.at, out)
        places, kind = at.reshape(num_parts, segments.num_segments), _KINDS[dtype]
        cpu_sum.decode_sum(payload, places, *segments.arrays, segments.dim, sums, kind, held_at)
    else:
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        kernels.decode_sum(encoded, segments, out, dtype=dtype, held_at=held_at)


__all__ = ["DTYPES", "decode", "decode_sum", "encode", "nbytes"]
