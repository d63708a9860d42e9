"""threshold: the values of at least some magnitude, wherever they are. For gradients.

Of independent normal values 1 % kept as int8 take 18 bits each, 177x less than float32; 0.1 % take
21 bits, 1490x. What is not sent should be added to the next step's: error feedback.
Source: Gupta et al. 2021 (DCT, data parallel).
"""

import math
import sys
from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from torch import Tensor

from trec_qcomm.core.codec import Contract, check_choice
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops import threshold
from trec_qcomm.ops.sparsify import Values


@dataclass(frozen=True)
class Threshold:
    """Values |x| >= threshold, and NaN; the others decode to 0. `topk` does the same row by row
    and can be undone by `forward_mask`; this is smaller where few values are kept.

    Args: threshold: >= 0, of the unit of the values; a rule's `refresh` finds others while
        training.  values: what is sent of each: fp32, fp16 or int8 with a scale of the segment's,
        see ops.sparsify.
    """

    threshold: float
    values: Values = "fp16"

    name: ClassVar[str] = "threshold"
    wire_id: ClassVar[int] = 10
    fixed_size: ClassVar[bool] = False
    contract: ClassVar[Contract] = Contract.BIASED
    has_gpu_kernels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        number = type(self.threshold) in (int, float) and math.isfinite(self.threshold)
        if not number or not 0 <= self.threshold <= sys.float_info.max:
            raise ValueError(f"threshold.threshold: {self.threshold!r} is not a finite number >= 0")
        check_choice("threshold.values", self.values, get_args(Values))

    @property
    def tolerance(self) -> float:
        """The threshold."""
        return self.threshold

    def max_nbytes(self, segments: Segments) -> Tensor:
        """[S] int64. See core.codec.Codec for all methods."""
        return threshold.max_nbytes(segments, self.values)

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
        """Write what is kept. Raises ValueError: tolerances that are no thresholds."""
        if tolerances is None:
            tolerances = torch.full((segments.num_segments,), self.threshold, dtype=torch.float64)
        return threshold.encode(
            values, segments, payload, at, thresholds=tolerances, stored=self.values
        )

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Write the rows, with zeros."""
        threshold.decode(encoded, segments, out)


register_codec(Threshold, Threshold(threshold=0.0))
