"""16-bit floats (IEEE binary16, here `half`, and bfloat16) from and to float32, as numba functions.

All arithmetic is on integers, so LLVM vectorizes the loops that call these functions and every
machine gives the same bits. NaN becomes the quiet NaN of its sign (payloads are not kept).
Source: F. Giesen, "float_to_half_fast3_rtne" and "half_to_float" (the method, public domain).
"""

import numpy as np

from trec_qcomm.jit import inner

_INF32 = np.uint32(0x7F800000)
_HALF_OVERFLOW = np.uint32((127 + 16) << 23)  # 65536: everything from here on is inf or NaN
_HALF_MIN_NORMAL = np.uint32(113 << 23)  # 2^-14
_DENORMAL_MAGIC = np.uint32(((127 - 15) + (23 - 10) + 1) << 23)
_DENORMAL_MAGIC_F = np.float32(0.5)  # the same bits as a float
_REBIAS = np.uint32(0x100000000 - ((127 - 15) << 23))
_SMALL_MAGIC_F = np.float32(2.0**-14)


@inner(forceinline=True)
def half_bits(x):
    """Return the uint16 bits of a float32 as binary16: round to nearest even, overflow to inf."""
    bits = np.float32(x).view(np.uint32)
    sign = bits & np.uint32(0x80000000)
    mag = np.uint32(bits ^ sign)
    small = np.float32(mag.view(np.float32) + _DENORMAL_MAGIC_F).view(np.uint32)
    small = np.uint32(small - _DENORMAL_MAGIC)
    odd = np.uint32((mag >> np.uint32(13)) & np.uint32(1))
    normal = np.uint32(np.uint32(mag + _REBIAS) + np.uint32(np.uint32(0xFFF) + odd))
    normal = np.uint32(normal >> np.uint32(13))
    large = np.uint32(0x7E00) if mag > _INF32 else np.uint32(0x7C00)
    out = small if mag < _HALF_MIN_NORMAL else normal
    out = large if mag >= _HALF_OVERFLOW else out
    return np.uint16(out | (sign >> np.uint32(16)))


@inner(forceinline=True)
def half_value(h):
    """Return the float32 that uint16 bits of binary16 mean; exact."""
    bits = np.uint32(h)
    mag = np.uint32((bits & np.uint32(0x7FFF)) << np.uint32(13))
    exponent = np.uint32(mag & np.uint32(0x7C00 << 13))
    normal = np.uint32(mag + np.uint32((127 - 15) << 23))
    special = np.uint32(normal + np.uint32((128 - 16) << 23))
    small = np.uint32(normal + np.uint32(1 << 23)).view(np.float32) - _SMALL_MAGIC_F
    out = special if exponent == np.uint32(0x7C00 << 13) else normal
    out = np.float32(small).view(np.uint32) if exponent == np.uint32(0) else out
    return np.uint32(out | ((bits & np.uint32(0x8000)) << np.uint32(16))).view(np.float32)


@inner(forceinline=True)
def bfloat_value(b):
    """Return the float32 that uint16 bits of bfloat16 mean; exact."""
    return np.uint32(np.uint32(b) << np.uint32(16)).view(np.float32)


@inner(forceinline=True)
def bfloat_bits(x):
    """Return the uint16 bits of a float32 as bfloat16: round to nearest even, overflow to inf."""
    bits = np.float32(x).view(np.uint32)
    odd = np.uint32((bits >> np.uint32(16)) & np.uint32(1))
    rounded = np.uint32(np.uint32(bits + odd) + np.uint32(0x7FFF)) >> np.uint32(16)
    nan = np.uint32((bits >> np.uint32(16)) & np.uint32(0x8000)) | np.uint32(0x7FC0)
    return np.uint16(nan if (bits & np.uint32(0x7FFFFFFF)) > _INF32 else rounded)
