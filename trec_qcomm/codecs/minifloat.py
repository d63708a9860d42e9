"""Codecs float6 and float8: floats of 6 or 8 bits and one exponent a row; 5.3x and 4x smaller.

Source: Rouhani et al. 2023 (microscaling formats). ops.minifloat says what differs.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from trec_qcomm.codecs.base import Options, Rounding, RoundingCodec
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import VALUE_DTYPES


class Minifloat(RoundingCodec):
    """RowCodec of small floats, with one exponent a row. A subclass sets their number of bits."""

    bits: ClassVar[int]
    wire_ids: ClassVar[dict[str, int]]  # of each format
    format: str

    op = "trec_qcomm.ops.minifloat"
    value_dtypes = VALUE_DTYPES
    damage = "an exponent of 0"

    @property
    def wire_id(self) -> int:
        """Id of the decoder in a frame: one for each format."""
        return self.wire_ids[self.format]

    @property
    def options(self) -> Options:
        """Options of the kernels: the bits of a value, and the bits of its exponent."""
        return {"bits": self.bits, "exponent_bits": int(self.format[1])}

    def row_nbytes(self, dim: int) -> int:
        """Return the bytes of an encoded row: one for its exponent, and `bits` bits a value."""
        return 1 + (self.bits * dim + 7) // 8

    def for_values(self, dtype: torch.dtype) -> "Minifloat":
        """Return the codec itself: it takes rows of float16 and bfloat16."""
        return self


@dataclass(frozen=True)
class Float6(Minifloat):
    """Codec whose error is a fraction of each value that is not far below its row's largest.

    A smaller value than `format` names has at most the error of the smallest one named. Rounding to
    float32 adds 2^-23 of the error. NaN and inf arrive as such.

    Args:
        format: e4m1: the error is at most 1/4 of the value, for values down to 2^-13 of the row's
            largest. e3m2: 1/8, for values down to 2^-5.
        rounding: `nearest`, or `stochastic`, which is UNBIASED and has at most twice that error.
    """

    format: Literal["e4m1", "e3m2"] = "e4m1"
    rounding: Rounding = "nearest"

    name = "float6"
    bits = 6
    wire_ids: ClassVar = {"e4m1": 12, "e3m2": 13}


@dataclass(frozen=True)
class Float8(Minifloat):
    """Codec float6 with two more bits a value: its error is a smaller fraction of each value.

    A smaller value than `format` names has at most the error of the smallest one named. Rounding to
    float32 adds 2^-23 of the error. NaN and inf arrive as such.

    Args:
        format: e4m3: the error is at most 1/16 of the value, for values down to 2^-13 of the row's
            largest. e5m2: 1/8, for values down to 2^-29.
        rounding: `nearest`, or `stochastic`, which is UNBIASED and has at most twice that error.
    """

    format: Literal["e4m3", "e5m2"] = "e4m3"
    rounding: Rounding = "nearest"

    name = "float8"
    bits = 8
    wire_ids: ClassVar = {"e4m3": 24, "e5m2": 25}


register_codec(Float6, Float6("e4m1"), Float6("e3m2"))
register_codec(Float8, Float8("e4m3"), Float8("e5m2"))
