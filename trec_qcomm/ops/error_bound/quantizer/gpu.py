"""The quantizer of ops.error_bound in Triton: a group of 1024 values of a segment, numbered row by
row, <-> zigzagged indices.

A value's row is found by a multiplication, once for VECTOR values, which lie side by side.

What reference.py checks in float64 is exact in float32 here. Let b be the bound, u = 2^-24, x > 0
(x < 0 is alike), d = q * 2b what is decoded. For q = 0 the difference is x itself. Else x / 2b with
its inverse rounded exceeds 1/2, so that x > b / (1 + u) > b (1 - u), and no float lies between that
and b: x >= b. So d / 2 <= x <= 2 d wherever x is within the bound, and x - d is exact (Sterbenz).
"""

import triton
import triton.language as tl

from trec_qcomm.ops.error_bound.reference import BITPACK, CONSTANT, RAW
from trec_qcomm.ops.error_bound.reference import MAX_INDEX as _LARGEST

_GROUP = tl.constexpr(1024)
_RAW, _BITPACK, _CONSTANT = tl.constexpr(RAW), tl.constexpr(BITPACK), tl.constexpr(CONSTANT)
_MAX_INDEX, _MAX_WORD = tl.constexpr(float(_LARGEST)), tl.constexpr(2 * _LARGEST)
_MAGIC = tl.constexpr(1.5 * 2**23)  # adding it rounds |y| <= 2^22 to an integer, half to even
_MAGIC_BITS = tl.constexpr(0x4B400000)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_INF = tl.constexpr(0x7F800000)
_MIN_NORMAL, _FLT_MAX = tl.constexpr(2.0**-126), tl.constexpr(3.4028234663852886e38)
NO_KEY = 2**31 - 1  # above every key, and every number of a value
_NO_KEY = tl.constexpr(NO_KEY)


@triton.jit
def _places(first, num_values, begin, gap, dim, VECTOR: tl.constexpr):
    """[1024 / VECTOR]: where every VECTOR-th value of a group lies, and whether there is one. gap:
    values between rows, int32."""
    k = tl.arange(0, _GROUP // VECTOR) * VECTOR
    row = first // dim
    past = first - row * dim + k  # since this row began: < dim + 1024
    # Exact for dim < 1024, as past * dim < 2^21 then; else it is this row or the next.
    quotient = (past.to(tl.uint32) * (((1 << 21) + dim - 1) // dim).to(tl.uint32)) >> 21
    below = tl.where(dim < _GROUP, quotient.to(tl.int32), (past >= dim).to(tl.int32))
    place = begin + row * (gap.to(tl.int64) + dim) + past + below.to(tl.int64) * gap.to(tl.int64)
    return tl.multiple_of(place, VECTOR), first + k < num_values


@triton.jit
def load_group(values, first, num_values, begin, gap, dim, other, VECTOR: tl.constexpr):
    """[1024]: values of a segment from its `first` on, with others behind the last one."""
    place, live = _places(first, num_values, begin, gap, dim, VECTOR)
    live = tl.broadcast_to(live[:, None], (_GROUP // VECTOR, VECTOR))
    x = tl.load(values + (place[:, None] + tl.arange(0, VECTOR)[None, :]), mask=live, other=other)
    return tl.reshape(x, (_GROUP,))


@triton.jit
def store_group(x, out, first, num_values, begin, gap, dim, VECTOR: tl.constexpr):
    """The inverse."""
    place, live = _places(first, num_values, begin, gap, dim, VECTOR)
    live = tl.broadcast_to(live[:, None], (_GROUP // VECTOR, VECTOR))
    x = tl.reshape(x, (_GROUP // VECTOR, VECTOR))
    tl.store(out + (place[:, None] + tl.arange(0, VECTOR)[None, :]), x, mask=live)


@triton.jit
def _key(x):
    """An int32 in the order of the floats. -0.0 is below 0.0."""
    return _flipped(x.to(tl.int32, bitcast=True))


@triton.jit
def _flipped(bits):
    return bits ^ ((bits >> 31) & _MAGNITUDE)


@triton.jit
def range_of(x):
    """Lowest and highest finite value of a group; of none, inf and -inf."""
    low = tl.min(tl.where(x >= -_FLT_MAX, x, float("inf")), 0)
    return low, tl.max(tl.where(x <= _FLT_MAX, x, float("-inf")), 0)


@triton.jit
def note_range(found, segment, num_segments, low, high, first):
    """Lower found [3, S] int32, NO_KEY before, to the key of a segment's lowest value, that of the
    highest with all bits flipped, and the number of its first finite value, if they are all equal.
    first: that of the first group of equal ones here, or NO_KEY."""
    if low <= high:
        tl.atomic_min(found + segment, _key(low), sem="relaxed")
        tl.atomic_min(found + num_segments + segment, ~_key(high), sem="relaxed")
        if first != _NO_KEY:
            tl.atomic_min(found + 2 * num_segments + segment, first, sem="relaxed")


@triton.jit
def rule(found, bounds, segment, num_segments, RELATIVE: tl.constexpr):
    """(RAW, BITPACK or CONSTANT; bound, step, 1 / step as float32) of a segment."""
    low = tl.load(found + segment)
    high = ~tl.load(found + num_segments + segment)
    lowest = _flipped(low).to(tl.float32, bitcast=True).to(tl.float64)
    highest = _flipped(high).to(tl.float32, bitcast=True).to(tl.float64)
    width = tl.where(low == _NO_KEY, 0.0, highest - lowest)
    limit = tl.load(bounds + segment)
    if RELATIVE:
        limit = limit * width
    bound = tl.minimum(limit, _FLT_MAX).to(tl.float32)
    below = (bound.to(tl.int32, bitcast=True) - 1).to(tl.float32, bitcast=True)
    bound = tl.where(bound.to(tl.float64) > limit, below, bound)
    step = bound * 2.0
    inverse = tl.div_rn(1.0, tl.where(step > 0, step, 1.0))
    usable = (step >= _MIN_NORMAL) & (step <= _FLT_MAX) & (inverse >= _MIN_NORMAL)
    kind = tl.where(width == 0, _CONSTANT, tl.where(usable, _BITPACK, _RAW))
    return kind, bound, step, inverse


@triton.jit
def constant_of(values, found, segment, num_segments, begin, gap, dim):
    """Bits of the first finite value of a segment whose finite ones are equal, or of its first."""
    k = tl.load(found + 2 * num_segments + segment)
    k = tl.where(k == _NO_KEY, 0, k)
    place = begin + k + (k // dim).to(tl.int64) * gap
    return tl.load(values + place).to(tl.int32, bitcast=True)


@triton.jit
def quantize(x, bound, step, inverse):
    """Indices as words, uint32, and whether all of them hold; else see `fits`."""
    shifted = x * inverse + _MAGIC
    q = shifted.to(tl.int32, bitcast=True) - _MAGIC_BITS
    word = ((q << 1) ^ (q >> 31)).to(tl.uint32, bitcast=True)
    error = (x - (shifted - _MAGIC) * step).to(tl.int32, bitcast=True) & _MAGNITUDE
    within = tl.max(error, 0) <= bound.to(tl.int32, bitcast=True)  # NaN is the largest
    return word, within & (tl.max(word, 0) <= _MAX_WORD)


@triton.jit
def fits(x, bound, step, inverse):
    """Which values travel as indices, the others verbatim. Exact, see the module."""
    rounded = (x * inverse + _MAGIC) - _MAGIC
    return (tl.abs(x - rounded * step) <= bound) & (tl.abs(rounded) <= _MAX_INDEX)
