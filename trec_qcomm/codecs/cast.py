"""Codecs identity (rows as they are) and cast (rows as fp16 or bf16, half the size).

ZionEX sends forward in fp16 and backward in bf16.
Source: Mudigere et al. 2021, reduced precision communication.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from trec_qcomm.codecs.base import Options, SummingRowCodec
from trec_qcomm.core.codec import Contract
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import VALUE_DTYPES

Dtype = Literal["fp16", "bf16"]
Overflow = Literal["inf", "raise"]


class _CastCodec(SummingRowCodec):
    """Codec of the op cast: rows of one dtype."""

    op = "trec_qcomm.ops.cast"
    dtype: str  # in the message: fp32, fp16 or bf16

    @property
    def wire_id(self) -> int:
        """Id in the frame: 1 for fp32, 2 for fp16, 3 for bf16."""
        return {"fp32": 1, "fp16": 2, "bf16": 3}[self.dtype]

    @property
    def options(self) -> Options:
        """Options of its kernels."""
        return {"dtype": self.dtype}

    def row_nbytes(self, dim: int) -> int:
        """Return the bytes of an encoded row."""
        return dim * (4 if self.dtype == "fp32" else 2)


@dataclass(frozen=True)
class Identity(_CastCodec):
    """Codec that sends float32 bits unchanged: the baseline, and what `bypass` sends."""

    name = "identity"
    dtype = "fp32"
    contract = Contract.EXACT

    def for_values(self, dtype: torch.dtype) -> "Identity | Identity16":
        """Return the codec that sends rows of this dtype unchanged."""
        if dtype == torch.float32:
            return self
        return Identity16("fp16" if dtype == torch.float16 else "bf16")


@dataclass(frozen=True)
class Identity16(_CastCodec):
    """Codec that sends the bits of float16 or bfloat16 rows unchanged: identity for such rows.

    No config names this codec: `Identity.for_values` makes it.

    Args:
        dtype: fp16 or bf16, the dtype of the rows.
    """

    dtype: Dtype

    name = "identity"
    contract = Contract.EXACT

    @property
    def value_dtypes(self) -> Sequence[torch.dtype]:
        """Dtype that the rows must have."""
        return (torch.float16 if self.dtype == "fp16" else torch.bfloat16,)


@dataclass(frozen=True)
class Cast(_CastCodec):
    """Codec that rounds to fp16 or bf16, to nearest even; NaN and inf survive.

    Args:
        dtype: fp16 (11 bits of precision, up to 65504) or bf16 (8 bits, the range of float32).
        overflow: what happens to a finite value beyond the format. `inf`: it becomes inf, which a
            loss scaler sees. `raise`: it raises an UnencodableError. It is never clamped.
    """

    dtype: Dtype
    overflow: Overflow = "inf"

    name = "cast"
    contract = Contract.BIASED
    value_dtypes = VALUE_DTYPES

    @property
    def may_refuse(self) -> bool:
        """Whether `encode` may raise an UnencodableError: with overflow `raise`."""
        return self.overflow == "raise"

    @property
    def refusal(self) -> str:
        """Reason of the error where a value is beyond the format."""
        return f"a value beyond the range of {self.dtype} (overflow: raise)"

    def for_values(self, dtype: torch.dtype) -> "Cast":
        """Return the codec itself: it reads rows of float16 and bfloat16 where they lie."""
        return self


register_codec(Identity, Identity())
register_codec(Cast, Cast("fp16"), Cast("bf16"))
