"""identity: the rows as they are, in the same frames as any codec. EXACT."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from trec_qcomm.core.codec import Contract
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops import cast
from trec_qcomm.ops.binding import check_sizes


@dataclass(frozen=True)
class Identity:
    """Float32 bits unchanged: the baseline, and what `bypass` sends."""

    name: ClassVar[str] = "identity"
    fixed_size: ClassVar[bool] = True
    param: ClassVar[None] = None
    on_gpu: ClassVar[bool] = True
    wire_id: ClassVar[int] = 1
    contract: ClassVar[Contract] = Contract.EXACT

    def for_sum_of(self, num_summands: int) -> "Identity":
        """Itself: nothing to divide."""
        return self

    def max_nbytes(self, segments: Segments) -> Tensor:
        """[S] int64, exact. See core.codec.Codec for all methods."""
        return cast.nbytes(segments, "fp32")

    def encode(
        self,
        values: Tensor,
        segments: Segments,
        payload: Tensor,
        at: Tensor,
        *,
        seed: int = 0,
        params: Tensor | None = None,
    ) -> Encoded:
        """Copy the rows' bits."""
        return cast.encode(values, segments, payload, at, dtype="fp32")[0]

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Copy them back."""
        check_sizes(encoded, self.max_nbytes(segments))
        cast.decode(encoded, segments, out, dtype="fp32")


register_codec(Identity, Identity())
