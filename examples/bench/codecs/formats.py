"""Formats that others offer for float32 rows: FBGEMM's quantizers and casts, on CPUs and GPUs.

Each is two functions of contiguous rows. FBGEMM's take no segments, strides or NaN, which is in
their favour. Shapes: n rows, D values a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

OPS = torch.ops.fbgemm


@dataclass(frozen=True)
class Format:
    """Functions of one format.

    Args:
        name: name in tables.
        encode: [n, D] float32 rows -> coded.
        decode: coded -> float32 values, those of the rows first.
        allowed: rows -> how far off each value may be, [n, D] or [n, 1].
        keeps_nan: NaN arrives.
    """

    name: str
    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]
    allowed: Callable[[Tensor], Tensor]
    keeps_nan: bool = False


def installed() -> tuple[list[Format], list[str]]:
    """Return the formats that can be measured here, and why others cannot."""
    try:
        return [*_casts(), *_rowwise(), _mx4()], []
    except ImportError as error:
        return _casts(), [f"FBGEMM INT8, INT4, MX4: pip install fbgemm-gpu-cpu ({error})"]


def _casts() -> list[Format]:
    """Return torch's fp16 and bf16."""

    def cast(name: str, dtype: torch.dtype, precision: float) -> Format:
        return Format(
            f"torch {name}",
            lambda rows: rows.to(dtype),
            Tensor.float,
            lambda rows: rows.abs() * precision + 2.0**-24,
            keeps_nan=True,
        )

    return [cast("fp16", torch.float16, 2**-11), cast("bf16", torch.bfloat16, 2**-8)]


def _rowwise() -> list[Format]:
    """Return INT8 and INT4 of FBGEMM. Raises ImportError without it."""
    import fbgemm_gpu  # noqa: F401

    def allowed(rows: Tensor, step: float, relative: float, smallest: float) -> Tensor:
        row_range = rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)
        return row_range * step + rows.abs().amax(1, keepdim=True) * relative + smallest

    # INT8 divides by the range + 1e-8. INT4's low and scale are fp16, which moves values:
    # relatively, and by 2^-24 where they are small.
    return [
        Format(
            "FBGEMM INT8",
            lambda rows: OPS.FloatToFused8BitRowwiseQuantized(rows),
            lambda coded: OPS.Fused8BitRowwiseQuantizedToFloat(coded),
            lambda rows: allowed(rows, 1 / 255, 2**-20, 1e-8),
        ),
        Format(
            "FBGEMM INT4",
            lambda rows: OPS.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, 4),
            lambda coded: OPS.FusedNBitRowwiseQuantizedSBHalfToFloat(coded, 4),
            lambda rows: allowed(rows, 1.1 / 15, 2.0**-10 + 2**-20, 16 * 2.0**-24),
        ),
    ]


def _mx4() -> Format:
    """Return MX4 of FBGEMM. Raises ImportError without it."""
    import fbgemm_gpu.quantize_utils as mx

    def allowed(rows: Tensor) -> Tensor:
        groups = torch.nn.functional.pad(rows.view(-1), (0, -rows.numel() % 32)).view(-1, 32)
        most = groups.abs().amax(1, keepdim=True).expand(-1, 32).flatten()
        return most[: rows.numel()].view(rows.shape) * 0.26

    return Format("FBGEMM MX4", lambda rows: mx.fp32_to_mx4(rows.view(-1)), mx.mx4_to_fp32, allowed)
