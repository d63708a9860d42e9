"""Formats that others offer for tensors: FBGEMM's quantizers, casts, and nvCOMP's coders.

gpu.py times them on a GPU, and bench-codec the first two on CPUs. Each is a `Format`: two functions
of contiguous rows. FBGEMM's take no segments, strides or NaN, and nvCOMP's are lossless: they get
the rows' indices at the bound (computed before, not timed), one byte each, and all segments as one
array. All of this is in their favour.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

OPS = torch.ops.fbgemm


@dataclass(frozen=True)
class Format:
    """Functions of one format.

    Args:
        name: name in tables.
        prepare: [n, D] float32 rows -> what `encode` takes; not timed.
        encode: what `prepare` gave -> coded.
        decode: coded -> what `restore` takes.
        nbytes: coded -> its size.
        restore: (what `decode` gave, rows) -> [n, D] float32.
        allowed: rows -> how far off each value may be, [n, D] or [n, 1] or a scalar.
    """

    name: str
    prepare: Callable[[Tensor], Any]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    nbytes: Callable[[Any], int]
    restore: Callable[[Any, Tensor], Tensor]
    allowed: Callable[[Tensor], Tensor]


def _row_range(rows: Tensor) -> Tensor:
    return rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)


def _same(made: Any, _rows: Tensor) -> Tensor:
    return made.float()


def _numel(coded: Tensor) -> int:
    return coded.numel() * coded.element_size()


def copy() -> Format:
    """Return a copy of the rows: the ceiling of all formats."""
    return Format(
        "torch copy", lambda rows: rows, torch.clone, torch.clone, _numel, _same,
        lambda rows: rows.new_zeros(()),
    )  # fmt: skip


def casts() -> list[Format]:
    """Return torch's fp16 and bf16."""
    casts = []
    for name, dtype, precision in (
        ("fp16", torch.float16, 2**-11),
        ("bf16", torch.bfloat16, 2**-8),
    ):
        casts.append(
            Format(
                f"torch {name}", lambda rows: rows, lambda rows, t=dtype: rows.to(t),
                lambda coded: coded.float(), _numel, _same,
                lambda rows, p=precision: rows.abs() * p + 2.0**-24,
            )
        )  # fmt: skip
    return casts


def fbgemm() -> list[Format]:
    """Return INT8, INT4 and MX4 of FBGEMM. Raises ImportError without it."""
    import fbgemm_gpu.quantize_utils as mx

    def int8(rows: Tensor) -> Tensor:
        return OPS.FloatToFused8BitRowwiseQuantized(rows)

    def int4(rows: Tensor) -> Tensor:
        return OPS.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, 4)

    def mx4(rows: Tensor) -> Tensor:
        return mx.fp32_to_mx4(rows.view(-1))

    def group_max(rows: Tensor) -> Tensor:
        groups = torch.nn.functional.pad(rows.view(-1), (0, -rows.numel() % 32)).view(-1, 32)
        most = groups.abs().amax(1, keepdim=True).expand(-1, 32).flatten()
        return most[: rows.numel()].view(rows.shape)

    # INT4's low and scale are fp16, which moves values: relatively, and by 2^-24 where they are
    # small. INT8 divides by the range + 1e-8.
    ranges = {8: (1 / 255, 0.0, 1e-8), 4: (1.1 / 15, 2.0**-10, 16 * 2.0**-24)}
    identity, table = (lambda rows: rows), []
    for name, bits, encode, decode in (
        ("FBGEMM INT8", 8, int8, OPS.Fused8BitRowwiseQuantizedToFloat),
        (
            "FBGEMM INT4",
            4,
            int4,
            lambda coded: OPS.FusedNBitRowwiseQuantizedSBHalfToFloat(coded, 4),
        ),
    ):
        step, relative, smallest = ranges[bits]
        table.append(
            Format(
                name, identity, encode, decode, _numel, _same,
                lambda rows, s=step, r=relative, least=smallest: (
                    _row_range(rows) * s + rows.abs().amax(1, keepdim=True) * (r + 2**-20) + least
                ),
            )
        )  # fmt: skip
    table.append(
        Format(
            "FBGEMM MX4", identity, mx4, lambda coded: mx.mx4_to_fp32(coded), _numel,
            lambda made, rows: made.view(-1)[: rows.numel()].view(rows.shape),
            lambda rows: group_max(rows) * 0.26,
        )
    )  # fmt: skip
    return table


def nvcomp(bound: float) -> list[Format]:
    """Return nvCOMP's coders on indices of one byte. Raises ImportError without it."""
    if importlib.util.find_spec("nvidia.nvcomp") is None:
        raise ImportError("nvidia.nvcomp")
    from nvidia import nvcomp as library

    def indices(rows: Tensor) -> Any:
        step = 2 * bound * (rows.max() - rows.min())
        return library.as_array((rows / step).round().clamp(-128, 127).to(torch.int8).view(-1))

    def back(made: Any, rows: Tensor) -> Tensor:
        step = 2 * bound * (rows.max() - rows.min())
        return torch.as_tensor(made, device=rows.device).view(rows.shape).float() * step

    def allowed(rows: Tensor) -> Tensor:
        return (rows.max() - rows.min()) * bound * (1 + 1e-5)

    return [
        Format(
            f"nvCOMP {name}", indices, coder.encode, coder.decode,
            lambda coded: coded.buffer_size, back, allowed,
        )
        for name in ("ANS", "LZ4", "Cascaded", "Bitcomp")
        for coder in (library.Codec(algorithm=name, data_type="|i1"),)
    ]  # fmt: skip
