"""Call FBGEMM's operators on contiguous rows. No other module calls them.

They are the operators of FBGEMM's own QuantizedCommCodec and of its N-bit embeddings.
ext.fbgemm.codec says what they do with NaN, inf and other rows that are hard to code. FBGEMM is
imported when it is first used.
Shapes: R rows of D values, coded in W bytes each.
"""

import functools
import importlib
import importlib.util
from types import ModuleType

import torch
from torch import Tensor

from trec_qcomm.ext.fbgemm.layouts import LAYOUTS, mx4_group

LARGEST_CALL = 2**31 - 1  # values; kernels for a GPU count them in 32 bits
# FP8 rows: exponent bits and bias of a value, and what the row's largest becomes.
_FP8 = {"fp8": (4, 15, 0.9375), "fp8_e5m2": (5, 31, 0.875)}
_EPSILON = 1e-20


def is_installed() -> bool:
    """Return whether FBGEMM can be imported, without importing it."""
    return importlib.util.find_spec("fbgemm_gpu") is not None


def quantize(rows: Tensor, precision: str) -> Tensor:
    """Return [R W] uint8, the coded rows one after the other.

    Args: rows: [R, D] float32, contiguous, R > 0.  precision: a key of LAYOUTS.
    Raises: ValueError: more values than FBGEMM counts.
    """
    if rows.numel() > LARGEST_CALL:
        raise ValueError(f"codec fbgemm: {rows.numel()} values in one call; at most {LARGEST_CALL}")
    casts, ops = _casts(), torch.ops.fbgemm
    match precision:
        case "fp16":
            coded = casts.fp32_to_fp16_with_clamp(rows)
        case "bf16":
            coded = casts.fp32_to_bf16_with_clamp(rows)
        case "int8":
            coded = ops.FloatToFused8BitRowwiseQuantized(rows)
        case "int4" | "int2":
            coded = ops.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, int(precision[-1]))
        case "mx4":
            coded = casts.fp32_to_mx4(rows, mx4_group(rows.shape[1]))
        case _ if rows.is_cpu:
            coded = _fp8_rows(rows, precision)
        case _:
            coded = ops.FloatToFP8RowwiseQuantized(rows, precision == "fp8")
    flat: Tensor = coded.view(-1).view(torch.uint8)
    return flat


def dequantize(coded: Tensor, precision: str, dim: int) -> Tensor:
    """Return [R, D] float32, the rows of [R W] uint8 that `quantize` made, or of any such bytes.

    Args: dim: D.
    """
    casts, ops = _casts(), torch.ops.fbgemm
    coded = coded.view(-1, LAYOUTS[precision].row_nbytes(dim))
    match precision:
        case "fp16":
            rows = casts.fp16_to_fp32(coded.view(torch.float16))
        case "bf16":
            rows = casts.bf16_to_fp32(coded)
        case "int8":
            rows = ops.Fused8BitRowwiseQuantizedToFloat(coded)
        case "int4" | "int2":
            rows = ops.FusedNBitRowwiseQuantizedSBHalfToFloat(coded, int(precision[-1]))
        case "mx4":
            rows = casts.mx4_to_fp32(coded, mx4_group(dim))
        case _ if coded.is_cpu:
            rows = _rows_of_fp8(coded, precision, dim)
        case _:
            rows = ops.FP8RowwiseQuantizedToFloat(coded, precision == "fp8")
    by_row: Tensor = rows.view(-1, dim)
    return by_row


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
    return torch.cat([codes, scales.view(torch.uint8)], 1)


def _rows_of_fp8(coded: Tensor, precision: str, dim: int) -> Tensor:
    """Do on a CPU what FP8RowwiseQuantizedToFloat does on a GPU."""
    exponent_bits, bias, _ = _FP8[precision]
    codes, scale = coded[:, :dim].contiguous(), coded[:, dim : dim + 4].contiguous()
    values: Tensor = torch.ops.fbgemm.HFP8QuantizedToFloat(codes, exponent_bits, bias)
    return values / scale.view(torch.float32)
