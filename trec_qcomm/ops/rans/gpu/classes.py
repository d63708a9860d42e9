"""How an encoder chooses its classes, and what it writes of them, in Triton. All 256 at a time.

Folding f times makes one class of 2^f; so their counts are differences of sums that are kept.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.rans.gpu.numbers import CLASSES, MAX_SHIFT, bit_length


@triton.jit
def _log2(n):
    """log2(n) * 2^16 of int64 n >= 1, at most 0.9 % of one bit off."""
    b = (bit_length(n) - 1).to(tl.int64)
    f = ((n << 16) >> b) - 65536
    return (b << 16) + f + ((((f * (65536 - f)) >> 16) * 22544) >> 16)


@triton.jit
def _coarse(count):
    """The weight of a class: its count, int64, to 4 significant bits."""
    drop = tl.maximum(bit_length(count) - 4, 0).to(tl.int64)
    half = (tl.zeros_like(count) + 1 << drop) >> 1
    return ((count + half) >> drop) << drop


@triton.jit
def _counts(sums, k, first, size, folds):
    """Of classes k, int64; 0 where there is none."""
    live = (k >= 0) & (k < size)
    begin = tl.minimum(first + (k << folds), CLASSES)
    end = tl.minimum(begin + (1 << folds), CLASSES)
    above = tl.load(sums + end, mask=live, other=0)
    return (above - tl.load(sums + begin, mask=live, other=0)).to(tl.int64)


@triton.jit
def weights_of(sums, first, size, folds):
    """[256]: weights, int64, the bits that say them, and how many bits these are, int32."""
    k = tl.arange(0, CLASSES)
    weight = _coarse(_counts(sums, k, first, size, folds))
    length = bit_length(weight)
    change = length - bit_length(_coarse(_counts(sums, k - 1, first, size, folds)))
    code = ((change << 1) ^ (change >> 31)) + 1
    zeros = bit_length(code) - 1
    sent = tl.minimum(3, tl.maximum(0, length - 1))
    leading = (weight >> tl.maximum(0, length - 1 - sent).to(tl.int64)).to(tl.int32)
    bits = (1 << zeros) | ((code & ((1 << zeros) - 1)) << (zeros + 1))
    bits |= (leading & ((1 << sent) - 1)) << (2 * zeros + 1)
    return weight, bits, tl.where(k < size, 2 * zeros + 1 + sent, 0)


@triton.jit
def _cost(sums, first, size, folds, shift, num_values, escapes):
    """Bits * 2^16 of the table, the symbols and the low bits, int64."""
    _weight, _bits, num_bits = weights_of(sums, first, size, folds)
    cost = (num_values * shift + tl.sum(num_bits, 0)) << 16
    count = _counts(sums, tl.arange(0, CLASSES), first, size, folds)
    entropy = num_values * _log2(num_values) - escapes * _log2(tl.maximum(escapes, 1))
    entropy -= tl.sum(count * _log2(tl.maximum(count, 1)), 0)
    return cost + tl.where(size + (escapes > 0).to(tl.int32) > 1, entropy, 0)


@triton.jit
def fold(counts, sums, num_values, shift):
    """(first class, number of classes, folds, number of escapes): half as many classes as long as
    that saves 0.4 %. counts: [256] int32.  sums: [257] int32 to write."""
    k = tl.arange(0, CLASSES)
    count = tl.load(counts + k)
    inside = tl.sum(count, 0)
    escapes = num_values - inside
    tl.store(sums + k, tl.cumsum(count, 0) - count)
    tl.store(sums + CLASSES, inside)
    tl.debug_barrier()  # the sums are stored
    first = tl.min(tl.where(count > 0, k, CLASSES), 0)
    first = tl.where(escapes > 0, 0, first)  # else no class may reach beyond the first ones
    size, folds = tl.max(tl.where(count > 0, k, 0), 0) + 1 - first, shift * 0
    best = _cost(sums, first, size, folds, shift, num_values, escapes)
    more = (size > 1) & (shift < MAX_SHIFT)
    while more:
        half, wider = (size + 1) // 2, shift + folds + 1
        cost = _cost(sums, first, half, folds + 1, wider, num_values, escapes)
        more = cost <= best - (best >> 8)
        folds += more.to(tl.int32)
        size = tl.where(more, half, size)
        best = tl.where(more, cost, best)
        more = more & (size > 1) & (wider < MAX_SHIFT)
    return first, size, folds, escapes


@triton.jit
def put_weights(bits, num_bits, words):
    """Write them to words, int32, that are 0. Returns the number of bytes."""
    end = tl.cumsum(num_bits, 0)
    at, live = end - num_bits, num_bits > 0
    low = bits.to(tl.uint32) << (at % 32).to(tl.uint32)
    high = (bits.to(tl.uint32) >> 1) >> (31 - at % 32).to(tl.uint32)
    tl.atomic_or(words + at // 32, low.to(tl.int32, bitcast=True), mask=live, sem="relaxed")
    beyond = live & (high > 0)
    tl.atomic_or(words + at // 32 + 1, high.to(tl.int32, bitcast=True), mask=beyond, sem="relaxed")
    return (tl.sum(num_bits, 0) + 7) // 8
