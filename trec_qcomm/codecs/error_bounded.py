"""Codec error_bounded: every value within a bound that you state.

With bitpack, normally distributed rows become 6x smaller at 1 % of the range, and 8x at 3 %.
Source: Feng et al., SC'24 (error-bounded compression of the embedding all-to-all, one bound a
table); SZ3 (a quantizer that checks each value).
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
Encoder = Literal["bitpack", "vector_lz", "rans"]


@dataclass(frozen=True)
class ErrorBounded:
    """Codec that keeps |x - decoded| <= error bound for every finite value, without slack.

    NaN and inf survive. Rows that would not become smaller are sent as they are, with 8 bytes more
    for the segment. A segment arrives exactly if its finite values are all equal, or if its bound
    is too small or too large for float32 (a step of 2 error bounds and its inverse must be normal
    numbers).

    Args:
        bound: with mode `rel`, the error bound as a fraction of max - min over the finite values of
            the segment: the rows that one rank sends one peer for one table in one step. So each
            table, and each step, is coded at its own scale. 0 < bound < 1; 0.01 is 1 %.
            With mode `abs`, the error bound itself, in units of the values.
        mode: `rel` or `abs`, what `bound` means.
        encoder: how the integers round(x / (2 error bound)) become bytes. `bitpack`: at the speed
            of memory. `rans`: entropy coded, a tenth to a fifth smaller and several times slower.
            `vector_lz`: bitpack with repeated rows sent once; not on a GPU. Which is fastest for
            a table's rows, `python -m trec_qcomm preview` measures.
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
        """Whether it runs on a GPU: all encoders do but vector_lz, which looks for copies, one row
        after the other."""
        return self.encoder in error_bound.GPU_ENCODERS

    def max_nbytes(self, segments: Segments) -> Tensor:
        """Return [S] int64, what raw rows take in bytes. All methods: core.codec.Codec."""
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
        """Quantize and write the rows. tolerances: each segment's bound, >= 0; with 0 the segment
        arrives exactly."""
        bounds = tolerances
        if bounds is None:
            bounds = torch.full((segments.num_segments,), self.tolerance, dtype=torch.float64)
        relative = self.mode == "rel"
        return error_bound.encode(
            values,
            segments,
            payload,
            at,
            bounds=bounds,
            relative=relative,
            encoder=self.encoder,
        )

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Write the rows back, whatever bound, mode and encoder their sender used."""
        error_bound.decode(encoded, segments, out)


register_codec(ErrorBounded, ErrorBounded(0.01))
