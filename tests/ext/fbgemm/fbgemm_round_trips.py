"""What FBGEMM makes of rows: calls of its operators, without our gathering and placing.

FP8 rows, which FBGEMM codes on GPUs only, are ops.fbgemm's (test_fbgemm.py holds them against the
format).
"""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from trec_qcomm import Contract, Encoded, Identity, Segments, register_codec
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
    return operators.quantize(rows.flatten(), precision, rows.shape[1])


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


@dataclass(frozen=True)
class RoundTrip:
    """Codec that makes FBGEMM's round trip of each segment by itself and sends that as float32.

    What its exchanges give is what those of codec fbgemm must give. It calls itself EXACT because
    it sends no fewer bytes than float32, which no other codec may in an all-reduce.
    """

    precision: str

    name: ClassVar[str] = "fbgemm_round_trip"
    fixed_size: ClassVar[bool] = True
    tolerance: ClassVar[None] = None
    wire_id: ClassVar[int] = Identity.wire_id
    contract: ClassVar[Contract] = Contract.EXACT

    def max_nbytes(self, segments: Segments) -> Tensor:
        return Identity().max_nbytes(segments)

    def encode(
        self,
        values: Tensor,
        segments: Segments,
        payload: Tensor,
        at: Tensor,
        *,
        seed: int = 0,
        tolerances: Tensor | None = None,
    ) -> Encoded:
        made = values.detach().clone()
        for s in range(segments.num_segments):
            rows = segments.block(values.detach(), s).contiguous()
            segments.block(made, s).copy_(fbgemm_round_trip(self.precision, rows))
        return Identity().encode(made, segments, payload, at)

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        Identity().decode(encoded, segments, out)


register_codec(RoundTrip)
