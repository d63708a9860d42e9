"""Parts of an index that its symbol does not say, in Triton: low bits, or a whole escaped index.

A program handles a group of 1024 indices at a time.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from trec_qcomm.ops.rans.gpu import header
from trec_qcomm.ops.rans.gpu.arithmetic import GROUP, GROUPS_PER_STREAM, STREAM
from trec_qcomm.ops.rans.gpu.stream import load32, store32

_NUMBERS_PER_LOAD = tl.constexpr(256)


@triton.jit
def _sum(numbers, first, end):
    """Return the sum of numbers[first:end], int32."""
    total = tl.zeros((_NUMBERS_PER_LOAD,), tl.int32)
    while first < end:
        i = first + tl.arange(0, _NUMBERS_PER_LOAD)
        total += tl.load(numbers + i, mask=i < end, other=0)
        first += _NUMBERS_PER_LOAD
    return tl.sum(total, 0)


@triton.jit
def escapes_before(group, num_values, group_escapes, stream_escapes):
    """Return how many of a segment's escaped indices are in groups before this one.

    Args: group_escapes, stream_escapes: pointers to the counts of the segment's groups and streams.
    """
    stream = tl.minimum(group // GROUPS_PER_STREAM, tl.maximum(num_values // STREAM - 1, 0))
    before = _sum(stream_escapes, stream * 0, stream)
    return before + _sum(group_escapes, stream * GROUPS_PER_STREAM, group)


@triton.jit
def count_escapes(num_values, stream_escapes):
    """Return the number of escape symbols of a segment, from the counts of its streams."""
    num_streams = tl.maximum(num_values // STREAM, 1)
    return _sum(stream_escapes, num_streams * 0, num_streams)


@triton.jit
def get_indices(payload, payload16, fields, symbols, first, num_values, num_before):
    """Assemble the indices of a group from symbols, low bits and escaped indices.

    Args:    symbols: pointer to the symbols of the group.  first: number of its first index.
             num_before: number of escaped indices of the segment before the group.
    Returns: ([1024] int32, number of escaped indices before the next group).
    """
    base, shift = tl.load(fields + header.BASE), tl.load(fields + header.SHIFT).to(tl.int32)
    num_classes = tl.load(fields + header.NUM_CLASSES).to(tl.int32)
    log = tl.load(fields + header.LOG)
    k = tl.arange(0, GROUP)
    live = k < num_values - first
    q = tl.zeros_like(k) + base.to(tl.int32)
    if shift > 0:
        plane = payload + tl.load(fields + header.LOW_BITS_AT)
        stride, done = (num_values + 7) // 8, 0
        t = (first + k) // stride
        # The byte within a plane and the bit in one number take half the registers.
        bit = ((first + k - t * stride) << 3) | t
        while done < shift:
            byte = tl.load(plane + (bit >> 3), mask=live, other=0).to(tl.int32)
            q += ((byte >> (bit & 7)) & 1) << done
            plane += stride
            done += 1
    is_there = (k // 8 * 8 < num_values - first) & (log > 0)  # whole eights: one load each
    symbol = tl.load(symbols + k, mask=is_there, other=0).to(tl.int32)
    q += symbol << shift
    num_escapes = tl.load(fields + header.NUM_ESCAPES).to(tl.int32)
    if num_escapes > 0:
        is_escape = (live & (symbol == num_classes)).to(tl.int32)
        at = num_before + tl.cumsum(is_escape, 0) - 1
        escapes_at, _ = header.escapes_and_states_at(fields, num_values)
        live = (is_escape > 0) & (at < num_escapes)
        escaped = load32(payload16 + (escapes_at + 2 * num_before), 2 * (at - num_before), live)
        q = tl.where(is_escape > 0, escaped, q)
        num_before += tl.sum(is_escape, 0)
    return q, num_before


@triton.jit
def _put_low_bits(payload, fields, q, group, num_values, shift):
    """Write a group's share of the low bits: 128 bytes of each plane.

    Args: q: pointer to the segment's first index.
    """
    base, stride = tl.load(fields + header.BASE).to(tl.int32), (num_values + 7) // 8
    t = tl.arange(0, 8)[:, None]
    j = group * (GROUP // 8) + tl.arange(0, GROUP // 8)
    i = t * stride + j[None, :]
    v = tl.load(q + i, mask=(i < num_values) & (j < stride)[None, :], other=base) - base
    plane, done = payload + tl.load(fields + header.LOW_BITS_AT) + j, shift * 0
    while done < shift:
        byte = tl.sum(((v >> done) & 1) << t, 0)
        tl.store(plane, byte.to(tl.uint8), mask=j < stride)
        plane += stride
        done += 1


@triton.jit
def put_indices(payload, payload16, fields, q, group, num_values, num_escapes, num_before):
    """Write a group's share of the low bits, and its escaped indices.

    Args: q: pointer to the segment's first index.  num_escapes: escaped indices of the group.
          num_before: number of escaped indices of the segment before the group.
    """
    shift = tl.load(fields + header.SHIFT).to(tl.int32)
    if shift > 0:
        _put_low_bits(payload, fields, q, group, num_values, shift)
    if num_escapes > 0:
        i = group * GROUP + tl.arange(0, GROUP)
        base = tl.load(fields + header.BASE).to(tl.int32)
        num_classes = tl.load(fields + header.NUM_CLASSES)
        v = tl.load(q + i, mask=i < num_values, other=base)
        place = (v - base).to(tl.uint32, bitcast=True) >> shift.to(tl.uint32)
        is_escape = place >= num_classes.to(tl.uint32)
        at = num_before + tl.cumsum(is_escape.to(tl.int32), 0) - 1
        escapes_at, _ = header.escapes_and_states_at(fields, num_values)
        store32(payload16, escapes_at + 2 * at, v, is_escape)
