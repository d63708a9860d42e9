"""What FBGEMM makes of rows: calls of its operators, without our gathering and placing.

FP8 rows, which FBGEMM codes on GPUs only, are ops.fbgemm's (test_fbgemm.py holds them against the
format).
"""

import pytest
import torch
from torch import Tensor

from trec_qcomm.ext.fbgemm import operators
from trec_qcomm.ext.fbgemm.layouts import LAYOUTS

quantize_utils = pytest.importorskip("fbgemm_gpu.quantize_utils")  # skips the importing tests
OPS = torch.ops.fbgemm
GROUPS = (32, 16, 8)  # of mx4


def _group(dim: int) -> int:
    return next(group for group in GROUPS if dim % group == 0)


CODED = {
    "int8": OPS.FloatToFused8BitRowwiseQuantized,
    "int4": lambda rows: OPS.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, 4),
    "int2": lambda rows: OPS.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, 2),
    "mx4": lambda rows: quantize_utils.fp32_to_mx4(rows, _group(rows.shape[1])),
    "fp16": quantize_utils.fp32_to_fp16_with_clamp,
    "bf16": quantize_utils.fp32_to_bf16_with_clamp,
}
DECODED = {
    "int8": OPS.Fused8BitRowwiseQuantizedToFloat,
    "int4": lambda coded: OPS.FusedNBitRowwiseQuantizedSBHalfToFloat(coded, 4),
    "int2": lambda coded: OPS.FusedNBitRowwiseQuantizedSBHalfToFloat(coded, 2),
    "fp16": lambda coded: quantize_utils.fp16_to_fp32(coded.view(torch.float16)),
    "bf16": quantize_utils.bf16_to_fp32,
}


def coded_by_fbgemm(precision: str, rows: Tensor) -> Tensor:
    """Return the bytes of [n, D] contiguous rows, flat."""
    if len(rows) == 0:
        return torch.empty(0, dtype=torch.uint8)
    if precision in CODED:
        return CODED[precision](rows).view(torch.uint8).flatten()
    return operators.quantize(rows, precision)


def decoded_by_fbgemm(precision: str, coded: Tensor, dim: int) -> Tensor:
    """Return the [n, D] rows of flat bytes."""
    if len(coded) == 0:
        return torch.empty(0, dim)
    rows = coded.view(-1, LAYOUTS[precision].row_nbytes(dim))
    if precision == "mx4":
        return quantize_utils.mx4_to_fp32(rows, _group(dim)).view(-1, dim)
    if precision in DECODED:
        return DECODED[precision](rows)
    return operators.dequantize(coded, precision, dim).view(-1, dim)


def fbgemm_round_trip(precision: str, rows: Tensor) -> Tensor:
    """Return [n, D] rows, coded and decoded."""
    return decoded_by_fbgemm(precision, coded_by_fbgemm(precision, rows), rows.shape[1])
