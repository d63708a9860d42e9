"""Kept values stored as fp32, fp16 or int8 with one scale for each segment, in Triton.

A float32 is handled as its int32 bits, so that no step can change a NaN. The payload comes in three
views: `payload`, `halves` and `words`, of 1, 2 and 4 bytes an element. `place` is where the first
value of a segment lies, in bytes.
"""

# mypy: ignore-errors

import torch
import triton
import triton.language as tl

from trec_qcomm.ops.device import words
from trec_qcomm.ops.sparsify import cpu, reference

FP32 = tl.constexpr(reference.FP32)
FP16 = tl.constexpr(reference.FP16)
INT8 = tl.constexpr(reference.INT8)
OK = tl.constexpr(cpu.OK)
BAD_SIZE = tl.constexpr(cpu.BAD_SIZE)
BAD_FORM = tl.constexpr(cpu.BAD_FORM)
BAD_SCALE = tl.constexpr(cpu.BAD_SCALE)
BAD_COUNT = tl.constexpr(cpu.BAD_COUNT)
BAD_PLACES = tl.constexpr(cpu.BAD_COLUMNS)

MAGNITUDE = tl.constexpr(0x7FFFFFFF)
INF = tl.constexpr(0x7F800000)
_MINUS_INF = tl.constexpr(0x7F800000 - 0x80000000)
_NAN = tl.constexpr(0x7FC00000)
_LEAST_NORMAL = tl.constexpr(0x00800000)
_FLT_MAX = tl.constexpr(3.4028234663852886e38)
_FLT_MIN = tl.constexpr(1.1754943508222875e-38)
_HALF_NAN = tl.constexpr(0x7E00)
_HALF_INF = tl.constexpr(0x7C00)
_TOP = tl.constexpr(float(reference.INT8_TOP))
# 1.5 * 2^23: the sum with |y| < 2^22 has no bits below 1, so its lowest bits are y, rounded.
_ROUNDER = tl.constexpr(12582912.0)
_ROUNDER_BITS = tl.constexpr(0x4B400000)


def views_of(payload: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the kernels' three views of a payload: `payload`, `halves` and `words`."""
    return payload, words(payload, torch.int16), words(payload, torch.int32)


@triton.jit
def value_nbytes(kind):
    """Return the size of one stored value in bytes; kind: a tensor or a constant."""
    return tl.where(kind == FP32, 4, tl.where(kind == FP16, 2, 1))


@triton.jit
def raise_largest(amax, live, segment, bits, kept):
    """Raise amax to the bits of the largest finite magnitude that each segment keeps.

    Args: amax: [S] int32, 0 before the first call.  bits, kept: [R, D].  live: [R], which rows
        exist.
    """
    key = bits & MAGNITUDE
    largest = tl.max(tl.where(kept & (key < INF), key, 0), 1)
    only = tl.min(segment, 0)
    if only == tl.max(segment, 0):
        most = tl.max(largest, 0)
        if most > tl.load(amax + only):  # so that few programs wait for one another
            tl.atomic_max(amax + only, most)
    else:
        tl.atomic_max(amax + segment, largest, mask=live)


@triton.jit
def scale_of(largest, KIND: tl.constexpr):
    """Return the bits of a segment's scale. largest: the bits of its largest finite magnitude."""
    if KIND == FP16:
        scale = tl.maximum((largest >> 23) - 13, 1) << 23
    elif KIND == INT8:
        step = tl.div_rn(largest.to(tl.float32, bitcast=True), _TOP)
        scale = tl.maximum(step, _FLT_MIN).to(tl.int32, bitcast=True)
    else:
        scale = largest & 0
    return scale


@triton.jit
def store_values(payload, halves, words, place, first, j, bits, scale, kept, KIND: tl.constexpr):
    """Store the values that are kept, as the values number first + j of their segment.

    Args: first: int64.  bits: values.  scale: bits of the segment's scale, from `scale_of`.
    """
    if KIND == FP32:
        tl.store(words + (place >> 2) + first + j, bits, mask=kept)
    elif KIND == FP16:
        inverse = ((254 - (scale >> 23)) << 23).to(tl.float32, bitcast=True)  # exact
        half = (bits.to(tl.float32, bitcast=True) * inverse).to(tl.float16)
        nan = tl.where(bits < 0, _HALF_NAN - 0x8000, _HALF_NAN)
        stored = tl.where((bits & MAGNITUDE) > INF, nan, half.to(tl.int16, bitcast=True))
        tl.store(halves + (place >> 1) + first + j, stored.to(tl.int16), mask=kept)
    else:
        key = bits & MAGNITUDE
        x = tl.where(key < INF, bits, 0).to(tl.float32, bitcast=True)
        y = tl.div_rn(x, scale.to(tl.float32, bitcast=True))
        q = (y + _ROUNDER).to(tl.int32, bitcast=True) - _ROUNDER_BITS
        q = tl.where(key == INF, tl.where(bits < 0, -127, 127), q)
        q = tl.where(key > INF, -128, q)
        tl.store(payload + place + first + j, q.to(tl.uint8), mask=kept)


@triton.jit
def load_values(payload, halves, words, place, first, j, kind, scale, kept):
    """Return the bits of the values number first + j where kept, and 0 elsewhere: the inverse of
    `store_values`. kind, scale: fields of the segment's header, which may be any bits."""
    bits = tl.load(words + (place >> 2) + first + j, mask=kept & (kind == FP32), other=0)
    half = tl.load(halves + (place >> 1) + first + j, mask=kept & (kind == FP16), other=0)
    code = tl.load(payload + place + first + j, mask=kept & (kind == INT8), other=0)
    magnitude, code = half & 0x7FFF, code.to(tl.int8, bitcast=True).to(tl.int32)
    stored = half.to(tl.float16, bitcast=True).to(tl.float32)
    y = tl.where(kind == FP16, stored, code.to(tl.float32)) * scale.to(tl.float32, bitcast=True)
    y = tl.minimum(tl.maximum(y, -_FLT_MAX), _FLT_MAX).to(tl.int32, bitcast=True)
    infinite = (magnitude == _HALF_INF) | (tl.abs(code) == 127)
    y = tl.where(infinite, tl.where((half < 0) | (code < 0), _MINUS_INF, INF), y)
    y = tl.where((magnitude > _HALF_INF) | (code == -128), _NAN, y)
    return tl.where(kind == FP32, bits, tl.where(kept, y, 0))


@triton.jit
def bad_fields(kind, scale):
    """Return what is wrong with the fields that all formats have, or OK. scale: its bits."""
    wrong = (kind != FP32) & ((scale < _LEAST_NORMAL) | (scale >= INF))
    return tl.where(kind > INT8, BAD_FORM, tl.where(wrong, BAD_SCALE, OK))
