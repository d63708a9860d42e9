"""Headers of rows in numba, 32 bits each. Same bits as headers and grid of reference.py.

Integers stay int32, which numba widens in every operation, so that LLVM vectorizes loops of rows.
"""
# mypy: ignore-errors

import numpy as np

from trec_qcomm.jit import inner
from trec_qcomm.ops.rowwise.reference import BIAS, HUGE, MARK, MIN_EXPONENT

_MAGNITUDE = np.int32(0x7FFFFFFF)


@inner(forceinline=True)
def power_of_two(k):
    """Return 2^k as float32, for -126 <= k <= 127."""
    return np.int32(np.int32(k + 127) << np.int32(23)).view(np.float32)


@inner(forceinline=True)
def header_of(lo, hi, finite, bits):
    """Return the header of a row whose finite values lie in lo..hi."""
    amax = np.int32(np.float32(max(-lo, hi)).view(np.int32) & _MAGNITUDE)
    e = max(np.int32((amax >> np.int32(23)) - np.int32(126)), np.int32(MIN_EXPONENT))
    huge = e > np.int32(HUGE)
    near = np.int32(e - (np.int32(2) if huge else np.int32(0)))
    factor = np.float32(0.25) if huge else np.float32(1)
    lo, hi = np.float32(lo * factor), np.float32(hi * factor)
    levels = np.int32((1 << bits) - 1)
    if not finite:
        levels = np.int32(levels - np.int32(3))
    if levels == 0:
        lo = np.float32(lo * np.float32(0.5)) + np.float32(hi * np.float32(0.5))
        hi = lo
    low = np.floor(np.float32(lo * power_of_two(np.int32(11) - near)))
    width = np.float32(hi - np.float32(low * power_of_two(near - np.int32(11))))
    step = np.float32(width / np.float32(max(levels, np.int32(1)))).view(np.int32)
    step = np.int32(np.int32(step + np.int32(0xFFFF)) >> np.int32(16))  # 0xFFFF rounds up
    least = np.int32(np.int32(near + np.int32(BIAS - 14 - bits)) << np.int32(7))
    step = max(np.int32(step - least), np.int32(0))
    low = np.int32(np.int32(np.int32(low) & np.int32(0xFFF)) << np.int32(12))
    mark = np.int32(0) if finite else np.int32(MARK)
    return np.int32(step | low | mark | np.int32(np.int32(e + np.int32(BIAS)) << np.int32(24)))


@inner(forceinline=True)
def exponent_of(header):
    """Return e of a row."""
    return np.int32(np.int32(np.int32(header >> np.int32(24)) & np.int32(0xFF)) - np.int32(BIAS))


@inner(forceinline=True)
def is_huge(header):
    """Return whether a row's low and scale are those of the row divided by 4."""
    return exponent_of(header) > np.int32(HUGE)


@inner(forceinline=True)
def _near(header):
    return np.int32(exponent_of(header) - (np.int32(2) if is_huge(header) else np.int32(0)))


@inner(forceinline=True)
def scale_of(header, bits):
    """Return a row's scale."""
    least = np.int32(np.int32(_near(header) + np.int32(BIAS - 14 - bits)) << np.int32(7))
    step = np.int32(np.int32(header & np.int32(MARK - 1)) + least)
    return np.int32(step << np.int32(16)).view(np.float32)


@inner(forceinline=True)
def low_of(header):
    """Return a row's low."""
    low = np.int32(np.int32(header << np.int32(8)) >> np.int32(20))
    return np.float32(np.float32(low) * power_of_two(_near(header) - np.int32(11)))
