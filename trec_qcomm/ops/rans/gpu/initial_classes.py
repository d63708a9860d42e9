"""Classes with which an encoder begins, and how many indices are in each, in Triton."""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.rans import reference
from trec_qcomm.ops.rans.gpu.arithmetic import CLASSES, bit_length

_SAMPLES, _SAMPLES_PER_LOAD = tl.constexpr(reference.SAMPLES), tl.constexpr(64)
_NUM_PICKS, _MIDDLE, _NONE = tl.constexpr(15), tl.constexpr(7), tl.constexpr(2**31 - 1)


@triton.jit
def initial_classes_log(num_values):
    """Return log2 of the number of classes with which an encoder begins."""
    return tl.minimum(8, tl.maximum(4, bit_length(num_values) - 3))


@triton.jit
def initial_classes(q, num_values, low, high):
    """Return (base, shift) of the classes with which an encoder begins, as in reference.py.

    Args: q: pointer to the indices.  num_values: number of indices, int64.
          low, high: the smallest and the largest index.
    """
    classes_log = initial_classes_log(num_values)
    base, shift = low, tl.maximum(0, bit_length(high - low) - classes_log)
    if shift > 0:
        k = tl.arange(0, 16)
        pick = tl.load(
            q + (2 * k + 1) * num_values // (2 * _NUM_PICKS), mask=k < _NUM_PICKS, other=_NONE
        )
        mine, other = pick[:, None], pick[None, :]
        comes_before = (other < mine) | ((other == mine) & (k[None, :] < k[:, None]))
        center = tl.sum(tl.where(tl.sum(comes_before.to(tl.int32), 1) == _MIDDLE, pick, 0), 0)
        # The costs of all candidates for the shift at once. The largest covers all indices.
        candidate = tl.arange(0, 32)
        bits, done = tl.zeros_like(candidate), num_values * 0
        stride = tl.maximum(1, num_values // _SAMPLES)
        while done * stride < num_values:
            at = (done + tl.arange(0, _SAMPLES_PER_LOAD)) * stride
            v = tl.load(q + at, mask=at < num_values, other=0)
            length = bit_length(tl.abs(v - center))[:, None]
            low_bits = tl.maximum(candidate - length, 0)
            low_bits = tl.where(
                (length >= classes_log + candidate) & (candidate != shift), 40, low_bits
            )
            bits += tl.sum(tl.where((at < num_values)[:, None], low_bits, 0), 0)
            done += _SAMPLES_PER_LOAD
        # Among equal costs, covering all indices wins, then the largest shift.
        cost = bits * 64 + tl.where(candidate == shift, 0, 32 - candidate)
        cost = tl.where(candidate <= shift, cost, _NONE)
        best_shift = tl.sum(tl.where(cost == tl.min(cost, 0), candidate, 0), 0)
        base = tl.where(best_shift < shift, center - ((1 << (classes_log + best_shift)) >> 1), low)
        shift = best_shift
    return base, shift


@triton.jit
def count_group(q, live, base, shift, num_values):
    """Return ([256] int32, indices in each class; the number of live indices in none)."""
    place = (q - base).to(tl.uint32, bitcast=True) >> shift.to(tl.uint32)
    inside = live & (place < (1 << initial_classes_log(num_values)).to(tl.uint32))
    counts = tl.histogram(tl.where(inside, place, 0).to(tl.int32), CLASSES)
    not_inside = tl.sum((inside == 0).to(tl.int32), 0)  # counted in class 0 so far
    counts -= tl.where(tl.arange(0, CLASSES) == 0, not_inside, 0)
    return counts, tl.sum((live & (inside == 0)).to(tl.int32), 0)
