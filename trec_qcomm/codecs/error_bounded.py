"""error_bounded: every value within a bound that you state. 6x at 1 % of the range, 8x at 3 %.

Source: Feng et al., SC'24 (error-bounded compression of the embedding all-to-all, one bound a
table); SZ3 (a quantizer that checks each value). The ratios: normally distributed rows, bitpack.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from trec_qcomm.core.codec import Contract, check_choice
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops import error_bound

Mode = Literal["rel", "abs"]
Encoder = Literal["bitpack", "vector_lz", "rans", "auto"]


@dataclass(frozen=True)
class ErrorBounded:
    """|x - decoded| <= error bound for every finite value, without slack; NaN and inf survive.

    Args: bound: with mode `rel`, the error bound as a fraction of max - min over the finite values
        of the segment: the rows that one rank sends one peer for one table in one step. So each
        table, and each step, is coded at its own scale; 0 < bound < 1, and 0.01 is 1 %.
        With mode `abs`, the error bound itself, in units of the values.
        encoder: how the integers round(x / (2 error bound)) become bytes: `bitpack`, at the speed
        of memory; `rans`, entropy coded, a tenth to a fifth smaller and several times slower;
        `vector_lz`, bitpack with repeated rows sent once; `auto`, for every segment whichever of
        them is the smallest.

    Rows that would not become smaller are sent as they are, at 8 bytes a segment. A segment whose
    finite values are all equal, or whose bound is too small or too large for float32 (a step of
    2 error bounds and its inverse must be normal numbers), arrives exactly.
    """

    bound: float
    mode: Mode = "rel"
    encoder: Encoder = "bitpack"

    name: ClassVar[str] = "error_bounded"
    fixed_size: ClassVar[bool] = False
    wire_id: ClassVar[int] = 7
    contract: ClassVar[Contract] = Contract.BOUNDED

    def __post_init__(self) -> None:
        check_choice("error_bounded.mode", self.mode, get_args(Mode))
        check_choice("error_bounded.encoder", self.encoder, get_args(Encoder))
        if type(self.bound) not in (int, float):
            raise ValueError(f"error_bounded.bound: {self.bound!r} is not a number")
        most = 1.0 if self.mode == "rel" else math.inf
        if not 0 < self.bound < most:
            raise ValueError(
                f"error_bounded.bound: {self.bound!r} is not > 0 and < {most} (mode {self.mode})"
            )

    @property
    def tolerance(self) -> float:
        """The bound, in the unit that `mode` gives it."""
        return float(self.bound)

    @property
    def has_gpu_kernels(self) -> bool:
        """With bitpack and rans; the others look for copies, one row after the other."""
        return self.encoder in error_bound.GPU_ENCODERS

    def max_nbytes(self, segments: Segments) -> Tensor:
        """[S] int64, what raw rows take. See core.codec.Codec for all methods."""
        return error_bound.max_nbytes(segments)

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
        """Quantize and write the rows. tolerances: each segment's bound, >= 0; 0 sends it exactly."""
        bounds = tolerances
        if bounds is None:
            bounds = torch.full((segments.num_segments,), self.tolerance, dtype=torch.float64)
        relative = self.mode == "rel"
        return error_bound.encode(
            values, segments, payload, at, bounds=bounds, relative=relative, encoder=self.encoder
        )

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Write the rows back; bound, mode and encoder are the sender's."""
        error_bound.decode(encoded, segments, out)


register_codec(ErrorBounded, ErrorBounded(0.01))
