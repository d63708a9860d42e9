"""rowwise: 8, 4 or 2 bits a value, one float16 scale and low a row. 3.8x, 7.1x, 12.8x at dim 64.

Source: Yang et al. 2020, fine-grain quantization of the all-to-all, with rows as the grain.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor

from trec_qcomm.core.codec import Contract, check_choice
from trec_qcomm.core.errors import UnencodableError
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops import rowwise
from trec_qcomm.ops.binding import check_sizes

Bits = Literal[8, 4, 2]
Rounding = Literal["nearest", "stochastic"]
NonFinite = Literal["keep", "raise"]
_WIRE_IDS = {2: 4, 4: 5, 8: 6}


@dataclass(frozen=True)
class Rowwise:
    """Each value within half a step of its own row (nearest) or one step (stochastic); what a step
    is, see ops.rowwise.

    Args: bits: fewer is smaller and coarser.  rounding: stochastic is UNBIASED and noisier.
        nonfinite: NaN, +inf and -inf arrive as such (`keep`; that row has 3 codes fewer for its
        other values) or `raise` an UnencodableError.
    """

    bits: Bits
    rounding: Rounding = "nearest"
    nonfinite: NonFinite = "keep"

    name: ClassVar[str] = "rowwise"
    fixed_size: ClassVar[bool] = True
    tolerance: ClassVar[None] = None
    has_gpu_kernels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("rowwise.bits", self.bits, get_args(Bits))
        check_choice("rowwise.rounding", self.rounding, get_args(Rounding))
        check_choice("rowwise.nonfinite", self.nonfinite, get_args(NonFinite))

    @property
    def contract(self) -> Contract:
        """UNBIASED with stochastic rounding, else BIASED."""
        return Contract.UNBIASED if self.rounding == "stochastic" else Contract.BIASED

    @property
    def wire_id(self) -> int:
        """4, 5 or 6 for 2, 4 or 8 bits."""
        return _WIRE_IDS[self.bits]

    def max_nbytes(self, segments: Segments) -> Tensor:
        """[S] int64, exact. See core.codec.Codec for all methods."""
        return rowwise.nbytes(segments, self.bits)

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
        encoded, nonfinite = rowwise.encode(
            values,
            segments,
            payload,
            at,
            bits=self.bits,
            stochastic=self.rounding == "stochastic",
            seed=seed,
        )
        if self.nonfinite == "raise" and (first := int(nonfinite)) >= 0:  # waits for a GPU
            raise UnencodableError("NaN or inf (nonfinite: raise)", segment=first)
        return encoded

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Write the rows back as float32."""
        check_sizes(encoded, self.max_nbytes(segments))
        rowwise.decode(encoded, segments, out, bits=self.bits)


register_codec(Rowwise, *(Rowwise(bits) for bits in get_args(Bits)))
