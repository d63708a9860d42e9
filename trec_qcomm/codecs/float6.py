"""Codec float6: small floats under an exponent a row. 5.3x at 128 values a row.

Source: Rouhani et al. 2023 (microscaling formats); ops.float6 says what is ours.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor

from trec_qcomm.core.codec import Contract, check_choice
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops import float6
from trec_qcomm.ops.dispatch import check_sizes

Format = Literal["e4m1", "e3m2"]
Rounding = Literal["nearest", "stochastic"]
_WIRE_IDS = {"e4m1": 12, "e3m2": 13}


@dataclass(frozen=True)
class Float6:
    """Codec whose error is a fraction of each value, down to a small fraction of its row's largest.

    NaN and inf arrive as such. The exact bound of the error is in ops.float6.

    Args:
        format: e4m1: the error is at most 1/4 of the value, for values down to 2^-13 of the row's
            largest. e3m2: 1/8, for values down to 2^-5.
        rounding: `nearest`, or `stochastic`: at most twice that error, and UNBIASED.
    """

    format: Format = "e4m1"
    rounding: Rounding = "nearest"

    name: ClassVar[str] = "float6"
    fixed_size: ClassVar[bool] = True
    tolerance: ClassVar[None] = None
    has_gpu_kernels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("float6.format", self.format, get_args(Format))
        check_choice("float6.rounding", self.rounding, get_args(Rounding))

    @property
    def exponent_bits(self) -> int:
        """Bits of a value's exponent."""
        return 4 if self.format == "e4m1" else 3

    @property
    def contract(self) -> Contract:
        """Promise of this configuration: UNBIASED with stochastic rounding, else BIASED."""
        return Contract.UNBIASED if self.rounding == "stochastic" else Contract.BIASED

    @property
    def wire_id(self) -> int:
        """Id in the frame: 12 for e4m1, 13 for e3m2."""
        return _WIRE_IDS[self.format]

    def max_nbytes(self, segments: Segments) -> Tensor:
        """Return [S] int64, the exact sizes in bytes. All methods: core.codec.Codec."""
        return float6.nbytes(segments)

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
        """Quantize and write the rows."""
        return float6.encode(
            values,
            segments,
            payload,
            at,
            exponent_bits=self.exponent_bits,
            stochastic=self.rounding == "stochastic",
            seed=seed,
        )

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Write the rows back as float32."""
        check_sizes(encoded, self.max_nbytes(segments))
        float6.decode(encoded, segments, out, exponent_bits=self.exponent_bits)


register_codec(Float6, *(Float6(format) for format in get_args(Format)))
