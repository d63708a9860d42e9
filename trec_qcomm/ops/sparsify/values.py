"""Kept values stored as fp32, fp16 or int8 with one scale for each segment, in numba."""

# mypy: ignore-errors

import numpy as np

from trec_qcomm.jit import inner
from trec_qcomm.ops.float16 import half_bits, half_value

FP32, FP16, INT8 = 0, 1, 2
FLT_MAX, FLT_MIN = np.float32(3.4028234663852886e38), np.float32(2.0**-126)
_MAGNITUDE, _INF_KEY = np.int32(0x7FFFFFFF), np.int32(0x7F800000)


@inner(forceinline=True)
def value_nbytes(kind):
    """Return the size of one stored value in bytes."""
    return 4 if kind == FP32 else (2 if kind == FP16 else 1)


@inner
def value_scale(kept, kind):
    """Return the scale, by which stored numbers are multiplied on decoding (reference.py)."""
    if kind == FP32:
        return np.float32(0)
    words, largest = kept.view(np.int32), np.int32(0)
    for j in range(words.size):
        key = words[j] & _MAGNITUDE
        largest = max(largest, key if key < _INF_KEY else np.int32(0))
    if kind == FP16:
        exponent = max(np.int32(largest >> np.int32(23)) - np.int32(13), np.int32(1))
        return np.int32(exponent << np.int32(23)).view(np.float32)
    return max(np.float32(np.int32(largest).view(np.float32) / np.float32(126)), FLT_MIN)


@inner
def store_values(kept, kind, scale, place):
    """Store values. kept: [K] float32.  place: exactly the bytes that they take."""
    if kind == FP32:
        words, out32 = kept.view(np.uint32), place.view(np.uint32)
        for j in range(words.size):
            out32[j] = words[j]
    elif kind == FP16:
        out16, inverse = place.view(np.uint16), np.float32(np.float32(1) / scale)
        for j in range(kept.size):
            out16[j] = half_bits(np.float32(kept[j] * inverse))
    else:
        out8 = place.view(np.int8)
        for j in range(kept.size):
            x = kept[j]
            finite = abs(x) <= FLT_MAX
            q = np.int32(np.rint(np.float32(x / scale)) if finite else np.float32(0))
            q = q if finite else np.int32(127 if x > 0 else (-127 if x < 0 else -128))
            out8[j] = np.int8(q)


@inner
def load_values(place, kind, scale, kept):
    """Load stored values into `kept`: the inverse of `store_values`."""
    if kind == FP32:
        words, in32 = kept.view(np.uint32), place.view(np.uint32)
        for j in range(words.size):
            words[j] = in32[j]
    elif kind == FP16:
        in16 = place.view(np.uint16)
        for j in range(kept.size):
            mag = in16[j] & np.uint16(0x7FFF)
            x = half_value(in16[j])
            y = min(max(np.float32(x * scale), -FLT_MAX), FLT_MAX)
            y = y if mag < np.uint16(0x7C00) else x
            kept[j] = y if mag <= np.uint16(0x7C00) else np.float32(np.nan)
    else:
        in8 = place.view(np.int8)
        for j in range(kept.size):
            q = np.int32(in8[j])
            y = min(max(np.float32(np.float32(q) * scale), -FLT_MAX), FLT_MAX)
            y = np.float32(np.inf) if q == 127 else y
            y = np.float32(-np.inf) if q == -127 else y
            kept[j] = np.float32(np.nan) if q == -128 else y
