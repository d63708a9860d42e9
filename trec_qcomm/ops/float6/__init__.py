"""Floats of 6 bits under an exponent a row. Wire: FORMAT.md, "float6".

Rounding is relative to each value, not to the row's range, so small values beside large ones keep
their size. An optimizer that divides by a gradient's own magnitude (Adam) needs that.
Source: block floating point; Rouhani et al. 2023 (microscaling formats: e3m2 under a shared
power of two). e4m1, rows of any length, stochastic rounding, and NaN and inf are ours.
"""

import numpy as np
from torch import Tensor

from trec_qcomm.core.checks import raise_first
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops.dispatch import Backend, arrays, check_buffers, gpu_kernels
from trec_qcomm.ops.float6 import cpu, reference

EXPONENT_BITS = (4, 3)  # of e4m1 and e3m2


def nbytes(segments: Segments) -> Tensor:
    """Return [S] int64, the exact size of each segment in bytes."""
    return segments.nbytes_of_rows(1 + (6 * segments.dim + 7) // 8)


def encode(
    values: Tensor,
    segments: Segments,
    payload: Tensor,
    at: Tensor,
    *,
    exponent_bits: int,
    stochastic: bool = False,
    seed: int = 0,
    backend: Backend | None = None,
) -> Encoded:
    """Encode the rows. Arguments: core.codec.Codec.encode, and those below.

    Args:
        exponent_bits: one of EXPONENT_BITS; the mantissa has M = 5 - exponent_bits bits.
        stochastic: round by the dither of `seed` instead of to nearest (halves away from 0).
    Numerics:
        Let 2^e be the smallest power of two above the row's largest finite magnitude, e >= -126,
        and F = 2^exponent_bits - 1.
        Nearest: |x - decoded| <= h max(|x|, 2^(e + 1 - F)), with h = 2^-(M + 1).
        Stochastic: below twice that, and UNBIASED.
        Both bounds times 1 + 2^-23, because the count of steps is rounded to float32. 2^128 decodes
        to the largest float32. NaN and inf arrive as such. The sign of 0 is lost.
    Raises: ValueError: a wrong shape, dtype or device; exponent_bits or seed out of range.
    """
    _check_format(exponent_bits)
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed: {seed} is not in 0..2^63 - 1")
    sizes = nbytes(segments)
    backend = check_buffers(values, segments, payload, at, sizes, backend)
    if backend == "cpu":
        layout = segments.arrays
        seeds = np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32)
        where = (*arrays(values), *layout, segments.dim, *arrays(payload, at, sizes))
        numbers = arrays(segments.first_numbers)
        cpu.encode(*where, exponent_bits, stochastic, *numbers, *seeds)
    else:
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        kernels.encode(
            values, segments, payload, at,
            exponent_bits=exponent_bits, stochastic=stochastic, seed=seed,
        )  # fmt: skip
    return Encoded(payload, at, sizes)


def decode(
    encoded: Encoded,
    segments: Segments,
    out: Tensor,
    *,
    exponent_bits: int,
    backend: Backend | None = None,
) -> None:
    """Decode the rows into `out`. The caller has checked that nbytes fit.

    Raises:
        ValueError: a wrong shape, dtype or device; exponent_bits out of range.
        CorruptFrameError: an exponent byte of 0; on a GPU raised when core.checks says.
    """
    _check_format(exponent_bits)
    sizes = nbytes(segments)
    backend = check_buffers(out, segments, encoded.payload, encoded.at, sizes, backend)
    if backend == "cpu":
        layout = segments.arrays
        where = (*arrays(encoded.payload, encoded.at), *layout, segments.dim, *arrays(out))
        wrong = cpu.decode(*where, exponent_bits)
    else:
        kernels = reference if backend == "reference" else gpu_kernels(__name__)
        wrong = kernels.decode(encoded, segments, out, exponent_bits=exponent_bits)
    raise_first(wrong, "an exponent of 0")


def _check_format(exponent_bits: int) -> None:
    if exponent_bits not in EXPONENT_BITS:
        raise ValueError(f"exponent_bits: {exponent_bits} is not one of {EXPONENT_BITS}")


__all__ = ["EXPONENT_BITS", "decode", "encode", "nbytes"]
