"""Merge classes, and code their weights in bits, in Triton.

All 256 classes are handled at a time. Merging f times makes one class of 2^f, so all counts are
differences of the running sums of the initial counts, which are kept.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.rans.gpu.arithmetic import CLASSES, MAX_SHIFT, bit_length


@triton.jit
def _log2(n):
    """Return log2(n) * 2^16 of int64 n >= 1, at most 0.9 % of one bit off."""
    b = (bit_length(n) - 1).to(tl.int64)
    f = ((n << 16) >> b) - 65536
    return (b << 16) + f + ((((f * (65536 - f)) >> 16) * 22544) >> 16)


@triton.jit
def _coarse(count):
    """Return the weight of a class: its count, int64, to 4 significant bits."""
    drop = tl.maximum(bit_length(count) - 4, 0).to(tl.int64)
    half = (tl.zeros_like(count) + 1 << drop) >> 1
    return ((count + half) >> drop) << drop


@triton.jit
def _merged_counts(sums, k, first, num_classes, num_merges):
    """Return the counts of classes k, int64; 0 where there is no such class.

    Args: sums: pointer to [257] int32, running sums of the initial counts.
          first: first initial class in use.  num_classes: number of classes after merging.
          num_merges: how often neighbours were merged.
    """
    live = (k >= 0) & (k < num_classes)
    begin = tl.minimum(first + (k << num_merges), CLASSES)
    end = tl.minimum(begin + (1 << num_merges), CLASSES)
    above = tl.load(sums + end, mask=live, other=0)
    return (above - tl.load(sums + begin, mask=live, other=0)).to(tl.int64)


@triton.jit
def weights_of(sums, first, num_classes, num_merges):
    """Return [256] each: weights, int64, the bits that code them, and how many bits, int32."""
    k = tl.arange(0, CLASSES)
    weight = _coarse(_merged_counts(sums, k, first, num_classes, num_merges))
    length = bit_length(weight)
    change = length - bit_length(
        _coarse(_merged_counts(sums, k - 1, first, num_classes, num_merges))
    )
    code = ((change << 1) ^ (change >> 31)) + 1
    num_low = bit_length(code) - 1
    sent = tl.minimum(3, tl.maximum(0, length - 1))
    leading = (weight >> tl.maximum(0, length - 1 - sent).to(tl.int64)).to(tl.int32)
    bits = (1 << num_low) | ((code & ((1 << num_low) - 1)) << (num_low + 1))
    bits |= (leading & ((1 << sent) - 1)) << (2 * num_low + 1)
    return weight, bits, tl.where(k < num_classes, 2 * num_low + 1 + sent, 0)


@triton.jit
def _cost(sums, first, num_classes, num_merges, shift, num_values, num_escapes):
    """Return the bits, times 2^16, of the table, the symbols and the low bits, int64."""
    _weight, _bits, num_bits = weights_of(sums, first, num_classes, num_merges)
    cost = (num_values * shift + tl.sum(num_bits, 0)) << 16
    count = _merged_counts(sums, tl.arange(0, CLASSES), first, num_classes, num_merges)
    entropy = num_values * _log2(num_values) - num_escapes * _log2(tl.maximum(num_escapes, 1))
    entropy -= tl.sum(count * _log2(tl.maximum(count, 1)), 0)
    return cost + tl.where(num_classes + (num_escapes > 0).to(tl.int32) > 1, entropy, 0)


@triton.jit
def merge_classes(counts, sums, num_values, shift):
    """Merge pairs of neighbouring classes as long as that saves 0.4 %.

    Args:    counts: pointer to [256] int32.  sums: pointer to [257] int32, to write.
    Returns: (first initial class, number of classes, number of merges, number of escaped indices).
    """
    k = tl.arange(0, CLASSES)
    count = tl.load(counts + k)
    inside = tl.sum(count, 0)
    num_escapes = num_values - inside
    tl.store(sums + k, tl.cumsum(count, 0) - count)
    tl.store(sums + CLASSES, inside)
    tl.debug_barrier()  # until the sums are stored
    first = tl.min(tl.where(count > 0, k, CLASSES), 0)
    # Merged classes may not reach beyond the initial ones, where escaped indices are.
    first = tl.where(num_escapes > 0, 0, first)
    num_classes, num_merges = tl.max(tl.where(count > 0, k, 0), 0) + 1 - first, shift * 0
    best_cost = _cost(sums, first, num_classes, num_merges, shift, num_values, num_escapes)
    more = (num_classes > 1) & (shift < MAX_SHIFT)
    while more:
        half, wider = (num_classes + 1) // 2, shift + num_merges + 1
        cost = _cost(sums, first, half, num_merges + 1, wider, num_values, num_escapes)
        more = cost <= best_cost - (best_cost >> 8)
        num_merges += more.to(tl.int32)
        num_classes = tl.where(more, half, num_classes)
        best_cost = tl.where(more, cost, best_cost)
        more = more & (num_classes > 1) & (wider < MAX_SHIFT)
    return first, num_classes, num_merges, num_escapes


@triton.jit
def put_weights(bits, num_bits, words):
    """Write the bits of `weights_of` to words, int32, that are 0. Return the number of bytes."""
    end = tl.cumsum(num_bits, 0)
    at, live = end - num_bits, num_bits > 0
    low = bits.to(tl.uint32) << (at % 32).to(tl.uint32)
    high = (bits.to(tl.uint32) >> 1) >> (31 - at % 32).to(tl.uint32)
    tl.atomic_or(words + at // 32, low.to(tl.int32, bitcast=True), mask=live, sem="relaxed")
    beyond = live & (high > 0)
    tl.atomic_or(words + at // 32 + 1, high.to(tl.int32, bitcast=True), mask=beyond, sem="relaxed")
    return (tl.sum(num_bits, 0) + 7) // 8
