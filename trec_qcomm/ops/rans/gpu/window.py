"""The classes that an encoder begins with, and how many indices are in each, in Triton."""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.rans import reference
from trec_qcomm.ops.rans.gpu.numbers import CLASSES, bit_length

_SAMPLES, _AT_A_TIME = tl.constexpr(reference.SAMPLES), tl.constexpr(64)
_PICKS, _MIDDLE, _NONE = tl.constexpr(15), tl.constexpr(7), tl.constexpr(2**31 - 1)


@triton.jit
def most_classes_log(num_values):
    """log2 of how many classes an encoder begins with."""
    return tl.minimum(8, tl.maximum(4, bit_length(num_values) - 3))


@triton.jit
def window(q, num_values, low, high):
    """(base, shift) of them. q: pointer to num_values, int64, indices of low..high."""
    most_log = most_classes_log(num_values)
    base, shift = low, tl.maximum(0, bit_length(high - low) - most_log)
    if shift > 0:
        k = tl.arange(0, 16)
        pick = tl.load(q + (2 * k + 1) * num_values // (2 * _PICKS), mask=k < _PICKS, other=_NONE)
        mine, other = pick[:, None], pick[None, :]
        less = (other < mine) | ((other == mine) & (k[None, :] < k[:, None]))
        center = tl.sum(tl.where(tl.sum(less.to(tl.int32), 1) == _MIDDLE, pick, 0), 0)
        # The cost of every shift at once, that of all indices for the largest.
        fewer = tl.arange(0, 32)
        bits, done = tl.zeros_like(fewer), num_values * 0
        stride = tl.maximum(1, num_values // _SAMPLES)
        while done * stride < num_values:
            at = (done + tl.arange(0, _AT_A_TIME)) * stride
            v = tl.load(q + at, mask=at < num_values, other=0)
            length = bit_length(tl.abs(v - center))[:, None]
            own = tl.maximum(fewer - length, 0)
            own = tl.where((length >= most_log + fewer) & (fewer != shift), 40, own)
            bits += tl.sum(tl.where((at < num_values)[:, None], own, 0), 0)
            done += _AT_A_TIME
        # Of equal ones the largest shift, and all indices before that.
        cost = bits * 64 + tl.where(fewer == shift, 0, 32 - fewer)
        cost = tl.where(fewer <= shift, cost, _NONE)
        best = tl.sum(tl.where(cost == tl.min(cost, 0), fewer, 0), 0)
        base = tl.where(best < shift, center - ((1 << (most_log + best)) >> 1), low)
        shift = best
    return base, shift


@triton.jit
def count_group(q, live, base, shift, num_values):
    """([256] int32 indices in each class, how many of the live ones are in none)."""
    place = (q - base).to(tl.uint32, bitcast=True) >> shift.to(tl.uint32)
    inside = live & (place < (1 << most_classes_log(num_values)).to(tl.uint32))
    counts = tl.histogram(tl.where(inside, place, 0).to(tl.int32), CLASSES)
    not_inside = tl.sum((inside == 0).to(tl.int32), 0)  # which class 0 has got
    counts -= tl.where(tl.arange(0, CLASSES) == 0, not_inside, 0)
    return counts, tl.sum((live & (inside == 0)).to(tl.int32), 0)
