"""The quantizer of ops.error_bound in Triton: rows of a segment <-> zigzagged indices.

Values are numbered row by row, and handled in groups of 1024. The row of a value is found by a
multiplication, once for VECTOR values, which lie side by side.

What reference.py checks in float64 is exact in float32 here. Let b be the bound, u = 2^-24, x > 0
(x < 0 is alike), and d = q * 2b the decoded value. For q = 0 the difference is x itself. Else
x / 2b, with its rounded inverse, exceeds 1/2, so that x > b / (1 + u) > b (1 - u). No float lies
between that and b, so x >= b. Then d / 2 <= x <= 2 d wherever x is within the bound, and x - d is
exact (Sterbenz).
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
    """Return [1024 / VECTOR] where every VECTOR-th value of a group lies, and whether there is one.

    Args: begin: place of the segment's first value.  gap: values between rows, int32.
    """
    k, dim = tl.arange(0, _GROUP // VECTOR) * VECTOR, tl.cast(dim, tl.int32)  # 1 is a constant
    row = first // dim
    past = first - row * dim + k  # since this row began: < dim + 1024
    # Exact for dim < 1024, as past * dim < 2^21 then; else it is this row or the next.
    quotient = (past.to(tl.uint32) * (((1 << 21) + dim - 1) // dim).to(tl.uint32)) >> 21
    below = tl.where(dim < _GROUP, quotient.to(tl.int32), (past >= dim).to(tl.int32))
    place = begin + row * (gap.to(tl.int64) + dim) + past + below.to(tl.int64) * gap.to(tl.int64)
    return tl.multiple_of(place, VECTOR), first + k < num_values


@triton.jit
def load_group(values, first, num_values, begin, gap, dim, other, VECTOR: tl.constexpr):
    """Load [1024] values of a segment, from number `first` on; `other` after the last one."""
    place, live = _places(first, num_values, begin, gap, dim, VECTOR)
    live = tl.broadcast_to(live[:, None], (_GROUP // VECTOR, VECTOR))
    x = tl.load(values + (place[:, None] + tl.arange(0, VECTOR)[None, :]), mask=live, other=other)
    return tl.reshape(x, (_GROUP,))


@triton.jit
def store_group(x, out, first, num_values, begin, gap, dim, VECTOR: tl.constexpr):
    """Invert `load_group`: store x [1024] to a segment in out."""
    place, live = _places(first, num_values, begin, gap, dim, VECTOR)
    live = tl.broadcast_to(live[:, None], (_GROUP // VECTOR, VECTOR))
    x = tl.reshape(x, (_GROUP // VECTOR, VECTOR))
    tl.store(out + (place[:, None] + tl.arange(0, VECTOR)[None, :]), x, mask=live)


@triton.jit
def _key(x):
    """Return an int32 in the order of the floats; -0.0 is below 0.0."""
    return _flip_magnitude(x.to(tl.int32, bitcast=True))


@triton.jit
def _flip_magnitude(bits):
    """Turn the bits of floats into keys, and keys into bits."""
    return bits ^ ((bits >> 31) & _MAGNITUDE)


@triton.jit
def finite_range(x):
    """Return the lowest and highest finite value of a group; inf and -inf if none is finite."""
    low = tl.min(tl.where(x >= -_FLT_MAX, x, float("inf")), 0)
    return low, tl.max(tl.where(x <= _FLT_MAX, x, float("-inf")), 0)


@triton.jit
def lower_range_keys(range_keys, segment, num_segments, low, high, first):
    """Merge the range of some groups into that of their segment.

    Args: range_keys: pointer to [3, S] int32, NO_KEY at first. Row 0: the key of a segment's lowest
              value. Row 1: the key of its highest value, all bits flipped. Row 2: the number of its
              first finite value, valid only if all are equal.
          low, high: range of the groups.
          first: number of the first finite value in the first group with equal values, or NO_KEY.
    """
    if low <= high:
        tl.atomic_min(range_keys + segment, _key(low), sem="relaxed")
        tl.atomic_min(range_keys + num_segments + segment, ~_key(high), sem="relaxed")
        if first != _NO_KEY:
            tl.atomic_min(range_keys + 2 * num_segments + segment, first, sem="relaxed")


@triton.jit
def choose_step(range_keys, bounds, segment, num_segments, RELATIVE: tl.constexpr):
    """Return (RAW, BITPACK or CONSTANT; bound, step, 1 / step as float32) of a segment."""
    low = tl.load(range_keys + segment)
    high = ~tl.load(range_keys + num_segments + segment)
    lowest = _flip_magnitude(low).to(tl.float32, bitcast=True).to(tl.float64)
    highest = _flip_magnitude(high).to(tl.float32, bitcast=True).to(tl.float64)
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
def constant_of(values, range_keys, segment, num_segments, begin, gap, dim):
    """Return the bits of the constant of a segment whose finite values are all equal.

    The constant is the first finite value, or the first value if none is finite.
    """
    k = tl.load(range_keys + 2 * num_segments + segment)
    k = tl.where(k == _NO_KEY, 0, k)
    place = begin + k + (k // dim).to(tl.int64) * gap
    return tl.load(values + place).to(tl.int32, bitcast=True)


@triton.jit
def quantize(x, bound, step, inverse):
    """Quantize a group.

    Returns: (zigzagged indices, uint32; whether all values may be sent as indices). If not, `fits`
             says which values may.
    """
    shifted = x * inverse + _MAGIC
    q = shifted.to(tl.int32, bitcast=True) - _MAGIC_BITS
    word = ((q << 1) ^ (q >> 31)).to(tl.uint32, bitcast=True)
    error = (x - (shifted - _MAGIC) * step).to(tl.int32, bitcast=True) & _MAGNITUDE
    within = tl.max(error, 0) <= bound.to(tl.int32, bitcast=True)  # NaN is the largest
    return word, within & (tl.max(word, 0) <= _MAX_WORD)


@triton.jit
def fits(x, bound, step, inverse):
    """Return which values may be sent as indices. Exact: see the head of this file."""
    rounded = (x * inverse + _MAGIC) - _MAGIC
    return (tl.abs(x - rounded * step) <= bound) & (tl.abs(rounded) <= _MAX_INDEX)
