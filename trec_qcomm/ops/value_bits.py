"""Bits of float32, float16 and bfloat16 in Triton kernels.

Kernels take 16-bit values as int16 and round by integer arithmetic where processors differ: in the
bits of a NaN. There is one quiet NaN per sign, and the payload of a NaN that grows to 32 bits
stays. Imports triton.
"""

# mypy: ignore-errors

import torch
import triton
import triton.language as tl
from torch import Tensor

FP32, FP16, BF16 = (tl.constexpr(kind) for kind in range(3))
KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
INF, MAGNITUDE = tl.constexpr(0x7F800000), tl.constexpr(0x7FFFFFFF)
# Largest finite values.
MAX_FP32, MAX_FP16 = tl.constexpr(3.4028234663852886e38), tl.constexpr(65504.0)
MAX_BF16 = tl.constexpr(3.3895313892515355e38)


def loadable(values: Tensor) -> tuple[Tensor, int]:
    """Return values as kernels load them, float32 or int16, and the kind of their dtype."""
    kind = KINDS[values.dtype]
    return values.detach().view(torch.int16) if kind else values, kind


def as_bits(values: Tensor) -> tuple[Tensor, int]:
    """Return values as integers of their bits, int32 or int16, and the kind of their dtype."""
    kind = KINDS[values.dtype]
    return values.detach().view(torch.int16 if kind else torch.int32), kind


@triton.jit
def bits_of(word, KIND: tl.constexpr):
    """Return the bits, int32, of the float32 that a word, int32 or int16, means; exact."""
    if KIND == FP32:
        bits = word
    elif KIND == FP16:
        half = word.to(tl.int32)
        finite = word.to(tl.float16, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
        special = ((half & 0x3FF) << 13) | INF | ((half & 0x8000) << 16)
        bits = tl.where((half & 0x7C00) == 0x7C00, special, finite)
    else:
        bits = word.to(tl.int32) << 16
    return bits


@triton.jit
def word_of(bits, KIND: tl.constexpr):
    """Return the word, int32, of a kind for the bits of float32: rounded to nearest even."""
    magnitude, sign = bits & MAGNITUDE, (bits >> 16) & 0x8000
    if KIND == FP32:
        word = bits
    elif KIND == FP16:
        half = bits.to(tl.float32, bitcast=True).to(tl.float16).to(tl.int16, bitcast=True)
        word = tl.where(magnitude > INF, sign | 0x7E00, half.to(tl.int32))
    else:
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        word = tl.where(magnitude > INF, sign | 0x7FC0, rounded)
    return word


@triton.jit
def float_of(loaded, KIND: tl.constexpr):
    """Return float32 values of what was loaded: float32, or int16 of another kind."""
    return loaded if KIND == FP32 else bits_of(loaded, KIND).to(tl.float32, bitcast=True)


@triton.jit
def to_store(x, KIND: tl.constexpr):
    """Return float32 values as they are stored: float32, or int16 of another kind."""
    return x if KIND == FP32 else word_of(x.to(tl.int32, bitcast=True), KIND).to(tl.int16)
