"""Row-wise quantization to 8, 4 or 2 bits. Wire: FORMAT.md, "rowwise".

Each row has a scale and a low, both float16. Each segment is first multiplied by an exact power of
two, so that float16 can hold them whatever the segment's magnitude. Any dim >= 1. Rows of float16
and bfloat16 get the bytes of the same rows as float32; decoded, they are rounded to nearest even.

FBGEMM's Float{8Bit,NBit}Rowwise operators are no backend on CPU. They round low to nearest, so
values clip. They want contiguous rows of even dims, have another layout of a row, and lose NaN.
Copying, scaling and placing rows for them makes a 4-bit round trip slower than the kernel here
(`make bench-codec` measures both).
Source: Yang et al. 2020 (row-wise min/max quantization); scaling, rounding and NaN are ours.
"""

import numpy as np
import torch
from torch import Tensor

from trec_qcomm.core.checks import raise_first
from trec_qcomm.core.segments import VALUE_DTYPES, Encoded, Segments
from trec_qcomm.ops.dispatch import Backend, arrays, check_buffers, gpu_kernels, num_parts_of
from trec_qcomm.ops.rowwise import cpu, cpu_16_bit, cpu_sum, reference

BITS = (8, 4, 2)


def nbytes(segments: Segments, bits: int) -> Tensor:
    """Return [S] int64, the exact size of each segment in bytes. bits: 8, 4 or 2."""
    row = 4 + -(-segments.dim * bits // 8)
    return segments.nbytes_of_rows(row, header_nbytes=reference.HEADER_NBYTES)


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    bits: int,
    stochastic: bool = False,
    seed: int = 0,
    backend: Backend | None = None,
) -> tuple[Encoded, int | Tensor]:
    """Encode the rows. Arguments: core.codec.Codec.encode, and those below.

    Args:
        bits: 8, 4 or 2.
        stochastic: round by the dither of `seed` instead of to nearest.
    Returns: the bytes, and the first segment that holds NaN or inf, or -1. On a GPU the second is
        [1] int32, which nothing has waited for.
    Numerics:
        |x - decoded| <= scale / 2 (nearest) or < scale (stochastic), plus float32 rounding, with
        scale <= (max - min + 2^-10 |min|) / (2^bits - 1) * (1 + 2^-10) of the row, and at least
        2^-37 of the segment's largest magnitude where it is not 0. So a row is coarser than its
        range alone would make it if it is far from 0 for its width, or 2^20 times smaller than its
        segment's largest; a row 2^120 times smaller decodes to 0.
        Stochastic rounding is UNBIASED, except in rows with NaN or inf at 2 bits, where one code is
        left, and for subnormal values.
    Raises: ValueError: a wrong shape, dtype or device; bits or seed out of range.
    """
    _check_bits(bits)
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed: {seed} is not in 0..2^63 - 1")
    sizes = nbytes(segments, bits)
    backend = check_buffers(values, segments, payload, at, sizes, backend, dtypes=VALUE_DTYPES)
    if backend != "cpu":
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        nonfinite = kernels.encode(
            values, segments, payload, at, bits=bits, stochastic=stochastic, seed=seed
        )
        return Encoded(payload, at, sizes), nonfinite
    where = (*segments.arrays, segments.dim, *arrays(payload, at))
    seeds = np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32)
    numbers = arrays(segments.first_numbers)
    counts = np.zeros(segments.num_segments, np.int64)
    options = bits, stochastic, *numbers, *seeds, counts
    if values.dtype == torch.float32:
        nonfinite = cpu.encode(*arrays(values), *where, *options)
    else:
        is_half = values.dtype == torch.float16
        nonfinite = cpu_16_bit.encode(*arrays(values), is_half, *where, *options)
    flushed = torch.from_numpy(counts) if counts.any() else None
    return Encoded(payload, at, sizes, flushed), int(nonfinite)


def decode(
    encoded: Encoded,
    segments: Segments,
    out: Tensor,
    *,
    bits: int,
    backend: Backend | None = None,
) -> None:
    """Decode the rows into `out`. The caller has checked that nbytes fit.

    Raises:
        ValueError: a wrong shape, dtype or device; bits out of range.
        CorruptFrameError: bytes that no encoder writes; on a GPU raised when core.checks says.
    """
    _check_bits(bits)
    sizes = nbytes(segments, bits)
    buffers = out, segments, encoded.payload, encoded.at, sizes
    backend = check_buffers(*buffers, backend, dtypes=VALUE_DTYPES)
    if backend == "cpu":
        payload, at, rows = arrays(encoded.payload, encoded.at, out)
        layout = segments.arrays
        if out.dtype == torch.float32:
            wrong = cpu.decode(payload, at, *layout, segments.dim, rows, bits)
        else:
            is_half = out.dtype == torch.float16
            wrong = cpu_16_bit.decode(payload, at, *layout, segments.dim, rows, is_half, bits)
    else:
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        wrong = kernels.decode(encoded, segments, out, bits=bits)
    raise_first(wrong, "exponent out of range")


def decode_sum(
    encoded: Encoded,
    segments: Segments,
    out: Tensor,
    *,
    bits: int,
    held_at: int = -1,
    backend: Backend | None = None,
) -> None:
    """Write to `out` the sum of the rows of several parts: as `decode` and then ops.rank_sum.

    Args:
        encoded: for each part, for each segment, its bytes; the caller has checked that they fit.
        segments: the rows of one part, and their places in `out`.
        held_at: the place among the terms of what `out` holds: before this part. -1: it is none.
    Raises: ValueError, CorruptFrameError: those of `decode`. Segment s of part p has the number
        p S + s in the error.
    """
    _check_bits(bits)
    num_parts = num_parts_of(encoded, segments, held_at)
    sizes = nbytes(segments, bits)
    buffers = out, segments, encoded.payload, encoded.at, sizes
    backend = check_buffers(*buffers, backend, num_parts=num_parts)
    if num_parts == 1 and held_at < 0:
        decode(encoded, segments, out, bits=bits, backend=backend)
        return
    if backend == "cpu":
        payload, at, sums = arrays(encoded.payload, encoded.at, out)
        places = at.reshape(num_parts, segments.num_segments)
        wrong = cpu_sum.decode_sum(
            payload, places, *segments.arrays, segments.dim, sums, bits, held_at
        )
    else:
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        wrong = kernels.decode_sum(encoded, segments, out, bits=bits, held_at=held_at)
    raise_first(wrong, "exponent out of range")


def _check_bits(bits: int) -> None:
    if bits not in BITS:
        raise ValueError(f"bits: {bits} is not one of {BITS}")


__all__ = ["BITS", "decode", "decode_sum", "encode", "nbytes"]
