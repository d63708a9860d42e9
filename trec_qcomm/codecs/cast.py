"""Codecs identity (rows as they are) and cast (rows as fp16 or bf16, half the size).

ZionEX sends forward in fp16 and backward in bf16.
Source: Mudigere et al. 2021, reduced precision communication.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from trec_qcomm.core.codec import Contract, check_choice
from trec_qcomm.core.errors import UnencodableError
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops import cast
from trec_qcomm.ops.dispatch import check_sizes, check_sizes_of_parts

Dtype = Literal["fp16", "bf16"]
Overflow = Literal["inf", "raise"]


@dataclass(frozen=True)
class Identity:
    """Codec that sends float32 bits unchanged: the baseline, and what `bypass` sends."""

    name: ClassVar[str] = "identity"
    fixed_size: ClassVar[bool] = True
    tolerance: ClassVar[None] = None
    has_gpu_kernels: ClassVar[bool] = True
    wire_id: ClassVar[int] = 1
    contract: ClassVar[Contract] = Contract.EXACT

    def for_values(self, dtype: torch.dtype) -> "Identity16":
        """Return the codec that sends rows of float16 or bfloat16 unchanged."""
        return Identity16("fp16" if dtype == torch.float16 else "bf16")

    def max_nbytes(self, segments: Segments) -> Tensor:
        """Return [S] int64, the exact sizes in bytes. All methods: core.codec.Codec."""
        return cast.nbytes(segments, "fp32")

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
        """Copy the rows' bits."""
        return cast.encode(values, segments, payload, at, dtype="fp32")[0]

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Copy the bits back to the rows' places."""
        check_sizes(encoded, self.max_nbytes(segments))
        cast.decode(encoded, segments, out, dtype="fp32")

    def decode_sum(
        self, encoded: Encoded, segments: Segments, out: Tensor, *, held_at: int = -1
    ) -> None:
        """Write the sums of the rows of several parts."""
        check_sizes_of_parts(encoded, self.max_nbytes(segments))
        cast.decode_sum(encoded, segments, out, dtype="fp32", held_at=held_at)


@dataclass(frozen=True)
class Identity16:
    """Codec that sends the bits of float16 or bfloat16 rows unchanged: identity for such rows.

    No config names it: `Identity.for_values` makes it.

    Args:
        dtype: fp16 or bf16, what the rows are.
    """

    dtype: Dtype

    name: ClassVar[str] = "identity"
    fixed_size: ClassVar[bool] = True
    tolerance: ClassVar[None] = None
    contract: ClassVar[Contract] = Contract.EXACT

    @property
    def wire_id(self) -> int:
        """Id in the frame, that of a cast: 2 for fp16, 3 for bf16."""
        return 2 if self.dtype == "fp16" else 3

    def max_nbytes(self, segments: Segments) -> Tensor:
        """Return [S] int64, the exact sizes in bytes. All methods: core.codec.Codec."""
        return cast.nbytes(segments, self.dtype)

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
        """Copy the rows' bits. Raise ValueError for rows of another dtype."""
        segments.check_fits(values, (cast.DTYPES[self.dtype],))
        return cast.encode(values, segments, payload, at, dtype=self.dtype)[0]

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Copy the bits back to the rows' places."""
        check_sizes(encoded, self.max_nbytes(segments))
        cast.decode(encoded, segments, out, dtype=self.dtype)


@dataclass(frozen=True)
class Cast:
    """Codec that rounds to fp16 or bf16, to nearest even; NaN and inf survive.

    Args:
        dtype: fp16 (11 bits of precision, up to 65504) or bf16 (8 bits, the range of float32).
        overflow: what a finite value beyond the format becomes: `inf`, which training code such as
            a loss scaler sees, or `raise`, an UnencodableError. It is never clamped.
    """

    dtype: Dtype
    overflow: Overflow = "inf"

    name: ClassVar[str] = "cast"
    fixed_size: ClassVar[bool] = True
    tolerance: ClassVar[None] = None
    has_gpu_kernels: ClassVar[bool] = True
    contract: ClassVar[Contract] = Contract.BIASED

    def __post_init__(self) -> None:
        check_choice("cast.dtype", self.dtype, get_args(Dtype))
        check_choice("cast.overflow", self.overflow, get_args(Overflow))

    @property
    def may_refuse(self) -> bool:
        """Whether it may raise an UnencodableError."""
        return self.overflow == "raise"

    @property
    def wire_id(self) -> int:
        """Id in the frame: 2 for fp16, 3 for bf16."""
        return 2 if self.dtype == "fp16" else 3

    def for_values(self, dtype: torch.dtype) -> "Cast":
        """Return itself: rows of float16 and bfloat16 are read where they lie."""
        return self

    def max_nbytes(self, segments: Segments) -> Tensor:
        """Return [S] int64, the exact sizes in bytes. All methods: core.codec.Codec."""
        return cast.nbytes(segments, self.dtype)

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
        """Round and write the rows. Raise UnencodableError for an overflow if so configured."""
        encoded, overflow = cast.encode(values, segments, payload, at, dtype=self.dtype)
        if self.overflow == "raise" and (first := int(overflow)) >= 0:  # waits for a GPU
            reason = f"a value beyond the range of {self.dtype} (overflow: raise)"
            raise UnencodableError(reason, segment=first)
        return encoded

    def decode(self, encoded: Encoded, segments: Segments, out: Tensor) -> None:
        """Write the rows back, as what `out` is: float32, float16 or bfloat16."""
        check_sizes(encoded, self.max_nbytes(segments))
        cast.decode(encoded, segments, out, dtype=self.dtype)

    def decode_sum(
        self, encoded: Encoded, segments: Segments, out: Tensor, *, held_at: int = -1
    ) -> None:
        """Write the sums of the rows of several parts."""
        check_sizes_of_parts(encoded, self.max_nbytes(segments))
        cast.decode_sum(encoded, segments, out, dtype=self.dtype, held_at=held_at)


register_codec(Identity, Identity())
register_codec(Cast, Cast("fp16"), Cast("bf16"))
