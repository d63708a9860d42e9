"""Codec sign: one bit a value and one magnitude a row. 25.6x at 128 values a row.

It is for gradients with error feedback; without that, small values never get through.
Source: Seide et al. 2014 (1-bit SGD); Karimireddy et al. 2019 (the mean magnitude as scale).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from trec_qcomm.core.codec import Contract
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops import sign
from trec_qcomm.ops.dispatch import check_sizes


@dataclass(frozen=True)
class Sign:
    """Codec that sends each value as plus or minus the mean magnitude of its row.

    What becomes of NaN and inf: ops.sign.
    """

    name: ClassVar[str] = "sign"
    wire_id: ClassVar[int] = 11
    fixed_size: ClassVar[bool] = True
    contract: ClassVar[Contract] = Contract.BIASED
    tolerance: ClassVar[None] = None
    has_gpu_kernels: ClassVar[bool] = True

    def max_nbytes(self, segments: Segments) -> Tensor:
        """Return [S] int64, the exact sizes in bytes. All methods: core.codec.Codec."""
        return sign.nbytes(segments)

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
        """Write the rows."""
        return sign.encode(values, segments, payload, at)

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Write the rows back as float32."""
        check_sizes(encoded, self.max_nbytes(segments))
        sign.decode(encoded, segments, out)


register_codec(Sign, Sign())
