"""FBGEMM's operators on contiguous rows: the only place that calls them.

All are those of FBGEMM's own QuantizedCommCodec, and of its N-bit embeddings. What they do with
NaN, inf and other rows that are hard to code: codecs.fbgemm. Imports FBGEMM when first used.
Shapes: R rows of D values, coded in W bytes each.
"""

import functools
import importlib
import importlib.util
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from trec_qcomm.ext.fbgemm.layouts import LAYOUTS, mx4_group

LARGEST_CALL = 2**31 - 1  # values; kernels for a GPU count them in 32 bits
_BITS = {"int4": 4, "int2": 2}
# FP8 rows: exponent bits and bias of a value, and what the row's largest becomes.
_FP8 = {"fp8": (4, 15, 0.9375), "fp8_e5m2": (5, 31, 0.875)}
_EPSILON = 1e-20


def is_installed() -> bool:
    """Return whether there is an FBGEMM to import. It is not imported."""
    return importlib.util.find_spec("fbgemm_gpu") is not None


def quantize(rows: Tensor, precision: str, dim: int) -> Tensor:
    """Return [R W] uint8, the coded rows one behind the other.

    Args: rows: [R D] float32, contiguous, R > 0; fp16 and bf16 take any number of values.
        precision: a key of LAYOUTS.  dim: D.
    Raises: ValueError: more values than FBGEMM counts.
    """
    if rows.numel() > LARGEST_CALL:
        raise ValueError(f"codec fbgemm: {rows.numel()} values in one call; at most {LARGEST_CALL}")
    casts, ops = _casts(), torch.ops.fbgemm
    if precision == "fp16":
        return _bytes(casts.fp32_to_fp16_with_clamp(rows))
    if precision == "bf16":
        return _bytes(casts.fp32_to_bf16_with_clamp(rows))
    rows = rows.view(-1, dim)
    if precision == "int8":
        return _bytes(ops.FloatToFused8BitRowwiseQuantized(rows))
    if precision in _BITS:
        return _bytes(ops.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, _BITS[precision]))
    if precision == "mx4":
        return _bytes(casts.fp32_to_mx4(rows, mx4_group(dim)))
    if rows.is_cpu:
        return _fp8_rows(rows, precision)
    return _bytes(ops.FloatToFP8RowwiseQuantized(rows, precision == "fp8"))


def dequantize(coded: Tensor, precision: str, dim: int) -> Tensor:
    """Return [R D] float32, the rows of [R W] uint8 that `quantize` made, or of any such bytes."""
    casts, ops = _casts(), torch.ops.fbgemm
    if precision == "fp16":
        return _floats(casts.fp16_to_fp32(coded.view(torch.float16)))
    if precision == "bf16":
        return _floats(casts.bf16_to_fp32(coded))
    coded = coded.view(-1, LAYOUTS[precision].row_nbytes(dim))
    if precision == "int8":
        return _floats(ops.Fused8BitRowwiseQuantizedToFloat(coded))
    if precision in _BITS:
        return _floats(ops.FusedNBitRowwiseQuantizedSBHalfToFloat(coded, _BITS[precision]))
    if precision == "mx4":
        return _floats(casts.mx4_to_fp32(coded, mx4_group(dim)))
    if coded.is_cpu:
        return _floats(_rows_of_fp8(coded, precision, dim))
    return _floats(ops.FP8RowwiseQuantizedToFloat(coded, precision == "fp8"))


@functools.cache
def _casts() -> ModuleType:
    """Import FBGEMM and its operators; return the module of its casts and of MX4."""
    importlib.import_module("fbgemm_gpu")
    return importlib.import_module("fbgemm_gpu.quantize_utils")


def _fp8_rows(rows: Tensor, precision: str) -> Tensor:
    """Do on a CPU what FloatToFP8RowwiseQuantized does on a GPU; FBGEMM has it for GPUs only.

    The values are coded by FBGEMM's operator for single values, which has kernels for both, from
    one source. Scales are those of FBGEMM's kernel for more than 20 rows, which has another
    smallest one than that for fewer.
    """
    exponent_bits, bias, largest = _FP8[precision]
    magnitudes = torch.where(rows.isnan(), 0, rows.abs())  # as fmaxf does, which leaves out NaN
    most = magnitudes.amax(1, keepdim=True).clamp(min=_EPSILON)
    scale = torch.full_like(most, largest) / (most + _EPSILON)  # a Python number would be times 1/x
    codes = torch.ops.fbgemm.FloatToHFP8Quantized(rows * scale, exponent_bits, bias, largest)
    scales = torch.cat([scale, torch.zeros_like(scale)], 1)
    return torch.cat([codes, scales.view(torch.uint8)], 1).view(-1)


def _rows_of_fp8(coded: Tensor, precision: str, dim: int) -> Tensor:
    """Do on a CPU what FP8RowwiseQuantizedToFloat does on a GPU."""
    exponent_bits, bias, _ = _FP8[precision]
    codes, scale = coded[:, :dim].contiguous(), coded[:, dim : dim + 4].contiguous()
    values: Tensor = torch.ops.fbgemm.HFP8QuantizedToFloat(codes, exponent_bits, bias)
    return values / scale.view(torch.float32)


def _bytes(coded: Any) -> Tensor:
    flat: Tensor = coded.view(-1).view(torch.uint8)
    return flat


def _floats(rows: Any) -> Tensor:
    flat: Tensor = rows.view(-1)
    return flat
