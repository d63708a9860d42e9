"""Codec float6: floats of 6 bits and one exponent a row; 5.3x smaller at 128 values a row.

Source: Rouhani et al. 2023 (microscaling formats). ops.float6 says what differs.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from trec_qcomm.codecs.base import Options, Rounding, RoundingCodec
from trec_qcomm.core.registry import register_codec

Format = Literal["e4m1", "e3m2"]


@dataclass(frozen=True)
class Float6(RoundingCodec):
    """Codec whose error is a fraction of each value, unless that is far below its row's largest.

    NaN and inf arrive as such. The exact bound of the error is in ops.float6.

    Args:
        format: e4m1: the error is at most 1/4 of the value, for values down to 2^-13 of the row's
            largest. e3m2: 1/8, for values down to 2^-5.
        rounding: `nearest`, or `stochastic`, which is UNBIASED and has at most twice that error.
    """

    format: Format = "e4m1"
    rounding: Rounding = "nearest"

    name = "float6"
    op = "trec_qcomm.ops.float6"
    damage = "an exponent of 0"

    @property
    def wire_id(self) -> int:
        """Id of the decoder in a frame: 12 for e4m1, 13 for e3m2."""
        return 12 if self.format == "e4m1" else 13

    @property
    def options(self) -> Options:
        """Options of the kernels: the bits of a value's exponent."""
        return {"exponent_bits": 4 if self.format == "e4m1" else 3}

    def row_nbytes(self, dim: int) -> int:
        """Return the bytes of an encoded row: one for its exponent, and 6 bits a value."""
        return 1 + (6 * dim + 7) // 8


register_codec(Float6, *(Float6(format) for format in get_args(Format)))
