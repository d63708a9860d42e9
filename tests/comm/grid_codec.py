"""A BOUNDED codec of fixed size, for tests: values on a grid of step 2 bound, as int32."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from trec_qcomm import register_codec
from trec_qcomm.core.codec import Contract
from trec_qcomm.core.segments import Encoded, Segments, aligned


@dataclass(frozen=True)
class Grid:
    """|x - decode(encode(x))| <= bound, up to float32 rounding of the product.

    The step travels in every segment, so a receiver needs no config.
    """

    bound: float = 1.0

    name: ClassVar[str] = "grid"
    fixed_size: ClassVar[bool] = True
    wire_id: ClassVar[int] = 241
    contract: ClassVar[Contract] = Contract.BOUNDED

    @property
    def tolerance(self) -> float:
        return self.bound

    def max_nbytes(self, segments: Segments) -> Tensor:
        return aligned(8 + segments.num_rows * segments.dim * 4)

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
        nbytes = self.max_nbytes(segments)
        bounds = [self.bound] * segments.num_segments if tolerances is None else tolerances.tolist()
        for s in range(segments.num_segments):
            place = payload[int(at[s]) : int(at[s] + nbytes[s])]
            place.zero_()
            place[:8].view(torch.float64)[0] = 2 * bounds[s]
            rows = segments.block(values, s)
            q = (rows.double() / (2 * bounds[s])).round().to(torch.int32)
            place[8 : 8 + 4 * q.numel()].view(torch.int32).copy_(q.reshape(-1))
        return Encoded(payload, at, nbytes)

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        for s in range(segments.num_segments):
            place = encoded.payload[int(encoded.at[s]) : int(encoded.at[s] + encoded.nbytes[s])]
            rows = segments.block(out, s)
            q = place[8 : 8 + 4 * rows.numel()].view(torch.int32).view(rows.shape)
            rows.copy_((q.double() * float(place[:8].view(torch.float64)[0])).float())


register_codec(Grid, Grid())
