"""Codec threshold: the values of at least some magnitude, wherever they are. For gradients.

With independent normal values: 1 % kept as int8 take 18 bits each, 177x less than float32 for all;
0.1 % take 21 bits each, 1490x less. What is not sent should be added to the next step's values:
error feedback.
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
from trec_qcomm.ops.sparsify import ValueFormat


@dataclass(frozen=True)
class Threshold:
    """Codec that sends the values with |x| >= threshold, and NaN; the others decode to 0.

    `topk` with a threshold keeps the same values row by row, and `forward_mask` can then send the
    gradients of just these; this codec is smaller where few values are kept.

    Args:
        threshold: >= 0, in units of the values; a rule's `refresh` finds other ones while training.
        values: how kept values are sent: fp32, fp16, or int8 with one scale for each segment
            (ops.sparsify).
    """

    threshold: float
    values: ValueFormat = "fp16"

    name: ClassVar[str] = "threshold"
    wire_id: ClassVar[int] = 10
    fixed_size: ClassVar[bool] = False
    contract: ClassVar[Contract] = Contract.BIASED
    has_gpu_kernels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        number = type(self.threshold) in (int, float) and math.isfinite(self.threshold)
        if not number or not 0 <= self.threshold <= sys.float_info.max:
            raise ValueError(f"threshold.threshold: {self.threshold!r} is not a finite number >= 0")
        check_choice("threshold.values", self.values, get_args(ValueFormat))

    @property
    def tolerance(self) -> float:
        """The threshold, as the number that control may set."""
        return self.threshold

    def max_nbytes(self, segments: Segments) -> Tensor:
        """Return [S] int64, sizes in bytes, never exceeded. All methods: core.codec.Codec."""
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
        """Write the kept values. Raise ValueError for tolerances that are no thresholds."""
        if tolerances is None:
            tolerances = torch.full((segments.num_segments,), self.threshold, dtype=torch.float64)
        return threshold.encode(
            values, segments, payload, at, thresholds=tolerances, stored=self.values
        )

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Write the rows back, with zeros where nothing was kept."""
        threshold.decode(encoded, segments, out)


register_codec(Threshold, Threshold(threshold=0.0))
